"""Define the section DataLoader: the data sets, their order, and how many samples are taken at a time."""

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
    """The images to train on. Further keys are keyword arguments of the class; its docstring explains
    them. A list of such mappings trains on several sets together, their classes one after the other
    (docs/data.md)."""

    registry = LABELLED
    # The seed of an Eval set is a key of its own: runs with different seeds must have comparable results.
    supplied = ("seed",)

    name: str = "Glyphs"
    """`Glyphs`, characters drawn at run time; your images in a list file (`ImageList`), in a folder for each
    identity (`ImageFolder`) or in a .rec file (`RecImages`); `IdxImages`, the files of MNIST and
    Fashion-MNIST; `Synthetic`, noise for measuring speed; or your own class as `package.module:Class`. The
    number of classes is read from the data; docs/data.md has examples."""


def _one_or_several(value: Any) -> str:
    """Say which alternative of TrainCfg.dataset a value is to be checked by."""
    return "several" if isinstance(value, list) else "one"


class EvalDatasetCfg(ClassSection):
    """What to evaluate on: pairs of images to verify, or labelled images of the trained classes, whose
    classes the head predicts. Further keys are keyword arguments of the class; its docstring explains them.
    `dataset: null` evaluates nothing."""

    registry = DATASETS

    name: str = "GlyphPairs"
    """`GlyphPairs`, pairs of characters that training never sees; pairs named in a file (`PairList`), in a
    .bin pack (`BinPairs`) or drawn from labelled images (`ImagePairs`); IJB's templates (`IjbPairs`); a
    search in a gallery (`GalleryProbe`); any data set that `Train.dataset` may name; or your own class as
    `package.module:Class`."""


class TrainCfg(Section):
    """Training data."""

    dataset: Annotated[
        Annotated[TrainDatasetCfg, Tag("one")]
        | Annotated[list[TrainDatasetCfg], Field(min_length=1), Tag("several")],
        Discriminator(_one_or_several),
    ] = TrainDatasetCfg()
    batch_size: int = Field(128, ge=1)
    """Samples that a rank computes at a time, in an evaluation too. Lower it when memory runs out, with
    `global_batch` as it is."""
    global_batch: int | None = Field(None, ge=2)
    """Samples of all ranks in one step, which the learning rate is meant for (docs/training.md). A rank's
    share goes through the backbone in as few batches of `batch_size`, or up to two more, as it needs, at
    about a third more time; the head sees all samples of the step at once. null: `batch_size` x ranks; a
    resumed run keeps that of its checkpoint."""
    per_class: int | None = Field(None, ge=2, le=1024)
    """Images of each class in a batch, for a loss on pairs, such as a triplet loss (docs/extend.md): a batch
    of 64 with `per_class: 4` holds 16 classes. It must divide `batch_size` and `global_batch`. A class whose
    images it does not divide has some of them twice an epoch. null: the images are shuffled one by one."""
    num_workers: int = Field(0, ge=0, le=1024)
    """Processes per rank that prepare batches; 0 uses a thread. Raise it when the images per second are bound
    by the data; the batches stay the same."""

    @property
    def sets(self) -> list[TrainDatasetCfg]:
        """The data sets to train on: one, or those of the list."""
        return self.dataset if isinstance(self.dataset, list) else [self.dataset]

    def global_batch_on(self, ranks: int) -> int:
        """Return the samples of all of so many ranks in one step."""
        return self.global_batch or self.batch_size * ranks

    def micro_batches_on(self, ranks: int) -> list[list[int]]:
        """Return the samples of each micro-batch of a step, by rank: as many of them on each, the largest
        first."""
        shares = [stop - start for start, stop in split(self.global_batch_on(ranks), ranks)]
        count = count_micro_batches(shares, self.batch_size)
        return [[stop - start for start, stop in split(share, count)] for share in shares]


class EvalCfg(Section):
    """Evaluation data.

    `dataset` is the main set: it decides which checkpoint is the best, and the threshold.
    """

    dataset: EvalDatasetCfg | None = None
    more: dict[str, EvalDatasetCfg] = {}
    """Further sets to evaluate on, each under the title that it gets in logs and reports, with the keys of
    `dataset`: `{cfp_fp: {name: BinPairs, path: cfp_fp.bin}}`."""
    flip: bool = False
    """Add the embedding of each image's mirror image to its own, as InsightFace's evaluation does: a little
    more accurate, twice the time. Evaluation, `predict`, galleries and exported graphs of this config all do
    so, and the threshold belongs to such embeddings."""

    def sets(self) -> dict[str, ClassSection]:
        """Return the data sets by their keys in a config, the main one first."""
        main = {EVAL_SET: self.dataset} if self.dataset else {}
        return main | {f"{MORE_SETS}.{title}": section for title, section in self.more.items()}


class DataLoaderCfg(Section):
    """Where images come from, and how many at a time."""

    Train: TrainCfg = TrainCfg()
    Eval: EvalCfg = EvalCfg()

    def sets(self) -> dict[str, ClassSection]:
        """Return the data sets by their keys in a config, those to train on first."""
        trained = {TRAIN_SET: self.Train.dataset}
        if isinstance(self.Train.dataset, list):
            trained = {f"{TRAIN_SET}.{number}": section for number, section in enumerate(self.Train.dataset)}
        return trained | self.Eval.sets()
