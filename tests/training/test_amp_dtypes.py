"""The dtype in which a GPU runs each operation of each backbone under Global.amp, by Paddle's own lists.

There is no GPU here, so Paddle's rule (paddle/fluid/imperative/amp_utils.h) is followed over the network's
program: an operation of the white list takes 16 bits, one of the black list float32, a norm the dtype of its
first input, any other float32 if one of its inputs is. Parameters are float32.
"""

from __future__ import annotations

import collections
import re

import paddle
import pytest
from paddle.amp import amp_lists

from plsc.backbones.config import BACKBONES
from tests.helpers.launch import ROOT

NORMS = ("batch_norm", "layer_norm")
PAGE = (ROOT / "docs/labbook.md").read_text(encoding="utf-8")

needs_programs = pytest.mark.skipif(
    not hasattr(paddle.base.core, "_get_amp_attrs"),
    reason="Paddle 2.6 has no programs whose values have dtypes",
)


def list_name(operation: str) -> str:
    """Its name in the lists."""
    plain = operation.removeprefix("pd_op.").rstrip("_")
    return {"linear": "linear_v2", "sum": "reduce_sum", "mean": "reduce_mean"}.get(plain, plain)


def rule_of(operation: str, dtype: str) -> str:
    """white, black, or grey."""
    name = list_name(operation)
    for colour, names in (("white", amp_lists.white_list()), ("black", amp_lists.black_list())):
        if name in names[dtype]["O1"]:
            return colour
    return "grey"


def program_of(name: str):
    """The operations of a forward pass in training, in float32, and the embeddings."""
    program = paddle.static.Program()
    paddle.enable_static()
    try:
        with paddle.static.program_guard(program, paddle.static.Program()):
            net = BACKBONES.get(name)(64, image_shape=(3, 32, 32))
            net.train()
            out = net(paddle.static.data("x", [4, 3, 32, 32], "float32"))
    finally:
        paddle.disable_static()
    return program, out


def dtypes_on_a_gpu(program, out, dtype: str) -> dict[str, set[str]]:
    """Operation -> the dtypes that it runs in; "" is the embeddings'."""
    runs_in: dict[int, str | None] = {}  # value -> dtype; None: no floats, or a constant
    found = collections.defaultdict(set)
    for operation in program.global_block().ops:
        what = operation.name()
        inputs = [runs_in.get(value.id) for value in operation.operands_source() if value.initialized()]
        inputs = [each for each in inputs if each]
        if what in ("builtin.parameter", "pd_op.data"):
            result = "float32"
        elif not inputs:
            result = None
        elif (rule := rule_of(what, dtype)) != "grey":
            result = dtype if rule == "white" else "float32"
        elif what == "pd_op.cast":
            result = "float32"  # ours, in front of the last norm
        elif list_name(what) in NORMS:
            result = inputs[0]
        else:
            result = "float32" if "float32" in inputs else dtype
        for value in operation.results():
            runs_in[value.id] = result if "f32" in str(value.type()) else None
        if result and what.startswith("pd_op."):
            found[list_name(what)].add(result)
    found[""] = {runs_in[out.id]}
    return dict(found)


H, F = "16 bits", "float32"
RUNS_IN = {
    "IResNet18": {"conv2d": {H}, "batch_norm": {H, F}, "prelu": {F}, "add": {H, F}, "matmul": {H}, "": {F}},
    "FaceViT_tiny": {
        "conv2d": {H},
        "matmul": {H},
        "softmax": {F},
        "layer_norm": {F},
        "add": {F},
        "relu6": {F},
        "batch_norm": {H},
        "": {H},
    },
    "MobileFaceNet": {
        "conv2d": {H},
        "depthwise_conv2d": {F},
        "batch_norm": {H, F},
        "prelu": {F},
        "add": {H},
        "matmul": {H},
        "": {H},
    },
    "SmallResNet": {"conv2d": {H}, "batch_norm": {H}, "relu": {H}, "add": {H}, "matmul": {H}, "": {H}},
    "LeNet": {"conv2d": {H}, "add": {F}, "relu": {F}, "pool2d": {F}, "matmul": {H}, "": {F}},
}
ANY_DTYPE = {  # they move numbers, or are of the random numbers that hide patches
    *(
        "data",
        "flatten",
        "reshape",
        "transpose",
        "expand",
        "unbind",
        "concat",
        "gather",
        "take_along_axis",
        "shape64",
    ),
    *("cast", "multiply", "scale", "dropout"),
}


@needs_programs
@pytest.mark.parametrize("name", RUNS_IN)
def test_what_runs_in_which_dtype(name):
    given = program_of(name)
    for dtype in ("bfloat16", "float16"):
        found = dtypes_on_a_gpu(*given, dtype)
        named = {what: {H if each == dtype else each for each in runs} for what, runs in found.items()}
        assert {what: runs for what, runs in named.items() if what not in ANY_DTYPE} == RUNS_IN[name]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_page_says_what_the_lists_say(dtype):
    rows = re.findall(r"^\| (`.+?) \| (.+?) \| (.+?) \|$", PAGE[PAGE.index("| operation |") :], re.MULTILINE)
    said = {name: (runs, why) for names, runs, why in rows for name in re.findall(r"`(\w+)`", names)}
    assert {what for runs in RUNS_IN.values() for what in runs} - {""} <= said.keys()
    for name, (runs, why) in said.items():
        rule = rule_of({"matmul": "matmul_v2"}.get(name, name), dtype)
        assert why.startswith({"white": "white list", "black": "black list"}.get(rule, "")), name
        assert (rule == "grey") == ("list" not in why or "not listed" in why), name
        assert {"white": H, "black": F}.get(rule, runs) == runs, name


def test_the_last_norm_of_iresnet_reads_float32(monkeypatch):
    """Paddle's GPU operator would read 16 bits as float32 there, since it has no gain."""
    read = []
    batch_norm = paddle.nn.functional.batch_norm

    def recorded(x, *args, **options):
        read.append(x.dtype)
        return batch_norm(x, *args, **options)

    norm = BACKBONES.get("IResNet18")(8, image_shape=(1, 16, 16)).features
    x = paddle.rand([6, 8])
    wanted = norm(x.astype("float16").astype("float32"))
    monkeypatch.setattr(paddle.nn.functional, "batch_norm", recorded)
    assert norm(x.astype("float16")).numpy().tobytes() == wanted.numpy().tobytes() and read == [
        paddle.float32
    ]
