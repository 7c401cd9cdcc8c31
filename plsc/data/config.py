"""Define the section DataLoader: the data sets, the order of their samples, and the batch sizes."""

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from plsc.utils.registry import Registry
from plsc.utils.section import ClassSection, Section
from plsc.utils.sharding import count_micro_batches, split

LABELLED = Registry(
    "dataset to train on",
    {
        "Glyphs": "plsc.data.glyphs:Glyphs",
        "IdxImages": "plsc.data.idx:IdxImages",
        "ImageFolder": "plsc.data.folder:ImageFolder",
        "ImageList": "plsc.data.image_list:ImageList",
        "RecImages": "plsc.data.rec:RecImages",
        "Synthetic": "plsc.data.synthetic:Synthetic",
    },
    bases=("plsc.data.dataset:Dataset",),
)
DATASETS = Registry(
    "dataset",
    {
        **LABELLED.builtin,
        "BinPairs": "plsc.data.bin_packs:BinPairs",
        "GalleryProbe": "plsc.data.templates:GalleryProbe",
        "GlyphPairs": "plsc.data.glyphs:GlyphPairs",
        "IjbPairs": "plsc.data.templates:IjbPairs",
        "ImagePairs": "plsc.data.pairs:ImagePairs",
        "PairList": "plsc.data.pairs:PairList",
    },
    bases=tuple(f"plsc.data.dataset:{name}" for name in ("Dataset", "PairSet", "IdentificationSet")),
)

TRAIN_SET = "DataLoader.Train.dataset"
EVAL_SET = "DataLoader.Eval.dataset"
MORE_SETS = "DataLoader.Eval.more"


class TrainDatasetCfg(ClassSection):
    """The images to train on. Further keys are the class's keyword arguments, which its docstring explains.
    A list of such mappings trains on several sets together. Each set's classes follow the classes of the set
    before it (docs/data.md)."""

    registry = LABELLED
    name: str = "Glyphs"
    """The data set's class. `Glyphs` draws characters at run time. `ImageList` reads your images from a list
    file, `ImageFolder` from a folder for each identity, and `RecImages` from a .rec file. `IdxImages` reads
    MNIST's and Fashion-MNIST's files. `Synthetic` makes noise for speed measurements. Name your own class
    as `package.module:Class`. The class count is read from the data. docs/data.md has examples."""


def _one_or_several(value: Any) -> str:
    """Return the tag of the alternative of TrainCfg.dataset that validates a value."""
    return "several" if isinstance(value, list) else "one"


class EvalDatasetCfg(ClassSection):
    """The images to evaluate on: image pairs to verify, a search in a gallery, or labelled images whose
    trained classes the head predicts. Further keys are the class's keyword arguments, which its docstring
    explains. `dataset: null` turns evaluation off."""

    registry = DATASETS

    name: str = "GlyphPairs"
    """The data set's class. `GlyphPairs` makes pairs of characters that training never sees. `PairList`
    reads the pairs that a file names, `BinPairs` reads a .bin pack, and `ImagePairs` draws pairs from
    labelled images. `IjbPairs` compares IJB's templates. `GalleryProbe` searches a gallery. Any data set
    that `Train.dataset` may name is also possible. Name your own class as `package.module:Class`."""


class TrainCfg(Section):
    """Training data."""

    dataset: Annotated[
        Annotated[TrainDatasetCfg, Tag("one")]
        | Annotated[list[TrainDatasetCfg], Field(min_length=1), Tag("several")],
        Discriminator(_one_or_several),
    ] = TrainDatasetCfg()
    batch_size: int = Field(128, ge=1)
    """Samples that a rank computes at a time, in training and in evaluation. If memory runs out, lower it and
    keep `global_batch`."""
    global_batch: int | None = Field(None, ge=2)
    """Samples per step, over all ranks. The learning rate refers to this number (docs/training.md). The
    backbone computes a rank's share in as few batches as possible, each with `batch_size` samples, or up
    to two more. Several batches take about a third more time. The head sees all the step's samples at
    once. null means `batch_size` x ranks. A resumed run keeps its checkpoint's value."""
    per_class: int | None = Field(None, ge=2, le=1024)
    """Images of each class in a batch, for a loss on pairs such as a triplet loss (docs/extend.md). A
    batch of 64 with `per_class: 4` contains 16 classes. The value must divide `batch_size` and
    `global_batch`. If it does not divide a class's image count, some of these images come twice in an
    epoch. null shuffles the images one by one."""
    num_workers: int = Field(0, ge=0, le=1024)
    """Processes per rank that prepare batches. 0 uses a thread. Raise the number if loading the data limits
    the images per second. The batches stay the same."""

    @property
    def sets(self) -> list[TrainDatasetCfg]:
        """The data sets to train on: the only one, or all in the list."""
        return self.dataset if isinstance(self.dataset, list) else [self.dataset]

    def global_batch_on(self, ranks: int) -> int:
        """Count the samples that `ranks` ranks take together in one step."""
        return self.global_batch or self.batch_size * ranks

    def micro_batches_on(self, ranks: int) -> list[list[int]]:
        """Return a step's micro-batch sizes: one list per rank, the largest size first.

        Every rank has equally many micro-batches.
        """
        shares = [stop - start for start, stop in split(self.global_batch_on(ranks), ranks)]
        count = count_micro_batches(shares, self.batch_size)
        return [[stop - start for start, stop in split(share, count)] for share in shares]


class EvalCfg(Section):
    """Evaluation data.

    `dataset` is the main set. It determines the best checkpoint and the threshold.
    """

    dataset: EvalDatasetCfg | None = None
    more: dict[str, EvalDatasetCfg] = {}
    """Further sets to evaluate on. Each key is the set's title in logs and reports. Each value has the
    keys of `dataset`: `{cfp_fp: {name: BinPairs, path: cfp_fp.bin}}`."""
    flip: bool = False
    """Add the embedding of each image's mirror image to the image's own embedding, as InsightFace's
    evaluation does. The accuracy rises a little, and the computation takes twice the time. The setting
    applies to this config's evaluation, `predict`, galleries and exported graphs. The threshold is valid
    for embeddings with the same setting."""

    def sets(self) -> dict[str, ClassSection]:
        """Return the evaluation sets by their keys in a config, the main set first."""
        main = {EVAL_SET: self.dataset} if self.dataset else {}
        return main | {f"{MORE_SETS}.{title}": section for title, section in self.more.items()}


class DataLoaderCfg(Section):
    """Where the images come from, and the batch sizes."""

    Train: TrainCfg = TrainCfg()
    Eval: EvalCfg = EvalCfg()

    def sets(self) -> dict[str, ClassSection]:
        """Return the data sets by their keys in a config, the training sets first."""
        trained = {TRAIN_SET: self.Train.dataset}
        if isinstance(self.Train.dataset, list):
            trained = {f"{TRAIN_SET}.{number}": section for number, section in enumerate(self.Train.dataset)}
        return trained | self.Eval.sets()
