"""Define the sections of a config: their keys, types, bounds, defaults and documentation.

The text under a field is its documentation: docs/config.md is generated from it and from types and bounds. To
add a key, add a field here and use it; nothing else lists the keys. Checks within a section are its methods.
"""

# pydantic evaluates the annotations, so they must be valid on Python 3.9: Optional[int], not int | None.
# ruff: noqa: FA100

from typing import Annotated, Any, Literal, Optional, Union

from pydantic import (
    Discriminator,
    Field,
    PositiveInt,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from plsc.heads.config import HeadCfg
from plsc.utils.messages import UNION_TAGS, arguments_of
from plsc.utils.registry import BACKBONES, DATASETS
from plsc.utils.section import NOT_TRAINING, Plug, Section, few_for_this_machine
from plsc.utils.sharding import count_micro_batches, split
from plsc.utils.yaml_lines import KeyPath

TRAIN_SET = ("DataLoader", "Train", "dataset")
EVAL_SET = ("DataLoader", "Eval", "dataset")
MORE_SETS = ("DataLoader", "Eval", "more")
DEFAULT_EPOCHS = 10  # when neither epochs nor max_steps is given


class AmpCfg(Section):
    """Mixed precision: which 16-bit numbers a training computes with."""

    dtype: Literal["bfloat16", "float16"] = Field(...)
    """bfloat16 has float32's range, and needs an A100 or a later GPU; float16 has more digits, and its gradients
    are scaled."""
    level: str = "O1"
    """O1, Paddle's name for: convolutions and matrix products in 16 bits, weights and sums in float32."""

    @field_validator("level")
    @classmethod
    def _only_o1(cls, value: str) -> str:
        if value != "O1":
            raise ValueError(
                "must be O1, which keeps the weights in float32; O2 would round them to 16 bits, and then checkpoints, "
                "optimizers and the evaluation"
            )
        return value


class EmaCfg(Section):
    """A running average of the backbone's weights."""

    decay: float = Field(0.9999, ge=0, lt=1)
    """Share of the average that an optimizer step keeps: 0.9999 averages about the last 10,000 steps; take 0.999 for
    runs of fewer than 50,000. A ramp keeps it lower at the start."""
    every: int = Field(1, ge=1)
    """Optimizer steps between two updates, with the decay of as many steps."""


class GlobalCfg(Section):
    """Length of the run, seed, device, and where the results go."""

    exclusive = (("epochs", "max_steps"),)

    epochs: Optional[int] = Field(None, ge=1)
    """Passes over the training set.

    Give this or `max_steps`; with `-o` one replaces the other of the file.
    """
    max_steps: Optional[int] = Field(None, ge=1)
    """Optimizer steps (global batches) instead of epochs, for a benchmark or a smoke test."""
    seed: int = Field(0, ge=0, le=2**31 - 1)
    """Seed of everything random. With the same machine and number of ranks the same seed gives the same run; on GPUs
    with `deterministic`."""
    output_dir: str = Field("output", min_length=1, json_schema_extra=NOT_TRAINING)
    """Folder for config, `metrics.jsonl`, checkpoints, exported models and `report.html`.

    Give each run its own.
    """
    resume: bool = Field(False, json_schema_extra=NOT_TRAINING)
    """Continue from the newest whole checkpoint in `output_dir`.

    The number of ranks may differ from before.
    """
    device: Literal["auto", "cpu", "gpu"] = Field("auto", json_schema_extra=NOT_TRAINING)
    """`auto` takes the GPUs when Paddle was built for them and every rank has one, the CPU when none has; all ranks
    decide alike (docs/gpu.md)."""
    tf32: bool = True
    """Let a GPU compute products of float32 numbers in TensorFloat-32, with 10 bits of the 23 after the point and
    float32 sums: several times faster from Ampere (A100) on. false: in float32. Without effect on CPUs."""
    deterministic: bool = Field(False, json_schema_extra=NOT_TRAINING)
    """Let a GPU use only algorithms of Paddle that repeat their bits, at some cost in speed: the same seed, machine,
    software and number of ranks then give the same run (docs/gpu.md). A CPU always does."""
    checkpoint: Optional[str] = Field(None, json_schema_extra=NOT_TRAINING)
    """The checkpoint to read, for test, predict, export and `resume`: a folder, or `newest` or `best` of those in
    `output_dir` (best: of the main evaluation's accuracy or rank-1). null is `newest`, the newest whole one."""
    init_from: Optional[str] = Field(None, json_schema_extra=NOT_TRAINING)
    """Folder of a checkpoint, or of what `plsc import` wrote, whose backbone training starts with, and the centres
    of the classes that it knows (docs/finetune.md). A run that is resumed has its own."""
    keep_centres: Optional[Literal["name", "number", "none"]] = Field(None, json_schema_extra=NOT_TRAINING)
    """Which centres of `init_from` go along: of the classes of the same `name`; class n for class n (`number`), for data
    without names to which classes were only appended; or none. null is `name`, which is to be written where numbered folders
    were moved or copied (docs/finetune.md)."""
    new_centres: Optional[Literal["mean", "random"]] = Field(None, json_schema_extra=NOT_TRAINING)
    """What a class starts with that `init_from` does not know: the mean embedding of some of its images, or random
    numbers. null is `mean` where other centres are kept, else `random`."""
    keep_step: bool = Field(False, json_schema_extra=NOT_TRAINING)
    """Begin at the step of `init_from`, where its schedule and the order of its data go on, and not at 0
    (docs/finetune.md)."""
    compatible_with: Optional[str] = Field(None, min_length=1, json_schema_extra=NOT_TRAINING)
    """Folder of an older run, whose newest checkpoint is taken, or of a checkpoint: the new network learns embeddings that can
    be compared with the old one's, so that its galleries stay in use (docs/gallery.md). null: no other network's."""
    log_every: int = Field(10, ge=1, json_schema_extra=NOT_TRAINING)
    """Steps between two progress lines, which are also the rows of `metrics.jsonl`."""
    eval_every: int = Field(1, ge=0, json_schema_extra=NOT_TRAINING)
    """Epochs between two evaluations; 0 evaluates only at the end. Raise it when evaluation takes long."""
    eval_every_steps: Optional[int] = Field(None, ge=1, json_schema_extra=NOT_TRAINING)
    """Steps between two evaluations, besides those of `eval_every`. Set it when an epoch takes hours."""
    loggers: list[Literal["visualdl", "tensorboard", "wandb", "mlflow"]] = Field(
        ["visualdl"], json_schema_extra=NOT_TRAINING
    )
    """Programs for which the numbers of `metrics.jsonl`, which is always written, are copied to `output_dir`
    (docs/training.md). tensorboard, wandb and mlflow need the extra `loggers`; the last two work offline."""
    profile: bool = Field(False, json_schema_extra=NOT_TRAINING)
    """Measure what the time of a step goes into, for `metrics.jsonl` and the report (docs/performance.md)."""
    hang_seconds: int = Field(600, ge=0, le=31_536_000, json_schema_extra=NOT_TRAINING)
    """In a launch: a rank whose step takes longer writes where it is stuck and ends, so that the run ends or is
    restarted (`plsc train --ranks`); evaluations and checkpoints may take six times as long. 0 waits for ever."""
    max_skipped: int = Field(10, ge=1, json_schema_extra=NOT_TRAINING)
    """Steps in a row whose loss or gradients are NaN or infinite, and that are skipped, before the run ends. 1 ends it at
    the first (docs/resume.md)."""
    rollbacks: int = Field(0, ge=0, json_schema_extra=NOT_TRAINING)
    """How often the run goes back, instead of ending after `max_skipped` such steps, to the newest whole checkpoint
    from before them, and on with half the learning rate it had (docs/resume.md)."""
    amp: Optional[AmpCfg] = None
    """Mixed precision in training, `{dtype: bfloat16, level: O1}` or `float16` (docs/mixed_precision.md): about half
    the memory of the activations on a GPU; a CPU computes in float32 all the same. null: float32."""
    ema: Optional[EmaCfg] = None
    """Average the backbone's weights over the steps, `{decay: 0.9999, every: 1}`, beside training; the average is what
    is evaluated, exported and predicted with (docs/training.md). null: no average."""
    data_licence: Optional[str] = Field(None, min_length=1, json_schema_extra=NOT_TRAINING)
    """Licence or terms of use of the training data, for the model card (docs/verification.md)."""
    threads: Optional[int] = Field(None, ge=1, json_schema_extra=NOT_TRAINING)
    """CPU threads per rank. null shares the processors out among the ranks; set it when others need some."""

    @field_validator("threads")
    @classmethod
    def _few(cls, value: Optional[int]) -> Optional[int]:
        return few_for_this_machine(value)

    @field_validator("loggers")
    @classmethod
    def _once(cls, value: list[str]) -> list[str]:
        if len(set(value)) < len(value):
            raise ValueError("must name each program once")
        return value

    @field_validator("keep_centres", "new_centres", "keep_step")
    @classmethod
    def _starts_somewhere(cls, value: Union[str, bool, None], info: ValidationInfo) -> Union[str, bool, None]:
        if value and info.data.get("init_from") is None:
            raise ValueError("has no meaning without Global.init_from")
        return value

    def total_steps(self, steps_per_epoch: int) -> int:
        """Return the step that a run ends at."""
        return self.max_steps or self.epochs * steps_per_epoch


class ModelCfg(Plug):
    """The backbone: images in, embeddings out. Further keys are keyword arguments of its class; its docstring
    explains them."""

    registry = BACKBONES
    supplied = {"embedding_size": "Model.embedding_size", "image_shape": "the data"}

    name: str = "SmallResNet"
    """`SmallResNet`, a residual network for small pictures; `LeNet`; for faces `MobileFaceNet`, `IResNet18`,
    `IResNet34`, `IResNet50`, `IResNet100`, `IResNet200`, `FaceViT_tiny`, `FaceViT_small`, `FaceViT_base`, and
    PLSC 0.x's `ResNet50`, `ResNet100`, `ResNet101`, `ResNet152` (docs/backbones.md compares them); a name that
    you registered; or your own class as `package.module:Class`."""
    embedding_size: int = Field(128, ge=1, le=2**16)
    """Length D of the embedding. Memory of the head grows with D x classes; 512 is usual for millions of
    classes."""
    sync_batchnorm: bool = False
    """In training, batch normalisation takes mean and variance over the samples of all ranks, not of each rank alone.
    Try it when a rank has few samples, 32 or less (docs/training.md)."""
    recompute: Union[bool, list[str]] = Field(False, json_schema_extra=NOT_TRAINING)
    """Which layers are computed again in the backward pass instead of kept in memory: `true`, the blocks that the
    backbone declares (IResNet, ResNet, MobileFaceNet, FaceViT); or a list of layers by name, `[layer1, layer2]`. The
    same results in less memory and about a third more time (docs/large.md)."""


def head_dtype(head: HeadCfg, amp: Optional[AmpCfg]) -> str:
    """Return what a training's head rounds its matrix products' inputs to."""
    return head.compute_dtype or (amp.dtype if amp else "float32")


class TeacherCfg(Section):
    """Distillation: a trained network, the teacher, shows this run's which embeddings to give (docs/training.md)."""

    checkpoint: Optional[str] = Field(None, min_length=1, json_schema_extra=NOT_TRAINING)
    """Folder of the teacher's run, whose newest checkpoint is taken, or of a checkpoint; null: no teacher. Samples and
    embedding size must be those of this run. A resumed run must have the same teacher."""
    weight: float = Field(10.0, ge=0, le=10_000)
    """Factor on 1 - cosine between the embedding and the teacher's of the same sample, which is added to the head's loss.
    0: only the centres are the teacher's, which costs no forward pass of its network."""
    centres: bool = True
    """Take the teacher's class centres, by name, and leave them as they are. A class that it does not know has the mean
    of the teacher's embeddings of its images. false: centres of the run's own."""

    @field_validator("weight", "centres")
    @classmethod
    def _has_a_teacher(cls, value: Union[float, bool], info: ValidationInfo) -> Union[float, bool]:
        if info.data.get("checkpoint", "") is None:
            raise ValueError("has no meaning without Teacher.checkpoint")
        return value

    @field_validator("centres")
    @classmethod
    def _takes_something(cls, value: bool, info: ValidationInfo) -> bool:
        if not value and info.data.get("weight") == 0:
            raise ValueError("must be true where Teacher.weight is 0, or nothing is taken from the teacher")
        return value

    @property
    def freezes_centres(self) -> bool:
        """Whether the class centres are the teacher's and stay so."""
        return self.checkpoint is not None and self.centres

    def applies(self, key: str) -> bool:
        return key == "checkpoint" or self.checkpoint is not None


class LRSchedulerCfg(Section):
    """The learning rate over the run: a linear warm-up, then the named schedule down to the last step."""

    only_with = {
        "milestones": ("step",),
        "boundaries": ("step",),
        "gamma": ("step",),
        "power": ("poly",),
        "min_factor": ("poly", "cosine"),
    }
    exclusive = (("warmup_epochs", "warmup_steps"), ("milestones", "boundaries"))

    name: Literal["constant", "step", "poly", "cosine"] = "cosine"
    """constant; step: times `gamma` at each milestone; poly: `(1 - progress) ** power`; cosine: half a
    cosine."""
    learning_rate: float = Field(0.1, gt=0)
    """The rate at the end of the warm-up. Change it in proportion to the global batch, batch_size x
    ranks."""
    warmup_epochs: float = Field(0.0, ge=0, le=10**9)
    """Epochs, fractions too, in which the rate rises linearly from 0. Give this or `warmup_steps`."""
    warmup_steps: Optional[int] = Field(None, ge=0)
    """The same in steps."""
    milestones: list[Annotated[float, Field(gt=0, le=10**9)]] = []
    """Epochs, fractions too, at which the rate drops, in rising order: `[10, 16, 18]`."""
    boundaries: list[PositiveInt] = []
    """The same in steps."""
    gamma: float = Field(0.1, gt=0, le=1)
    """Factor on the rate at each milestone."""
    power: float = Field(2.0, gt=0, le=100)
    """Exponent of poly: 1 is a straight line, 2 falls faster at first."""
    min_factor: float = Field(0.0, ge=0, le=1)
    """Lowest rate as a fraction of `learning_rate`."""

    @field_validator("milestones", "boundaries")
    @classmethod
    def _rising(cls, value: list[float]) -> list[float]:
        if any(later <= earlier for earlier, later in zip(value, value[1:])):
            raise ValueError("must be in rising order")
        return value

    @model_validator(mode="after")
    def _steps_somewhere(self) -> "LRSchedulerCfg":
        if self.name == "step" and not (self.milestones or self.boundaries):
            raise ValueError("step needs milestones, for example [10, 16, 18], or boundaries")
        return self


class DatasetCfg(Plug):
    """A class of the registry of data sets."""

    registry = DATASETS

    @classmethod
    def hint(cls, name: str, key: str, text: str) -> str:
        """Name the data sets that have the key that the class `name` lacks."""
        if not text.startswith("unknown key"):
            return ""
        owners = [
            other
            for other in DATASETS.builtin
            if cls.may_name(other) and key in arguments_of(DATASETS.get(other))[0]
        ]
        if not owners:
            return ""
        return f"; these are the keys of {name}; give name: {' or '.join(owners)} for '{key}'"

    @classmethod
    def may_name(cls, name: str) -> bool:
        """Say whether a data set may be named here."""
        return True


class TrainDatasetCfg(DatasetCfg):
    """The images to train on. Further keys are keyword arguments of the class; its docstring explains
    them. A list of such mappings trains on several sets together (docs/data.md)."""

    # The seed of an Eval set is a key of its own: runs with different seeds must have comparable results.
    supplied = {"seed": "Global.seed"}

    @classmethod
    def hint(cls, name: str, key: str, text: str) -> str:
        if key in JoinedDatasetCfg.model_fields and cls is TrainDatasetCfg:
            return "; weight and head are keys of the items of a list of data sets"
        return super().hint(name, key, text)

    @classmethod
    def may_name(cls, name: str) -> bool:
        return hasattr(DATASETS.get(name), "sample")  # labelled images; pairs have image()

    name: str = "Glyphs"
    """`Glyphs`, characters drawn at run time; your images in a list file (`ImageList`), in a folder for each
    identity (`ImageFolder`) or in a .rec file (`RecImages`); `IdxImages`, the
    files of MNIST and Fashion-MNIST; `Synthetic`, noise for measuring speed; a name that you registered; or
    your own class as `package.module:Class`. The number of classes is read from the data; docs/data.md has
    examples."""


class JoinedDatasetCfg(TrainDatasetCfg):
    """Each of the mappings of a list of data sets to train on has the keys of a single one, and these."""

    weight: Optional[float] = Field(None, gt=0, le=10**9)
    """Its share of the samples of an epoch, over the sum of all weights: give each set one, or none. null: the
    number of its samples, so that an epoch has every sample once."""
    head: Literal["merge", "own"] = "merge"
    """merge: identities of the same name are one class in all sets that are merged. own: the set
    has a softmax of its own, over its own classes only, since the same person may have another class in another set."""


def _one_or_several(value: Any) -> Optional[str]:
    """Say which alternative of TrainCfg.dataset a value is to be checked by."""
    return UNION_TAGS[isinstance(value, list)] if isinstance(value, (dict, list, Section)) else None


class EvalDatasetCfg(DatasetCfg):
    """What to evaluate on: pairs of images to verify, or labelled images of the trained classes, whose classes
    the head predicts. Further keys are keyword arguments of the class; its docstring explains them.
    `dataset: null` evaluates nothing."""

    name: str = "GlyphPairs"
    """`GlyphPairs`, pairs of characters that training never sees; pairs named in a file (`PairList`), in a .bin
    pack (`BinPairs`) or drawn from labelled images (`ImagePairs`); IJB's templates (`IjbPairs`); a search in a
    gallery (`GalleryProbe`); the ranking of a gallery for queries (`QueryGallery`); any data set that `Train.dataset` may name; a name that you registered; or your own
    class as `package.module:Class`. Where it is not written and training has other images than `Glyphs`, nothing is
    evaluated."""


class SamplerCfg(Section):
    """Which samples an epoch has, and in which order; the same on any number of ranks (docs/data.md)."""

    only_with = {"per_class": ("balanced",), "samples": ("pk",)}

    name: Literal["shuffle", "balanced", "pk"] = "shuffle"
    """shuffle: every sample once. balanced: every class equally often, however many images it has. pk: in every
    step a number of images of each of a number of classes."""
    per_class: Optional[int] = Field(None, ge=1)
    """Samples of each class in an epoch. null: the mean number of a class, rounded, so that the epoch is about as long
    as the set."""
    samples: int = Field(4, ge=1)
    """K of P x K: samples of each class in a step. The global batch is a multiple of it; P is the quotient."""


class TrainCfg(Section):
    """Training data. One step takes `batch_size` x `accumulate` x ranks samples, the global batch."""

    dataset: Annotated[
        Union[
            Annotated[TrainDatasetCfg, Tag(UNION_TAGS[0])],
            Annotated[list[JoinedDatasetCfg], Tag(UNION_TAGS[1])],
        ],
        Discriminator(_one_or_several),
    ] = TrainDatasetCfg()
    without: list[str] = []
    """Names of classes whose images are left out (docs/finetune.md). A name that no class has is refused."""
    corrections: list[str] = []
    """Lists of wrong labels in `dataset`, as `plsc doctor --trained` writes them, each of the data that the one before leaves:
    `[corrections.tsv]` (docs/data.md)."""
    sampler: SamplerCfg = SamplerCfg()
    batch_size: int = Field(128, ge=1)
    """Samples per rank that go through the backbone at once. Lower it when memory runs out, and raise `accumulate`, or
    lower the learning rate with it."""
    accumulate: int = Field(1, ge=1)
    """Such batches per rank in one optimizer step: the global batch of more ranks or larger memory, at about a third
    more time (docs/large.md). The head sees all samples of the step at once; only BatchNorm's statistics are those of
    `batch_size` samples."""
    num_classes: Optional[int] = Field(None, ge=1, json_schema_extra=NOT_TRAINING)
    """A check only: refuse data with another number of classes. null takes what the data has. `--stand-in` makes
    noise of so many classes."""
    num_samples: Optional[int] = Field(None, ge=1, json_schema_extra=NOT_TRAINING)
    """A check only: refuse data with another number of samples. null takes what the data has. `--stand-in` makes so
    many."""
    global_batch: Optional[int] = Field(None, ge=1, json_schema_extra=NOT_TRAINING)
    """The samples of all ranks in one step, which the learning rate is meant for (docs/recipes.md). Without
    `keep_global_batch` a check only: refuse a number of ranks with which a step takes another number of samples.
    `--dry-run` and `plsc plan` plan for the ranks that it takes."""
    keep_global_batch: bool = Field(False, json_schema_extra=NOT_TRAINING)
    """Take `global_batch` samples in a step on any number of ranks: they are shared out evenly, and each rank's share
    goes through the backbone in as few micro-batches of `batch_size` samples as it needs (docs/resume.md)."""
    num_workers: int = Field(0, ge=0, json_schema_extra=NOT_TRAINING)
    """Processes per rank that prepare batches; 0 uses a thread. Raise it when the images per second are bound
    by the data; the batches stay the same."""
    max_corrupt: float = Field(0.01, ge=0, lt=1, json_schema_extra=NOT_TRAINING)
    """Share of a rank's images of an epoch that may be replaced by others because they cannot be decoded; each is
    named in the log. More than that ends the run, if possible before its first step. 0 ends it at the first one."""

    @property
    def sets(self) -> list[TrainDatasetCfg]:
        """The data sets to train on: one, or those of the list."""
        return self.dataset if isinstance(self.dataset, list) else [self.dataset]

    @property
    def weights(self) -> Optional[list[float]]:
        """The weights of the sets of a list; None where they have none."""
        weights = [section.weight for section in self.sets if isinstance(section, JoinedDatasetCfg)]
        return weights if len(weights) > 1 and None not in weights else None

    @field_validator("dataset")
    @classmethod
    def _all_or_none_weighted(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        if not value:
            raise ValueError("must name at least one data set")
        without = [number for number, section in enumerate(value) if section.weight is None]
        if 0 < len(without) < len(value):
            raise ValueError(
                f"item {without[0]} has no weight, others have one; give all of them one, or none"
            )
        return value

    @field_validator("sampler")
    @classmethod
    def _one_order(cls, value: SamplerCfg, info: ValidationInfo) -> SamplerCfg:
        sets = info.data.get("dataset")
        weighted = isinstance(sets, list) and len(sets) > 1 and sets[0].weight is not None
        if weighted and value.name != "shuffle":
            raise ValueError(
                f"{value.name} draws by class, from all sets alike: leave out the weights of the data sets, or set shuffle"
            )
        return value

    @field_validator("accumulate")
    @classmethod
    def _two_samples_at_once(cls, value: int, info: ValidationInfo) -> int:
        if value > 1 and info.data.get("batch_size", 2) < 2:
            raise ValueError("needs a batch_size of at least 2, which BatchNorm takes")
        return value

    @field_validator("global_batch")
    @classmethod
    def _whole_ranks(cls, value: Optional[int], info: ValidationInfo) -> Optional[int]:
        of_rank = info.data.get("batch_size", 1) * info.data.get("accumulate", 1)
        if value is not None and value % of_rank:
            raise ValueError(
                f"must be a multiple of what a rank takes in a step, batch_size x accumulate = {of_rank}"
            )
        return value

    @field_validator("keep_global_batch")
    @classmethod
    def _of_a_global_batch(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("global_batch", 1) is None:
            raise ValueError("needs the number of samples to keep; state global_batch")
        return value

    @field_validator("num_workers")
    @classmethod
    def _few(cls, value: int) -> int:
        return few_for_this_machine(value)

    @property
    def planned_ranks(self) -> int:
        """The number of ranks that `global_batch` takes; 1 without it."""
        of_rank = self.batch_size * self.accumulate
        return (self.global_batch or of_rank) // of_rank

    def global_batch_on(self, ranks: int) -> int:
        """Return the samples of all of so many ranks in one step."""
        return self.global_batch if self.keep_global_batch else self.batch_size * self.accumulate * ranks

    def micro_batches_on(self, ranks: int) -> list[list[int]]:
        """Return the samples of each micro-batch of a step, by rank: as many of them on each, the largest first."""
        shares = [stop - start for start, stop in split(self.global_batch_on(ranks), ranks)]
        count = count_micro_batches(shares, self.batch_size)
        return [[stop - start for start, stop in split(share, count)] for share in shares]


class EvalCfg(Section):
    """Evaluation data.

    `dataset` is the main set: it decides which checkpoint is the best, and the threshold.
    """

    dataset: Optional[EvalDatasetCfg] = EvalDatasetCfg()
    more: dict[str, EvalDatasetCfg] = {}
    """Further sets to evaluate on, each under the title that it gets in logs and reports, with the keys of
    `dataset`: `{cfp_fp: {name: BinPairs, path: cfp_fp.bin}}`."""
    batch_size: int = Field(256, ge=1)
    """Images per rank in one forward pass. No result depends on it."""
    flip: bool = False
    """Embed each image and its mirror image, and take both together, as InsightFace's evaluation does: a little
    more accurate, twice the time. The threshold is for embeddings made in the same way; `predict` makes them so
    too."""

    @model_validator(mode="after")
    def _main_first(self) -> "EvalCfg":
        if self.more and self.dataset is None:
            raise ValueError(
                "more needs a main set in dataset, which is null; name one there, or set more to {}"
            )
        return self


class DataLoaderCfg(Section):
    """Where images come from, and how many at a time."""

    Train: TrainCfg = TrainCfg()
    Eval: EvalCfg = Field(EvalCfg(), json_schema_extra=NOT_TRAINING)

    def sets(self) -> dict[KeyPath, DatasetCfg]:
        """Return the data sets by their paths in a config, those to train on first."""
        sets: dict[KeyPath, DatasetCfg] = {}
        if isinstance(self.Train.dataset, list):
            sets.update({(*TRAIN_SET, number): section for number, section in enumerate(self.Train.dataset)})
        else:
            sets[TRAIN_SET] = self.Train.dataset
        if self.Eval.dataset:
            sets[EVAL_SET] = self.Eval.dataset
        sets.update({(*MORE_SETS, title): section for title, section in self.Eval.more.items()})
        return sets


class CheckpointCfg(Section):
    """Checkpoints are folders under `output_dir`/checkpoints, each whole or absent."""

    every_steps: Optional[int] = Field(None, ge=1)
    """Steps between two checkpoints, besides those at the end of the epochs and of the run. Set it when an
    epoch takes hours. null writes at the ends only."""
    keep: int = Field(3, ge=1)
    """Newest checkpoints to keep; older ones are deleted, but for the best one of the main evaluation."""


class ExportCfg(Section):
    """The backbone as a file for other programs; every export is compared with the trained network."""

    formats: list[Literal["paddle", "onnx", "onnx_int8", "insightface", "paddlex"]] = Field(
        ["paddle", "onnx"], min_length=1
    )
    """paddle: for Paddle Inference; onnx: for ONNX Runtime and others; onnx_int8: the same in 8 bits; insightface, paddlex: for
    these packages (docs/export.md). All but paddle and paddlex need the extra `export`."""
    opset: int = Field(17, ge=7, le=21)
    """Version of the ONNX operators. Lower it for an old runtime."""
    int8_pictures: int = Field(512, ge=1)
    """Pictures of the training set from which onnx_int8 takes the ranges of its numbers."""

    @field_validator("formats")
    @classmethod
    def _once(cls, value: list[str]) -> list[str]:
        if len(set(value)) < len(value):
            raise ValueError("must name each format once")
        return value
