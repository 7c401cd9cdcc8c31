"""A vision transformer's layers: linear layers, layer norms, attention, and sums of branches.

If `by_cpu_kernels` returns True for a layer's input, the layer is one PyLayer with oneDNN operations. Paddle
would run several operators, some on one thread. Otherwise a layer runs Paddle's operators, with the same
results except for rounding.
Parameters, their names and their initial weights are Paddle's. Tokens are float32 or bfloat16. Parameters and
their gradients are float32.

    B images   N tokens   W width   H heads   S = W / H
"""

from ctypes import c_float

import numpy as np
import paddle
from paddle import nn
from paddle.autograd import PyLayer

from plsc.backbones.layers.addresses import Dropout
from plsc.backbones.layers.layout import address, by_cpu_kernels, dense, number, run
from plsc.backbones.layers.pointwise import eltwise
from plsc.backbones.layers.weights import Weights
from plsc.distributed.paddle_internals import empty
from plsc.native import library, onednn
from plsc.native.onednn import BFLOAT16, FLOAT32, describe, describe_any, kept

_LIMIT = (onednn.CLIP_OF_OUTPUT, 0.0, 6.0)  # ReLU6


class Linear(nn.Linear):
    """Computes x @ weight + bias like Paddle's layer, and clips the result to 0..6 (ReLU6) if `limited`."""

    def __init__(self, inputs: int, outputs: int, weight_attr=None, bias_attr=None, limited: bool = False):
        super().__init__(inputs, outputs, weight_attr, bias_attr)
        self._limited = limited

    def forward(self, x):
        if by_cpu_kernels(x):
            return run(_Linear, x, self.weight, self.bias, self._limited)
        out = nn.functional.linear(x, self.weight, self.bias)
        return nn.functional.relu6(out) if self._limited else out


class LayerNorm(nn.LayerNorm):
    """Normalises over the last axis like Paddle's layer. It always has a weight and a bias."""

    def forward(self, x):
        if by_cpu_kernels(x):
            return run(_LayerNorm, x, self.weight, self.bias, self._epsilon)
        return nn.LayerNorm.forward(self, x)


def attention(qkv: paddle.Tensor, heads: int) -> paddle.Tensor:
    """Compute multi-head softmax attention (Vaswani et al., "Attention Is All You Need", 2017).

    Args:
        qkv: [B, N, 3 W]. Each row holds a token's query, key and value, in this order.
        heads: H.

    Returns [B, N, W].
    """
    if by_cpu_kernels(qkv):
        return run(_Attention, qkv, heads)
    width = qkv.shape[2] // 3
    size = width // heads
    # 0 keeps a dimension as it is, so that an exported network takes any batch size
    query, key, value = qkv.reshape([0, 0, 3, heads, size]).transpose([2, 0, 3, 1, 4]).unbind(0)
    weights = nn.functional.softmax(paddle.matmul(query, key, transpose_y=True) * size**-0.5)
    return paddle.matmul(weights, value).transpose([0, 2, 1, 3]).reshape([0, 0, width])


def add_branch(x: paddle.Tensor, branch: paddle.Tensor, drop_path: Dropout) -> paddle.Tensor:
    """Add `branch` [B, N, W] to x [B, N, W]. In training, `drop_path` omits the branch for some images."""
    if not by_cpu_kernels(x):
        return x + drop_path(branch)
    drops = drop_path.training and drop_path.p > 0
    scale = drop_path(paddle.ones([x.shape[0], 1, 1])) if drops else None
    return run(_Add, x, branch, scale, False)


def add_positions(x: paddle.Tensor, positions: paddle.Tensor) -> paddle.Tensor:
    """Add `positions` [1, N, W] to each image's tokens [B, N, W]."""
    return run(_Add, x, positions, None, True) if by_cpu_kernels(x) else x + positions


def _rows(x: paddle.Tensor) -> int:
    return int(np.prod(x.shape[:-1]))


def _matmul(a, b, bias, out, post_ops=()) -> onednn.Operation:
    arguments = [onednn.SRC, onednn.WEIGHTS, *([onednn.BIAS] if bias else []), onednn.DST]
    return onednn.Operation("matmul", [a, b, bias, out], arguments, post_ops)


class _Product:
    """A matrix product with weights on its right side. It converts the weights to the layout and dtype it
    takes.

    Args:
        shapes: the shapes on the left side, on the right side and in the result.
        strides: the weights' strides in memory, counted in elements. None for C order.
        dtype: oneDNN's number for the left side's and the result's dtype.
        bias: whether a bias is added.
        post_ops: oneDNN's operations on the result.
    """

    def __init__(self, shapes, strides: tuple[int, int] | None, dtype: int, bias: bool = False, post_ops=()):
        left, right, out = shapes
        # float32 weights are used where they are.
        plain = describe(right, strides)
        weights = plain if dtype == FLOAT32 else describe_any(right, dtype)
        self._operation = _matmul(
            describe(left, dtype=dtype),
            weights,
            describe((1, right[1])) if bias else None,
            describe(out, dtype=dtype),
            post_ops,
        )
        self._weights = Weights(plain, describe(right, strides, dtype), self._operation, onednn.WEIGHTS)

    def __call__(self, x: int, weights: int, *others: int) -> None:
        self._operation(x, self._weights.convert(weights), *others)


_product = kept(_Product)


@kept
def _weight_gradient(count: int, inputs: int, outputs: int) -> onednn.Operation:
    """Make the product between x and the result's gradient, both bfloat16. It gives the weight's gradient,
    float32."""
    turned = describe((inputs, count), (1, inputs), BFLOAT16)
    return _matmul(turned, describe((count, outputs), dtype=BFLOAT16), None, describe((inputs, outputs)))


@kept
def _sum_of_columns(count: int, width: int, dtype: int) -> tuple[onednn.Operation, paddle.Tensor]:
    """Make a product with a row that is all ones, and that row. It is oneDNN's fastest sum over rows."""
    rows = describe((count, width), dtype=dtype)
    product = _matmul(describe((1, count), dtype=dtype), rows, None, describe((1, width)))
    return product, paddle.ones([count], "bfloat16" if dtype == BFLOAT16 else "float32")


def _column_sums(x: paddle.Tensor, count: int, width: int) -> paddle.Tensor:
    """Sum [count, width] over the rows, in float32."""
    out = empty([width])
    product, ones = _sum_of_columns(count, width, number(x))
    assert x.size == count * width
    product(ones.data_ptr(), address(x, x.shape, x.dtype), address(out, [width]))
    return out


class _Linear(PyLayer):
    @staticmethod
    def forward(ctx, x, weight, bias, limited):
        ctx.wanted = [tensor is not None and not tensor.stop_gradient for tensor in (x, weight, bias)]
        x = dense(x)
        inputs, outputs = weight.shape
        out = empty([*x.shape[:-1], outputs], x.dtype)
        shapes = ((_rows(x), inputs), (inputs, outputs), (_rows(x), outputs))
        limit = (("eltwise", *_LIMIT),) if limited else ()
        product = _product(shapes, None, number(x), bias is not None, limit)
        biases = [] if bias is None else [address(bias, [outputs])]
        at_x, at_out = address(x, [*x.shape[:-1], inputs], x.dtype), address(out, out.shape, x.dtype)
        product(at_x, address(weight, [inputs, outputs]), *biases, at_out)
        ctx.save_for_backward(x, weight, *([out] if limited else []))  # no None, which Paddle's hooks refuse
        ctx.has_bias = bias is not None
        return out

    @staticmethod
    def backward(ctx, grad):
        x, weight, *limited = ctx.saved_tensor()
        grad = dense(grad)
        count = _rows(x)
        inputs, outputs = weight.shape
        like_out = [*x.shape[:-1], outputs], x.dtype
        if limited:
            before = empty(grad.shape, grad.dtype)
            _, backward = eltwise(grad.size, *_LIMIT, number(grad))
            backward(*(address(array, *like_out) for array in (limited[0], grad, before)))
            grad = before
        at_grad = address(grad, *like_out)
        dx = dweight = dbias = None
        if ctx.wanted[0]:
            dx = empty(x.shape, x.dtype)
            shapes = ((count, outputs), (outputs, inputs), (count, inputs))
            # oneDNN writes nothing if an axis with one element has another stride than in C order.
            strides = (1, outputs) if min(inputs, outputs) > 1 else None
            back = _product(shapes, strides, number(x))
            back(at_grad, address(weight, [inputs, outputs]), address(dx, x.shape, x.dtype))
        if ctx.wanted[1] and number(x) == BFLOAT16:
            dweight = empty(weight.shape)
            product = _weight_gradient(count, inputs, outputs)
            product(address(x, x.shape, x.dtype), at_grad, address(dweight, [inputs, outputs]))
        elif ctx.wanted[1]:
            # MKL: oneDNN takes twice the time for some shapes on processors without AVX-512.
            dweight = paddle.matmul(x.flatten(0, -2), grad.flatten(0, -2), transpose_x=True)
        if ctx.wanted[2]:
            dbias = _column_sums(grad, count, outputs)
        return (dx, dweight, dbias) if ctx.has_bias else (dx, dweight)


@kept
def _layer_norm(
    count: int, width: int, epsilon: float, dtype: int
) -> tuple[onednn.Operation, onednn.Operation]:
    x, statistics = describe((count, width), dtype=dtype), describe((count,))
    o = onednn
    flags = o.USE_SCALE | o.USE_SHIFT
    forward = o.Operation(
        "layer_normalization_forward",
        [o.FORWARD_TRAINING, x, x, statistics, c_float(epsilon), flags],
        [o.SRC, o.DST, o.MEAN, o.VARIANCE, o.SCALE, o.SHIFT],
    )
    backward = o.Operation(
        "layer_normalization_backward",
        [o.BACKWARD, x, x, x, statistics, c_float(epsilon), flags, forward.descriptor],
        [o.SRC, o.DIFF_DST, o.MEAN, o.VARIANCE, o.SCALE, o.SHIFT, o.DIFF_SRC, o.DIFF_SCALE, o.DIFF_SHIFT],
    )
    return forward, backward


class _LayerNorm(PyLayer):
    @staticmethod
    def forward(ctx, x, weight, bias, epsilon):
        ctx.wanted = [not tensor.stop_gradient for tensor in (x, weight, bias)]
        x = dense(x)
        ctx.sizes = (_rows(x), x.shape[-1], epsilon, number(x))
        out = empty(x.shape, x.dtype)
        mean = empty([_rows(x)])
        variance = empty([_rows(x)])
        forward, _ = _layer_norm(*ctx.sizes)
        rows, width = _rows(x), x.shape[-1]
        at_x, at_out = (address(array, x.shape, x.dtype) for array in (x, out))
        statistics = (address(array, [rows]) for array in (mean, variance))
        forward(at_x, at_out, *statistics, address(weight, [width]), address(bias, [width]))
        ctx.save_for_backward(x, weight, bias, mean, variance)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, weight, bias, mean, variance = ctx.saved_tensor()
        grads = [empty(tensor.shape, tensor.dtype) for tensor in (x, weight, bias)]
        _, backward = _layer_norm(*ctx.sizes)
        arrays = [(array, x.shape, x.dtype) for array in (x, dense(grad))]
        arrays += [(array, [_rows(x)]) for array in (mean, variance)]
        arrays += [(array, x.shape[-1:]) for array in (weight, bias)]
        arrays += [(grads[0], x.shape, x.dtype), *((grad, x.shape[-1:]) for grad in grads[1:])]
        backward(*(address(*array) for array in arrays))
        return tuple(grad if wanted else None for grad, wanted in zip(grads, ctx.wanted))


class _Products:
    """Attention's operations for one image. All its heads' scores fit the second-level cache."""

    def __init__(self, tokens: int, width: int, heads: int, dtype: int):
        o = onednn
        size = width // heads
        shape = (heads, tokens, tokens)
        scores = describe(shape, dtype=dtype)
        turned = describe(shape, (tokens * tokens, 1, tokens), dtype)
        # Query, key or value inside qkv's rows: [H, N, S], and transposed [H, S, N].
        part = describe((heads, tokens, size), (size, 3 * width, 1), dtype)
        part_transposed = describe((heads, size, tokens), (size, 1, 3 * width), dtype)
        out = describe((heads, tokens, size), (size, width, 1), dtype)
        scale = [("eltwise", o.LINEAR, size**-0.5, 0.0)]
        rows = describe((heads * tokens, tokens), dtype=dtype)
        self.scores = _matmul(part, part_transposed, None, scores, scale)
        self.softmax = o.Operation(
            "softmax_forward", [o.FORWARD_TRAINING, o.SOFTMAX, rows, rows, 1], [o.SRC, o.DST]
        )
        if dtype == FLOAT32:  # our own kernel, since oneDNN's operation is slow on processors without AVX-512
            self.softmax_backward = lambda weights, _, in_place: library().plsc_attention_weights_backward(
                weights, heads * tokens, tokens, in_place
            )
        else:
            self.softmax_backward = o.Operation(
                "softmax_backward",
                [o.SOFTMAX, rows, rows, rows, 1, self.softmax.descriptor],
                [o.DST, o.DIFF_DST, o.DIFF_SRC],
            )
        self.mix = _matmul(scores, part, None, out)
        self.weights_gradient = _matmul(out, part_transposed, None, scores)
        self.query_gradient = _matmul(scores, part, None, part, scale)
        self.key_gradient = _matmul(turned, part, None, part, scale)
        self.value_gradient = _matmul(turned, out, None, part)


_products = kept(_Products)


class _Attention(PyLayer):
    @staticmethod
    def forward(ctx, qkv, heads):
        qkv = dense(qkv)
        images, tokens, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        assert qkv.shape[2:] == [3 * width] and width % heads == 0, (qkv.shape, heads)
        out = empty([images, tokens, width], qkv.dtype)
        weights = empty([images, heads, tokens, tokens], qkv.dtype)
        ctx.heads = heads
        ctx.save_for_backward(qkv, weights)
        by = _products(tokens, width, heads, number(qkv))
        size = qkv.element_size()
        row = size * width
        at_qkv, at_weights, at_out = (address(x, x.shape, qkv.dtype) for x in (qkv, weights, out))
        for image in range(images):
            query = at_qkv + 3 * row * image * tokens
            scores = at_weights + size * image * heads * tokens * tokens
            by.scores(query, query + row, scores)
            by.softmax(scores, scores)
            by.mix(scores, query + 2 * row, at_out + row * image * tokens)
        return out

    @staticmethod
    def backward(ctx, grad):
        qkv, weights = ctx.saved_tensor()
        heads = ctx.heads
        grad = dense(grad)
        images, tokens, width = grad.shape
        dqkv = empty(qkv.shape, qkv.dtype)
        dweights = empty([heads, tokens, tokens], qkv.dtype)
        by = _products(tokens, width, heads, number(qkv))
        size = qkv.element_size()
        row = size * width
        like_qkv = [images, tokens, 3 * width], qkv.dtype
        at_qkv, at_dqkv = (address(x, *like_qkv) for x in (qkv, dqkv))
        at_weights = address(weights, [images, heads, tokens, tokens], qkv.dtype)
        at_grad = address(grad, grad.shape, qkv.dtype)
        dscores = address(dweights, [heads, tokens, tokens], qkv.dtype)
        for image in range(images):
            query = at_qkv + 3 * row * image * tokens
            dquery = at_dqkv + 3 * row * image * tokens
            scores = at_weights + size * image * heads * tokens * tokens
            dout = at_grad + row * image * tokens
            by.value_gradient(scores, dout, dquery + 2 * row)
            by.weights_gradient(dout, query + 2 * row, dscores)
            by.softmax_backward(scores, dscores, dscores)
            by.query_gradient(dscores, query + row, dquery)
            by.key_gradient(dscores, query, dquery + row)
        return dqkv


@kept
def _binary(
    kind: int, shape: tuple, other: tuple, dtype: int, other_dtype: int, added: bool = False
) -> onednn.Operation:
    """Make an operation on x and y that gives x + y or x y, plus z if `added`. It takes x, y, out, z.

    Args:
        kind: oneDNN's ADD or MULTIPLY.
        shape: x's shape. other: y's shape, which is broadcast.
        dtype, other_dtype: oneDNN's numbers for the dtypes of x and y.
        added: whether z is added, with x's shape and dtype.
    """
    o = onednn
    x = describe(shape, dtype=dtype)
    settings = [kind, x, describe(other, dtype=other_dtype), x]
    arguments = [o.SRC, o.SRC_1, o.DST, *([o.POST_OP | o.SRC_1] if added else [])]
    return o.Operation("binary", settings, arguments, [("binary", o.ADD, x)] if added else [])


class _Add(PyLayer):
    """Computes x + y, or x + scale y with a number per image. If `for_all`, y has one image, added to
    each."""

    @staticmethod
    def forward(ctx, x, y, scale, for_all):
        x, y = dense(x), dense(y)
        out = empty(x.shape, x.dtype)
        count, width = x.shape[0], x.size // x.shape[0]
        if scale is None:
            add = _binary(onednn.ADD, (count, width), (1 if for_all else count, width), number(x), number(y))
            assert y.shape == [1 if for_all else count, *x.shape[1:]], (x.shape, y.shape)
            at_x, at_out = (address(array, x.shape, x.dtype) for array in (x, out))
            add(at_x, address(y, y.shape, y.dtype), at_out)
        else:
            add = _binary(onednn.MULTIPLY, (1, count, width), (1, count, 1), number(x), FLOAT32, True)
            at_x, at_y, at_out = (address(array, x.shape, x.dtype) for array in (x, y, out))
            add(at_y, address(scale, [count, 1, 1]), at_out, at_x)
        ctx.for_all = y.shape if for_all else None
        ctx.shape = x.shape
        ctx.save_for_backward(*([] if scale is None else [scale]))
        return out

    @staticmethod
    def backward(ctx, grad):
        grad = dense(grad)
        assert grad.shape == ctx.shape, (grad.shape, ctx.shape)
        count, width = grad.shape[0], grad.size // grad.shape[0]
        if ctx.for_all:
            return grad, _column_sums(grad, count, width).reshape(ctx.for_all)
        scale = ctx.saved_tensor()
        if not scale:
            return grad, grad
        dy = empty(grad.shape, grad.dtype)
        multiply = _binary(onednn.MULTIPLY, (1, count, width), (1, count, 1), number(grad), FLOAT32)
        at_grad, at_dy = (address(array, grad.shape, grad.dtype) for array in (grad, dy))
        multiply(at_grad, address(scale[0], [count, 1, 1]), at_dy)
        return grad, dy, None
