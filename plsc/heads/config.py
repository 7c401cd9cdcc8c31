"""Define the section Head, and check the margin that it names, and its constants, by the margin's class.

`Head.margin` and `Head.options` are the keyword arguments of the class: its annotations are the types that a
config may give. A built-in class is imported, and Paddle with it, only when there are options to check; a
user's own class always.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from plsc.errors import UserError
from plsc.utils.messages import ConfigProblem, arguments_of, check_keywords, shown, takes
from plsc.utils.registry import MARGINS, did_you_mean, is_import_path
from plsc.utils.section import NOT_TRAINING, Names, NamesClass, Section


def kind_of_head(name: str) -> str:
    """Return `Head.name` without the prefix for sharding: "arcface" of "dist_arcface"."""
    return name if is_import_path(name) else name.removeprefix("dist_")


def is_sharded(name: str) -> bool:
    """Return whether a head of this name is sharded: `dist_x`, or a class by its import path."""
    return is_import_path(name) or name.startswith("dist_")


def is_softmax(name: str) -> bool:
    """Return whether a head of this name is the plain softmax, which has no margin."""
    return kind_of_head(name) == "softmax"


def head_names() -> list[str]:
    """List all values of `Head.name` but import paths: built-in and registered margins, and softmax."""
    kinds = ["softmax", *MARGINS.builtin, *(name for name in MARGINS.names() if name not in MARGINS.builtin)]
    return [prefix + kind for kind in kinds for prefix in ("", "dist_")]


# Facts of the built-in margin classes, repeated here so that reading a config does not import Paddle.
# plsc.config asks the class of any other margin. tests/heads/test_margins.py compares them.
WITHOUT_MARGIN = ("combined", "magface")  # their __init__ takes no `margin`
# Margin.has_others; filter_above changes the other logits, too.
CHANGES_OTHERS = ("curricularface",)

_MARGIN = Names("a margin", lambda name: not is_softmax(name))


class HeadCfg(NamesClass):
    """Everything after the embedding: logits, margin and loss. `dist_x` shards the class centres over the
    ranks, `x` keeps all of them on every rank."""

    only_with = {
        "margin": Names(
            f"a margin other than {' and '.join(WITHOUT_MARGIN)}",
            lambda name: not is_softmax(name) and kind_of_head(name) not in WITHOUT_MARGIN,
        ),
        "options": _MARGIN,
        "scale": _MARGIN,
        "gradient": _MARGIN,
        "sub_centres": _MARGIN,
        "filter_above": Names(
            f"a margin other than {' and '.join(CHANGES_OTHERS)}",
            lambda name: not is_softmax(name) and kind_of_head(name) not in CHANGES_OTHERS,
        ),
        "bias": Names("softmax and dist_softmax", is_softmax),
        "sample_rate": Names("a sharded head (dist_...)", is_sharded),
    }

    name: str = "dist_arcface"
    """The loss: `softmax`, which normalises nothing, or a margin, which works on cosines and makes the
    target's
    harder to reach: `arcface`, `cosface`, `sphereface`, `combined`, `adaface`, `magface`, `curricularface`,
    (docs/training.md says how and when to use which), or one that you registered; each with `dist_` in front
    or without. Or your own class as `package.module:Class`, which is always sharded
    (docs/extend.md)."""
    margin: float | None = Field(None, ge=0, le=4)
    """The margin's size. null: 0.5 radians (not degrees) for arcface and curricularface, 0.35 for cosface, 0.4 for adaface, a
    factor of 1.7 for sphereface. Lower it when the loss stays on a plateau at the start."""
    options: dict[str, Any] = {}
    """Further constants of a margin, `{low: 10, high: 110}`, the keyword arguments of its class: margin1,
    margin2, margin3 of combined; h, momentum of adaface; low, high, low_margin, high_margin, weight of
    magface; momentum of curricularface."""
    gradient: Literal["exact", "straight_through"] = "exact"
    """straight_through gives the target logit the gradient that it would have without a margin, as
    InsightFace's published ArcFace does. For comparing runs with theirs."""
    sub_centres: int = Field(1, ge=1, le=16)
    """Centres per class, of which the nearest counts. 3 takes up noisy labels, at three times the memory of
    the head."""
    filter_above: float | None = Field(None, gt=-1, le=1)
    """Cosines with other classes above this count as 0: they are likely the same person under two names. null
    filters nothing; try 0.4 after some epochs."""
    scale: float = Field(64.0, gt=0, le=1000)
    """Factor on the cosines before the softmax. With few classes (hundreds) 16 to 32 is worth a try."""
    sample_rate: float = Field(1.0, gt=0, le=1)
    """Fraction of the class centres that is drawn anew for each step (Partial FC); they take part in it
    together with all classes of the batch, the others do not. 0.1 makes the head about ten times cheaper;
    worth it from some 100,000 classes on."""
    bank: Literal["device", "host", "disk"] = "device"
    """Where class centres and the state of their optimizer live (docs/recipes.md). host and disk fetch a
    step's
    rows: set `sample_rate`."""
    bank_dtype: Literal["float32", "bfloat16"] = "float32"
    """How host and disk keep them; bfloat16 halves memory, file and checkpoint (docs/recipes.md). Steps
    compute in float32; rows are rounded stochastically when they are written back. A run may be resumed with
    another bank and dtype."""
    bank_folder: str | None = Field(None, min_length=1, json_schema_extra=NOT_TRAINING)
    """Where disk keeps its file, best on the rank's own fastest disk. null: `output_dir`. The file has no
    name: it takes all of its space at the start, is gone when the process is, and `df` shows it, not `du`.
    Too little space for it and one checkpoint is refused."""
    logits_budget_mb: float | None = Field(None, gt=0, le=10**9, json_schema_extra=NOT_TRAINING)
    """Megabytes per rank for blocks of logits. More is faster until the whole shard fits; less bounds the
    memory. Results do not depend on it. null: 256 on CPUs, 4096 on GPUs."""
    compute_dtype: Literal["float32", "bfloat16"] | None = None
    """What the head rounds its matrix products' inputs to; sums, losses and centres are float32. Faster on
    GPUs, and bfloat16 on processors that have it (AVX512-BF16, AMX: about half the head's time). null:
    bfloat16 where `Global.amp` has it, else float32."""
    bias: bool = False
    """Adds one learned number per class to the logits."""
    init_std: float | None = Field(None, gt=0, le=10, json_schema_extra=NOT_TRAINING)
    """Standard deviation of the initial class centres. null: 0.01 with a margin, sqrt(2 / (D + classes))
    without."""

    @field_validator("bank_dtype", "bank_folder")
    @classmethod
    def _fits_the_bank(cls, value: str | None, info: ValidationInfo) -> str | None:
        banks = ("disk",) if info.field_name == "bank_folder" else ("host", "disk")
        bank = info.data.get("bank", "disk")
        if value not in (None, "float32") and bank not in banks:
            raise ValueError(f"has no meaning with the bank {bank}, only with {' and '.join(banks)}")
        return value

    @field_validator("name")
    @classmethod
    def _known_name(cls, value: str) -> str:
        if value not in head_names() and not is_import_path(value):
            raise ValueError(
                f"must be one of {', '.join(head_names())}, or your own as package.module:Class"
                f"{did_you_mean(value, head_names())}"
            )
        return value

    @classmethod
    def of_class(
        cls, written: dict[str, Any], everywhere: Iterable[str]
    ) -> tuple[dict[str, Any], list[ConfigProblem]]:
        name = written.get("name", cls.model_fields["name"].default)
        typed, problems = check_margin(name, written, everywhere)
        return ({"options": {**written["options"], **typed}} if typed else {}), problems

    @property
    def kind(self) -> str:
        """See `kind_of_head`."""
        return kind_of_head(self.name)

    @property
    def sharded(self) -> bool:
        """See `is_sharded`."""
        return is_sharded(self.name)


class _Arguments(Section):
    """A section without fields of its own: a mapping of keyword arguments."""

    supplied: ClassVar[dict[str, str]] = {}


def check_margin(
    name: Any, head: dict[str, Any], everywhere: Iterable[str]
) -> tuple[dict[str, Any], list[ConfigProblem]]:
    """Check margin, options and filter_above of a section Head by the class of the margin that it names.

    Returns the options as the class annotates them, and problems.
    """
    options = head.get("options") or {}
    if not isinstance(name, str) or not isinstance(options, dict) or is_softmax(name):
        return {}, []  # pydantic reports the two
    kind = kind_of_head(name)
    if name not in head_names() and not is_import_path(name) or kind in MARGINS.builtin and not options:
        return {}, []
    try:
        cls = MARGINS.get(kind)
    except UserError as error:
        sharded = is_import_path(name) and name.startswith("dist_")
        hint = "; a class by its import path is sharded without 'dist_'" if sharded else ""
        return {}, [ConfigProblem(("name",), f"{error}{hint}")]
    problems = list(_combinations(cls, kind, head, options))
    if problems:
        return {}, problems
    margin = {} if head.get("margin") is None else {"margin": head["margin"]}
    values, problems = check_keywords(_Arguments, cls, {**options, **margin}, everywhere)
    values.pop("margin", None)
    placed = [
        ConfigProblem(path if path[:1] == ("margin",) else ("options", *path), message)
        for path, message in problems
    ]
    return values, placed


def takes_options(name: Any) -> bool:
    """Return whether the margin that Head.name names has further constants; True where that cannot be
    known."""
    try:
        return not isinstance(name, str) or bool(_options_of(MARGINS.get(kind_of_head(name))))
    except UserError:
        return True


def _options_of(cls: type) -> list[str]:
    """List the keyword arguments of a margin's class without `margin`; "..." stands for `**options`."""
    named, takes_any = arguments_of(cls)
    return [name for name in named if name != "margin"] + ["..."] * takes_any


def _combinations(
    cls: type, kind: str, head: dict[str, Any], options: dict[str, Any]
) -> Iterator[ConfigProblem]:
    """Yield a problem for each key that is valid alone but has no meaning with the others."""
    if head.get("margin") is not None and not takes(cls, "margin"):
        rule = f"has no meaning with {kind}, whose class takes no 'margin'"
        yield ConfigProblem(("margin",), f"{rule} (got {shown(head['margin'])})")
    if "margin" in options:
        yield ConfigProblem(
            ("options",), f"'margin' is a key of its own: set Head.margin (got {shown(options)})"
        )
    elif options and not _options_of(cls):
        yield ConfigProblem(
            ("options",), f"has no meaning with {kind}, which has none (got {shown(options)})"
        )
    if head.get("filter_above") is not None and cls.has_others and kind not in MARGINS.builtin:
        rule = f"has no meaning with {kind}, which changes the other classes' logits itself"
        yield ConfigProblem(("filter_above",), f"{rule} (got {shown(head['filter_above'])})")


def format_rows(head: HeadCfg, moments: Sequence[str], classes: int, embedding_size: int) -> str:
    """Format the memory that so many classes take on a rank, and where it is. moments: the arrays that their
    optimizer keeps beside the centres."""
    arrays = ["centres", *moments]
    if head.bank == "device":
        size = rows_bytes(head, len(arrays) + 1, classes, embedding_size) / 2**20
        return f"{size:.1f} MB for {', '.join(arrays)} and gradient"
    size = rows_bytes(head, len(arrays), classes, embedding_size) / 2**20
    where = "on the disk" if head.bank == "disk" else "in host memory"
    return f"{size:.1f} MB {where} for {', '.join(arrays[:-1])} and {arrays[-1]}"


def rows_bytes(head: HeadCfg, arrays: int, classes: int, embedding_size: int) -> int:
    """Return the bytes of so many arrays of the shape of the centres of so many classes, as the bank keeps
    them."""
    each = 2 if head.bank_dtype == "bfloat16" else 4
    return arrays * each * classes * (embedding_size * head.sub_centres + head.bias)
