"""Every function that calls a kernel, or oneDNN, refuses arrays that the kernel would take for others.

A kernel gets addresses. If an array is too short, of another type or not contiguous, it reads and writes
memory of others. `CALLS` has each such function with good arrays. The test replaces the kernels, hands over
the good arrays but one, and wants an AssertionError from the caller before any kernel is reached.
"""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple

import numpy as np
import paddle
import pytest

from plsc import native
from plsc.backbones.layers import convolution, layout, normalisation, pointwise, transformer
from plsc.native import onednn
from plsc.native.evaluation import verification
from plsc.native.heads import draws, records, rows, softmax
from tests.helpers.kernel_paths import BUILT

pytestmark = pytest.mark.skipif(not BUILT, reason="the kernels are not built")
K, S, D, N, P = 5, 9, 6, 4, 3  # selected rows, rows, width, samples, targets


class Call(NamedTuple):
    """A function, and arrays that fit it.

    Attributes:
        kernels: the kernels that it reaches; "onednn" stands for any operation.
        function: takes the arrays by name.
        arrays: name -> array or tensor.
        fits: name -> the changes that it allows, see `changed`.
    """

    kernels: set[str]
    function: object
    arrays: dict
    fits: Mapping[str, str] = MappingProxyType({})


def numbers(*shape, dtype="float32"):
    return np.ones(shape, dtype)


def index(count, below):
    return np.arange(count, dtype=np.int64) % below


def tensor(*shape):
    return paddle.ones(shape)


def trained(*shape):
    made = paddle.ones(shape)
    made.stop_gradient = False
    return made


def context():
    """A PyLayer's context outside of autograd."""
    made = SimpleNamespace()
    made.save_for_backward = lambda *tensors: setattr(made, "saved", tensors)
    made.saved_tensor = lambda: made.saved
    return made


def backward(layer, *inputs):
    """Run the forward pass of a layer, and return its backward pass."""
    ctx = context()
    layer.forward(ctx, *inputs)
    return lambda **grads: layer.backward(ctx, *grads.values())


FORWARD = {
    "x_ND": numbers(N, D),
    "rows_SD": numbers(S, D),
    "bias_S": numbers(S),
    "index_K": index(K, S),
    "class_P": index(P, K),
    "sample_P": index(P, N),
    "exps_KN": numbers(K, N),
}
BACKWARD = {
    "lse_N": numbers(N),
    "dtarget_P": numbers(P),
    "scaled_ND": numbers(N, D),
    "drows_KD": numbers(K, D),
    "dbias_K": numbers(K),
}
PICTURES = (2, 5, 4, 3)  # [N, H, W, C]
TOKENS = (2, 5, 6)  # [B, N, W]
STEPS = convolution._Steps((1, 1), (1, 1), (1, 1), 1)
NORM = paddle.nn.BatchNorm2D(3)


def update(rule, moments, count):
    def call(values_SD, index_K, grads_KD, **states):
        rows.update(rule, values_SD, [*states.values()], index_K, grads_KD, (0.1,) * count)

    states = {f"moment {number}": numbers(S, D) for number in range(moments)}
    arrays = {"values_SD": numbers(S, D), "index_K": index(K, S), "grads_KD": numbers(K, D), **states}
    return Call({f"plsc_{rule}"}, call, arrays)


def normalise(kind, **arrays):
    def call(x, skip, weight, bias, slope, mean, variance):
        norm = SimpleNamespace(training=True, _epsilon=1e-5, _momentum=0.9, _mean=mean, _variance=variance)
        normalisation._Normalise.forward(context(), x, skip, weight, bias, slope, norm, kind)

    alone = "" if kind == normalisation._RELU else "row "  # there is no sum
    return Call({"plsc_norm_forward"}, call, arrays, {"x": f"{alone}gaps", "skip": "gaps"})


def pair_of(shape_of_out, make, *key):
    """A layer that is a pair of operations, forward, and backward."""
    forward = lambda x: pointwise._Pair.forward(context(), x, shape_of_out(x), make, *key)
    yield Call({"onednn"}, forward, {"x": tensor(*PICTURES)}, {"x": "row column dimension gaps"})
    x = tensor(*PICTURES)
    yield of_gradient(pointwise._Pair, x, shape_of_out(x), make, *key, grad=tensor(*shape_of_out(x)))


def of_gradient(layer, *inputs, grad, kernels=("onednn",)):
    """A backward pass."""
    return Call({*kernels}, backward(layer, *inputs), {"grad": grad}, {"grad": "gaps"})


def of_heads():
    yield (
        "unit_rows",
        Call(
            {"plsc_unit_rows"},
            rows.unit_rows,
            {"rows_KD": numbers(K, D), "unit_KD": numbers(K, D), "inverse_K": numbers(K)},
            {"inverse_K": "dimension"},
        ),
    )
    yield (
        "turn_units",
        Call(
            {"plsc_turn_units"},
            rows.turn_units,
            {name: numbers(K, D) for name in ("grad_KD", "unit_KD", "out_KD")} | {"factor_K": numbers(K)},
            {"factor_K": "dimension"},
        ),
    )
    gathered = {"rows_SD": numbers(S, D), "index_K": index(K, S), "out_KD": numbers(K, D)}
    yield "gather", Call({"plsc_gather"}, rows.gather, gathered, {"rows_SD": "row"})
    yield "momentum", update("momentum", 1, 4)
    yield "lars", update("lars", 1, 3)
    yield "adamw", update("adamw", 2, 8)
    yield (
        "pair_products",
        Call(
            {"plsc_pair_products"},
            lambda **arrays: rows.pair_products(**arrays, unit=True),
            {"x_ND": numbers(N, D), "left_P": index(P, 2), "rows_SD": numbers(S, D), "right_P": index(P, S)},
            {"rows_SD": "row", "x_ND": "row"},
        ),
    )
    of_any_shape = {"rows_KD": "row column dimension"}
    yield (
        "sum_of_squares",
        Call({"plsc_sum_of_squares"}, rows.sum_of_squares, {"rows_KD": numbers(K, D)}, of_any_shape),
    )
    for act, given in ((records.read_records, "out"), (records.write_records, "records")):
        yield (
            act.__name__,
            Call(
                {f"plsc_{act.__name__}"},
                partial(act, 0),
                {"rows": index(K, S), given: numbers(K, D)},
                {given: "column float64 int32"},  # bytes
            ),
        )
    arrays = {"centres": numbers(S, D), "moments": numbers(S, D), "slots": index(K, S)}
    yield (
        "pack",
        Call(
            {"plsc_pack"},
            lambda centres, moments, slots, keys: records.pack([centres, moments], slots, keys),
            arrays | {"keys": numbers(K, dtype="uint32")},
            {"centres": "row column", "moments": "row column"},
        ),
    )
    yield (
        "unpack",
        Call(
            {"plsc_unpack"},
            lambda centres, moments, slots, kept: records.unpack(kept, [centres, moments], slots),
            arrays | {"kept": numbers(K, 2 * D)},
            {"centres": "row", "moments": "row"},
        ),
    )
    yield (
        "NormalRows",
        Call(
            {"plsc_draw_rows"},
            lambda rows: draws.NormalRows(0, 0, S, D, 1.0, 16)(rows),
            {"rows": index(K, S)},
            {"rows": "row gaps"},
        ),
    )
    yield (
        "Softmax.forward",
        Call(
            {"plsc_softmax_forward"},
            lambda **arrays: softmax.Softmax(**arrays, cosine=False, bfloat16=False).forward(),
            FORWARD,
        ),
    )
    made = softmax.Softmax(**FORWARD, cosine=False, bfloat16=False)
    yield "Softmax.backward", Call({"plsc_softmax_backward"}, made.backward, BACKWARD)


def of_evaluation():
    yield (
        "squared_distances",
        Call(
            {"plsc_squared_distances"},
            verification.squared_distances,
            {"unit_ND": numbers(N, D, dtype="float64"), "pairs_P2": np.zeros((P, 2), np.int64)},
            {"unit_ND": "row column float64", "pairs_P2": "row int32 gaps"},
        ),
    )
    yield (
        "weighted_sums",
        Call(
            {"plsc_weighted_sums"},
            verification.weighted_sums,
            {
                "rows_ND": numbers(N, D),
                "order": index(N, 2),
                "weight": numbers(N, dtype="float64"),
                "starts": np.array([0, 1, 4]),
            },
            {"rows_ND": "row column", "weight": "float64", "starts": "row"},
        ),
    )


def of_layers():
    of_channels = {name: tensor(3) for name in ("weight", "bias", "slope", "mean", "variance")}
    pictures = {"x": tensor(*PICTURES), "skip": tensor(*PICTURES), **of_channels}
    yield "normalise", normalise(normalisation._RELU, **pictures | {"slope": None})
    yield "normalise with PReLU", normalise(normalisation._PRELU, **pictures | {"skip": None})
    inputs = tensor(*PICTURES), tensor(*PICTURES), tensor(3), tensor(3), None, NORM, normalisation._RELU
    yield (
        "normalise, backward",
        Call(
            {"plsc_norm_backward"},
            backward(normalisation._Normalise, *inputs),
            {"dy": tensor(*PICTURES), "more": tensor(*PICTURES)},
            {"dy": "gaps", "more": "gaps"},
        ),
    )
    x, weight, bias = trained(*PICTURES), trained(8, 3, 3, 3), trained(8)
    yield (
        "convolve",
        Call(
            {"onednn"},
            lambda x, weight, bias: convolution._Convolve.forward(context(), x, weight, bias, STEPS),
            {"x": x, "weight": weight, "bias": bias},
            {"x": "row gaps", "weight": "column"},
        ),
    )
    grad = tensor(*PICTURES[:3], 8)
    yield "convolve, backward", of_gradient(convolution._Convolve, x, weight, bias, STEPS, grad=grad)
    if onednn.has_bfloat16():
        x, grad = trained(*PICTURES).astype("bfloat16"), grad.astype("bfloat16")
        both = "onednn", "plsc_weight_gradient"
        half = of_gradient(convolution._Convolve, x, weight, None, STEPS, grad=grad, kernels=both)
        yield "convolve in bfloat16, backward", half
    yield from zip(("relu", "relu, backward"), pair_of(lambda x: x.shape, pointwise._relu))
    pooled = lambda x: [x.shape[0], x.shape[1] // 2, x.shape[2] // 2, x.shape[3]]
    yield from zip(("pool", "pool, backward"), pair_of(pooled, pointwise._pool, 2))
    yield (
        "turn",
        Call(
            {"onednn"},
            lambda x: layout._turned(x, True, paddle.float32),
            {"x": tensor(*PICTURES)},
            {"x": "row column gaps"},
        ),
    )
    yield (
        "linear",
        Call(
            {"onednn"},
            lambda x, weight, bias: transformer._Linear.forward(context(), x, weight, bias, True),
            {"x": tensor(*TOKENS), "weight": tensor(6, 7), "bias": tensor(7)},
            {"x": "row dimension gaps"},
        ),
    )
    inputs = trained(*TOKENS), trained(6, 7), trained(7), True
    yield "linear, backward", of_gradient(transformer._Linear, *inputs, grad=tensor(2, 5, 7))
    yield (
        "layer norm",
        Call(
            {"onednn"},
            lambda x, weight, bias: transformer._LayerNorm.forward(context(), x, weight, bias, 1e-5),
            {"x": tensor(*TOKENS), "weight": tensor(6), "bias": tensor(6)},
            {"x": "row gaps"},
        ),
    )
    inputs = tensor(*TOKENS), tensor(6), tensor(6), 1e-5
    yield "layer norm, backward", of_gradient(transformer._LayerNorm, *inputs, grad=tensor(*TOKENS))
    yield (
        "attention",
        Call(
            {"onednn"},
            lambda qkv: transformer._Attention.forward(context(), qkv, 2),
            {"qkv": tensor(2, 5, 12)},
            {"qkv": "row gaps"},
        ),
    )
    both = "onednn", "plsc_attention_weights_backward"
    inputs = tensor(2, 5, 12), 2
    yield (
        "attention, backward",
        of_gradient(transformer._Attention, *inputs, grad=tensor(2, 5, 4), kernels=both),
    )
    both = {"x": "gaps", "y": "gaps"}
    inputs = {"x": tensor(*TOKENS), "y": tensor(*TOKENS)}
    add = lambda x, y, scale=None: transformer._Add.forward(context(), x, y, scale, False)
    yield "add", Call({"onednn"}, add, inputs, both)
    inputs = inputs | {"scale": tensor(2, 1, 1)}
    yield "add with scale", Call({"onednn"}, add, inputs, both)
    inputs = *inputs.values(), False
    yield "add with scale, backward", of_gradient(transformer._Add, *inputs, grad=tensor(*TOKENS))
    inputs = tensor(*TOKENS), tensor(1, *TOKENS[1:]), None, True
    yield "add to all, backward", of_gradient(transformer._Add, *inputs, grad=tensor(*TOKENS))


CALLS = dict([*of_heads(), *of_evaluation(), *of_layers()]) if BUILT else {}


@pytest.fixture
def reached(monkeypatch):
    """Replace the kernels and oneDNN by functions that note their names."""
    names = set()

    class Kernels:
        def __getattr__(self, name):
            return lambda *_: names.add(name) or 0

    for module in (rows, softmax, verification, normalisation, convolution, transformer):
        monkeypatch.setattr(module, "library", Kernels)
    for module in (records, draws):
        monkeypatch.setattr(module, "compiled", Kernels)
    monkeypatch.setattr(onednn.Operation, "__call__", lambda *_: names.add("onednn"))
    return names


def changed(array):
    """Yield (what is changed, the array with this change)."""
    last = slice(None, -1)
    yield "row", array[last]
    if array.ndim > 1:
        yield "column", contiguous(array[..., last])
    yield "dimension", array.reshape([*array.shape, 1])
    for dtype in ("float64", "int32"):
        yield dtype, array.astype(dtype)
    strided = array.repeat(2, -1) if isinstance(array, np.ndarray) else array.repeat_interleave(2, -1)
    yield "gaps", strided[..., ::2]


def contiguous(array):
    return np.ascontiguousarray(array) if isinstance(array, np.ndarray) else array.clone()


def test_every_kernel_has_a_caller_here():
    if not onednn.has_bfloat16():
        pytest.skip("one of the kernels is for bfloat16")
    wanted = set(native._ARGUMENTS) - {"plsc_setup", "plsc_instructions"}
    assert set.union(*(call.kernels for call in CALLS.values())) - {"onednn"} == wanted


@pytest.mark.parametrize("name", CALLS)
def test_arrays_that_do_not_fit_are_refused_by_the_caller(name, reached):
    call = CALLS[name]
    call.function(**call.arrays)
    assert reached == call.kernels
    for argument, good in call.arrays.items():
        for what, bad in [] if good is None else changed(good):
            if what in call.fits.get(argument, "").split() or (what == "gaps" and is_copy(bad)):
                continue
            reached.clear()
            try:
                call.function(**call.arrays | {argument: bad})
            except (AssertionError, KeyError, ValueError):  # a dtype unknown to oneDNN raises KeyError
                assert not reached, (argument, what, "a kernel ran before")
            else:
                raise AssertionError(f"{argument}: {what}: not refused")


def is_copy(strided):
    """Whether the tensor has no gaps (FLAGS_use_stride_kernel=0)."""
    return not isinstance(strided, np.ndarray) and strided.is_contiguous()
