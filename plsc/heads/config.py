"""Define the section Head. Each margin has its own section with its class's constants, and the plain
softmax has one too.

`Head.name: package.module:Class` names a margin that the user wrote. Its class is imported, and Paddle with
it.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from plsc.utils.registry import Registry, is_import_path
from plsc.utils.section import ClassSection, Section, one_of

_LARGEST = 1.57  # pi / 2. A larger angle would reward some angles.


def _in_radians(size: Any) -> Any:
    if isinstance(size, int | float) and size > _LARGEST:
        raise ValueError(f"must be at most {_LARGEST} (pi / 2): angles are in radians, not in degrees")
    return size


MarginSize = Annotated[float, Field(ge=0, le=_LARGEST), BeforeValidator(_in_radians)]

MARGINS = Registry(
    "margin",
    {
        "arcface": "plsc.heads.margins:ArcFace",
        "cosface": "plsc.heads.margins:CosFace",
        "sphereface": "plsc.heads.margins:SphereFace",
        "combined": "plsc.heads.margins:CombinedMargin",
        "adaface": "plsc.heads.adaptive:AdaFace",
        "magface": "plsc.heads.adaptive:MagFace",
        "curricularface": "plsc.heads.adaptive:CurricularFace",
    },
    bases=("plsc.heads.margins:Margin",),
)


class HeadCfg(Section):
    """Everything after the embedding: logits, margin and loss. `dist_x` shards the class centres over the
    ranks. `x` keeps all on every rank."""

    name: str = "dist_arcface"
    """The loss's name, with or without the prefix `dist_`. `softmax` normalises nothing. A margin works on
    cosines and makes the target harder to reach (docs/training.md says which to use when). Your own class is
    `package.module:Class`, and is always sharded (docs/extend.md)."""
    sample_rate: float = Field(1.0, gt=0, le=1)
    """Fraction of class centres that is drawn for each step (Partial FC). A step uses the drawn classes
    and all classes in the batch. 0.1 makes the head about ten times cheaper. This pays off with 100,000
    classes or more."""
    bank: Literal["device", "host", "disk"] = "device"
    """Where class centres and their optimizer state are stored (docs/training.md). host and disk
    fetch each step's rows, so set `sample_rate`."""
    bank_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype in which host and disk store the rows. bfloat16 halves memory, file and checkpoint
    (docs/training.md). Steps compute in float32. Rows are rounded stochastically when they are written back.
    A run may be resumed with another bank and dtype."""
    bank_folder: str | None = Field(None, min_length=1)
    """Folder for the disk bank's file. Choose the rank's fastest disk. null means `output_dir`. The file
    takes its whole space at the start, and disappears when the process ends. It has no name, so `df`
    shows it and `du` does not. The run is refused if the disk has too little space."""
    logits_budget_mb: float | None = Field(None, gt=0, le=10**9)
    """Megabytes per rank for blocks of logits and for kept exponentials. More is faster until the whole shard
    fits. Less saves memory. Results change by rounding only. null means 268 on CPUs and 4295 on GPUs."""
    compute_dtype: Literal["float32", "bfloat16"] | None = None
    """Dtype to which the head rounds the inputs to its matrix products. Sums, losses and centres are float32.
    bfloat16 is faster on GPUs, and on processors that support it (AVX512-BF16, AMX: about half the head's
    time). null means bfloat16 if `Global.amp` is bfloat16, otherwise float32."""
    init_std: float | None = Field(None, gt=0, le=10)
    """The initial class centres' standard deviation. null means 0.01 with a margin, and sqrt(2 / (D +
    classes)) without."""

    @field_validator("sample_rate")
    @classmethod
    def _is_sharded(cls, value: float, info: Any) -> float:
        name = info.data.get("name", "dist_")
        if value < 1 and not (is_import_path(name) or name.startswith("dist_")):
            raise ValueError(f"has no meaning with {name}, only with a sharded head (dist_...)")
        return value

    @field_validator("bank_dtype", "bank_folder")
    @classmethod
    def _fits_the_bank(cls, value: str | None, info: Any) -> str | None:
        banks = ("disk",) if info.field_name == "bank_folder" else ("host", "disk")
        bank = info.data.get("bank", "disk")
        if value not in (None, "float32") and bank not in banks:
            raise ValueError(f"has no meaning with the bank {bank}, only with {' and '.join(banks)}")
        return value

    @property
    def kind(self) -> str:
        """The name without the prefix for sharding: "arcface" of "dist_arcface"."""
        return self.name if is_import_path(self.name) else self.name.removeprefix("dist_")

    @property
    def sharded(self) -> bool:
        """Whether the classes are split over the ranks: `dist_x`, or a class by its import path."""
        return is_import_path(self.name) or self.name.startswith("dist_")


class SoftmaxCfg(HeadCfg):
    """The plain softmax on unnormalised logits."""

    name: Literal["softmax", "dist_softmax"]
    bias: bool = False
    """Adds one learned number per class to the logits."""

    def row_size(self, embedding_size: int) -> int:
        """Return how many numbers a class has."""
        return embedding_size + self.bias


class MarginCfg(HeadCfg):
    """A softmax on cosines, with a margin on the target."""

    scale: float = Field(64.0, gt=0, le=1000)
    """Factor on the cosines before the softmax. With few classes (hundreds), try 16 to 32."""
    gradient: Literal["exact", "straight_through"] = "exact"
    """straight_through gives the target logit the gradient that it would have without a margin. InsightFace's
    published ArcFace does the same. Use it to compare runs with theirs."""
    sub_centres: int = Field(1, ge=1, le=16)
    """Centres per class. Only the nearest one counts. 3 helps with noisy labels, and triples the
    head's memory."""
    filter_above: float | None = Field(None, gt=-1, le=1)
    """A cosine with another class above this limit counts as 0, because the class is likely the same person
    under two names. null filters nothing. Try 0.4 after some epochs."""

    def row_size(self, embedding_size: int) -> int:
        """Return how many numbers a class has."""
        return embedding_size * self.sub_centres

    @property
    def constants(self) -> dict[str, Any]:
        """Keyword arguments for the margin's class."""
        return {key: value for key, value in self if key not in MarginCfg.model_fields}


class ArcFaceCfg(MarginCfg):
    """ArcFace: adds an angle to the target's angle."""

    name: Literal["arcface", "dist_arcface"] = "dist_arcface"
    margin: MarginSize = 0.5
    """Angle in radians, not degrees. Lower it if the loss stays on a plateau at the start."""


class CosFaceCfg(MarginCfg):
    """CosFace: subtracts a number from the target's cosine."""

    name: Literal["cosface", "dist_cosface"]
    margin: MarginSize = 0.35
    """Number to subtract."""


class SphereFaceCfg(MarginCfg):
    """SphereFace: multiplies the target's angle."""

    name: Literal["sphereface", "dist_sphereface"]
    margin: float = Field(1.7, gt=0, le=4)
    """Factor on the angle."""


class CombinedCfg(MarginCfg):
    """cos(margin1 theta + margin2) - margin3, ArcFace's equation 4."""

    name: Literal["combined", "dist_combined"]
    margin1: float = Field(1.0, gt=0, le=4)
    """Factor on the angle."""
    margin2: MarginSize = 0.3
    """Angle to add, in radians."""
    margin3: MarginSize = 0.2
    """Number to subtract from the cosine."""


class AdaFaceCfg(MarginCfg):
    """AdaFace: the margin depends on the embedding's norm."""

    name: Literal["adaface", "dist_adaface"]
    margin: MarginSize = 0.4
    """The margin."""
    h: float = Field(0.333, gt=0)
    """How strongly the norm acts."""
    momentum: float = Field(0.99, ge=0, lt=1)
    """Share that the norms' running statistics keep."""


class MagFaceCfg(MarginCfg):
    """MagFace: the margin grows with the embedding's norm, and a penalty pulls the norms upwards."""

    name: Literal["magface", "dist_magface"]
    low: float = Field(10.0, gt=0)
    """Smallest norm."""
    high: float = Field(110.0, gt=0, validate_default=True)
    """Largest norm."""
    low_margin: MarginSize = 0.45
    """Margin in radians at the smallest norm."""
    high_margin: MarginSize = 0.8
    """Margin in radians at the largest norm."""
    weight: float = Field(35.0, ge=0, le=10_000)
    """Weight for the penalty on small norms."""

    @field_validator("high")
    @classmethod
    def _is_above_low(cls, value: float, info: Any) -> float:
        if value <= info.data.get("low", 0):
            raise ValueError(f"must be above low, {info.data['low']:g}")
        return value


class CurricularFaceCfg(MarginCfg):
    """CurricularFace: ArcFace that also changes hard other classes' cosines."""

    name: Literal["curricularface", "dist_curricularface"]
    margin: MarginSize = 0.5
    """Angle in radians."""
    momentum: float = Field(0.99, ge=0, lt=1)
    """Share that the running mean of the target cosines keeps."""


class OwnMarginCfg(MarginCfg, ClassSection):
    """A margin that the user wrote. Other keys are its class's keyword arguments."""

    registry = MARGINS
    name: str


AnyHead = one_of(
    ArcFaceCfg,
    SoftmaxCfg,
    CosFaceCfg,
    SphereFaceCfg,
    CombinedCfg,
    AdaFaceCfg,
    MagFaceCfg,
    CurricularFaceCfg,
    OwnMarginCfg,
)
