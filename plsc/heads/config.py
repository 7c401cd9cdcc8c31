"""Define the section Head: a section for each margin, with the constants of its class, and one for the plain
softmax.

`Head.name: package.module:Class` is a margin of one's own, whose class is imported, and Paddle with it.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from plsc.utils.registry import Registry, is_import_path
from plsc.utils.section import ClassSection, Section, one_of

_LARGEST = 1.57  # pi / 2; beyond it some angles would be rewarded


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
    ranks, `x` keeps all of them on every rank."""

    name: str = "dist_arcface"
    """The loss: `softmax`, which normalises nothing, or a margin, which works on cosines and makes the
    target's harder to reach (docs/training.md says which to use when); each with `dist_` in front or without.
    Or your own class as `package.module:Class`, which is always sharded (docs/extend.md)."""
    sample_rate: float = Field(1.0, gt=0, le=1)
    """Fraction of the class centres that is drawn anew for each step (Partial FC); they take part in it
    together with all classes of the batch, the others do not. 0.1 makes the head about ten times cheaper;
    worth it from some 100,000 classes on."""
    bank: Literal["device", "host", "disk"] = "device"
    """Where class centres and the state of their optimizer live (docs/training.md). host and disk fetch a
    step's rows: set `sample_rate`."""
    bank_dtype: Literal["float32", "bfloat16"] = "float32"
    """How host and disk keep them; bfloat16 halves memory, file and checkpoint (docs/training.md). Steps
    compute in float32; rows are rounded stochastically when they are written back. A run may be resumed with
    another bank and dtype."""
    bank_folder: str | None = Field(None, min_length=1)
    """Where disk keeps its file, best on the rank's fastest disk. null: `output_dir`. The file has no
    name: it takes all of its space at the start, is gone when the process is, and `df` shows it, not `du`.
    Too little space for it is refused."""
    logits_budget_mb: float | None = Field(None, gt=0, le=10**9)
    """Megabytes per rank for blocks of logits and for exponentials that are kept. More is faster until the
    whole shard fits; less bounds the memory. Results change by rounding only. null: 268 on CPUs, 4295 on
    GPUs."""
    compute_dtype: Literal["float32", "bfloat16"] | None = None
    """What the head rounds its matrix products' inputs to; sums, losses and centres are float32. Faster on
    GPUs, and bfloat16 on processors that have it (AVX512-BF16, AMX: about half the head's time). null:
    bfloat16 where `Global.amp` has it, else float32."""
    init_std: float | None = Field(None, gt=0, le=10)
    """Standard deviation of the initial class centres. null: 0.01 with a margin, sqrt(2 / (D + classes))
    without."""

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
    """A softmax on cosines, with a margin on the target's."""

    scale: float = Field(64.0, gt=0, le=1000)
    """Factor on the cosines before the softmax. With few classes (hundreds) 16 to 32 is worth a try."""
    gradient: Literal["exact", "straight_through"] = "exact"
    """straight_through gives the target logit the gradient that it would have without a margin, as
    InsightFace's published ArcFace does. For comparing runs with theirs."""
    sub_centres: int = Field(1, ge=1, le=16)
    """Centres per class, of which the nearest counts. 3 takes up noisy labels, at three times the memory of
    the head."""
    filter_above: float | None = Field(None, gt=-1, le=1)
    """Cosines with other classes above this count as 0: they are likely the same person under two names. null
    filters nothing; try 0.4 after some epochs."""

    def row_size(self, embedding_size: int) -> int:
        """Return how many numbers a class has."""
        return embedding_size * self.sub_centres

    @property
    def constants(self) -> dict[str, Any]:
        """The keyword arguments of the margin's class."""
        return {key: value for key, value in self if key not in MarginCfg.model_fields}


class ArcFaceCfg(MarginCfg):
    """ArcFace: an angle is added to the target's."""

    name: Literal["arcface", "dist_arcface"] = "dist_arcface"
    margin: MarginSize = 0.5
    """The angle in radians, not degrees. Lower it when the loss stays on a plateau at the start."""


class CosFaceCfg(MarginCfg):
    """CosFace: a number is taken from the target's cosine."""

    name: Literal["cosface", "dist_cosface"]
    margin: MarginSize = 0.35
    """The number."""


class SphereFaceCfg(MarginCfg):
    """SphereFace: the target's angle is multiplied."""

    name: Literal["sphereface", "dist_sphereface"]
    margin: float = Field(1.7, gt=0, le=4)
    """The factor."""


class CombinedCfg(MarginCfg):
    """cos(margin1 theta + margin2) - margin3, ArcFace's equation 4."""

    name: Literal["combined", "dist_combined"]
    margin1: float = Field(1.0, gt=0, le=4)
    """The factor on the angle."""
    margin2: MarginSize = 0.3
    """What is added to the angle."""
    margin3: MarginSize = 0.2
    """What is taken from the cosine."""


class AdaFaceCfg(MarginCfg):
    """AdaFace: the margin follows from the norm of the embedding."""

    name: Literal["adaface", "dist_adaface"]
    margin: MarginSize = 0.4
    """The margin's size."""
    h: float = Field(0.333, gt=0)
    """How strongly the norm counts."""
    momentum: float = Field(0.99, ge=0, lt=1)
    """Share that the running statistics of the norms keep."""


class MagFaceCfg(MarginCfg):
    """MagFace: the margin grows with the norm of the embedding, which is drawn upwards."""

    name: Literal["magface", "dist_magface"]
    low: float = Field(10.0, gt=0)
    """The least norm."""
    high: float = Field(110.0, gt=0, validate_default=True)
    """The greatest norm."""
    low_margin: MarginSize = 0.45
    """The margin at the least norm."""
    high_margin: MarginSize = 0.8
    """The margin at the greatest norm."""
    weight: float = Field(35.0, ge=0, le=10_000)
    """Of the penalty on small norms."""

    @field_validator("high")
    @classmethod
    def _is_above_low(cls, value: float, info: Any) -> float:
        if value <= info.data.get("low", 0):
            raise ValueError(f"must be above low, {info.data['low']:g}")
        return value


class CurricularFaceCfg(MarginCfg):
    """CurricularFace: ArcFace that also changes the cosines of hard other classes."""

    name: Literal["curricularface", "dist_curricularface"]
    margin: MarginSize = 0.5
    """The angle in radians."""
    momentum: float = Field(0.99, ge=0, lt=1)
    """Share that the running mean of the target cosines keeps."""


class OwnMarginCfg(MarginCfg, ClassSection):
    """A margin of one's own; further keys are keyword arguments of its class."""

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
