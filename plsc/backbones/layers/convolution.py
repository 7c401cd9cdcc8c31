"""Convolve pictures with oneDNN, or with Paddle's operator."""

import functools
from ctypes import c_int64
from typing import NamedTuple

import paddle
from paddle import nn
from paddle.autograd import PyLayer

from plsc.backbones.layers.layout import address, by_cpu_kernels, dense, number, run
from plsc.backbones.layers.weights import Weights
from plsc.distributed.paddle_internals import empty
from plsc.native import library, onednn


class Conv2D(nn.Conv2D):
    """Convolves pictures, in groups of channels if `groups` is above 1.

    The arguments are those of Paddle's layer. The padding consists of zeros. It is one number, or one for the
    height and one for the width.
    """

    def forward(self, x):
        if not by_cpu_kernels(x):
            return nn.Conv2D.forward(self, x)  # no super(): Paddle 2.6 cannot trace it
        padding = [self._padding] * 2 if isinstance(self._padding, int) else self._padding
        steps = _Steps(*map(tuple, (self._stride, padding, self._dilation)), self._groups)
        return run(_Convolve, x, self.weight, self.bias, steps)


class _Steps(NamedTuple):
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


class _Convolution:
    """A convolution's operations for one shape.

    Each operation gets the weights in the layout that it prefers. The conversion takes less than 1 % of its
    time in training.

    Args:
        shape: (B, H, W, outputs, inputs per group, kernel height and width).
        steps: stride, padding, dilation and groups.
        biased: whether the convolution has a bias.
        dtype: oneDNN's number for the pictures' dtype. Weights, bias and their gradients are float32.
    """

    def __init__(self, shape: tuple[int, ...], steps: _Steps, biased: bool, dtype: int):
        samples, height, width, outputs, inputs, *kernel = shape
        groups = steps.groups
        self._dtype = dtype
        sides = [
            (side + 2 * padding - dilation * (size - 1) - 1) // stride + 1
            for side, size, stride, padding, dilation in zip(
                (height, width), kernel, steps.stride, steps.padding, steps.dilation
            )
        ]
        self._source_shape = [samples, height, width, inputs * groups]
        self._target_shape = [samples, *sides, outputs]
        self._weights_shape = [outputs, inputs, *kernel]
        grouped_shape = (
            (groups, outputs // groups, inputs, *kernel) if groups > 1 else (outputs, inputs, *kernel)
        )
        self._plain = onednn.describe(grouped_shape)
        self._plain_rounded = onednn.describe(grouped_shape, dtype=dtype)
        self._rounded = onednn.describe_any(grouped_shape, dtype)
        self._sums = onednn.describe_any(grouped_shape)
        self._source = onednn.channels_last(self._source_shape, dtype)
        self._target = onednn.channels_last(self._target_shape, dtype)
        self._bias = onednn.describe((outputs,)) if biased else None
        # Arguments of the kernel for the weight's gradient, which may refuse them
        # (native/layers/convolution.cpp).
        self._sizes = None
        if groups == 1 and dtype == onednn.BFLOAT16 and not biased:
            flat_steps = (*steps.stride, *steps.padding, *steps.dilation)
            sizes = (samples, height, width, inputs, *sides, outputs, *kernel, *flat_steps)
            self._sizes = (c_int64 * len(sizes))(*sizes)
        # For bfloat16 in groups, oneDNN's first choices are ten times as slow as its second ones. This is
        # true of the source's gradient in depthwise convolutions with strides, and of the weight's gradient
        # with AMX.
        self._avoid = "brgconv_strided" if inputs == 1 and groups > 1 else None
        self._avoid_for_weights = "brgconv_bwd_w" if groups > 1 else None
        # If the result is one pixel wide and the width has a stride, this implementation in oneDNN 3.6
        # computes only the first row correctly.
        is_wrong = sides[1] == 1 < min(sides[0], steps.stride[1])
        self._avoid_for_results = "brg_conv_fwd" if is_wrong else None
        # Kernel rows and columns that meet only padding. For bfloat16, oneDNN may leave their gradient as it
        # was in memory.
        self._unused = [
            [tap for tap in range(size) if not _meets(tap * dilation - padding, stride, count, side)]
            for size, stride, padding, dilation, count, side in zip(
                kernel, steps.stride, steps.padding, steps.dilation, sides, (height, width)
            )
        ]
        padding = onednn.pair(*steps.padding)
        self._steps = [
            onednn.pair(*steps.stride),
            onednn.pair(*(dilation - 1 for dilation in steps.dilation)),
            padding,
            padding,
        ]

    def _address(self, pictures: paddle.Tensor, shape: list[int]) -> int:
        assert number(pictures) == self._dtype
        return address(pictures, shape, pictures.dtype)

    def forward(self, x: paddle.Tensor, weight: paddle.Tensor, bias: paddle.Tensor | None) -> paddle.Tensor:
        out = empty(self._target_shape, x.dtype)
        at_x, at_out = self._address(x, self._source_shape), self._address(out, self._target_shape)
        biases = [] if bias is None else [address(bias, self._weights_shape[:1])]
        weights = self._forward_weights.convert(address(weight, self._weights_shape))
        self._forward(at_x, weights, at_out, *biases)
        return out

    def source_gradient(self, grad: paddle.Tensor, weight: paddle.Tensor) -> paddle.Tensor:
        out = empty(self._source_shape, grad.dtype)
        at_out, at_grad = self._address(out, self._source_shape), self._address(grad, self._target_shape)
        weights = self._backward_weights.convert(address(weight, self._weights_shape))
        self._backward(at_out, weights, at_grad)
        return out

    def weight_gradients(self, x: paddle.Tensor, grad: paddle.Tensor) -> list[paddle.Tensor]:
        """Compute the weight's gradient, and the bias's if there is one."""
        out = empty(self._weights_shape)
        at_x, at_grad = self._address(x, self._source_shape), self._address(grad, self._target_shape)
        at_out = address(out, self._weights_shape)
        if self._sizes and library().plsc_weight_gradient(
            self._sizes, onednn.has_amx(), at_x, at_grad, at_out
        ):
            return [out]
        bias = [] if self._bias is None else [empty(self._weights_shape[:1])]
        weights = self._gradient_weights.output_address(at_out)
        self._gradient(at_x, weights, at_grad, *(address(b, self._weights_shape[:1]) for b in bias))
        self._gradient_weights.convert_back(at_out)
        for row in self._unused[0]:
            out[:, :, row] = 0.0
        for column in self._unused[1]:
            out[:, :, :, column] = 0.0
        return [out, *bias]

    @functools.cached_property
    def _forward(self) -> onednn.Operation:
        arrays = [self._source, self._rounded, self._bias, self._target]
        return onednn.Operation(
            "convolution_forward",
            [onednn.FORWARD_TRAINING, onednn.CONVOLUTION, *arrays, *self._steps],
            [onednn.SRC, onednn.WEIGHTS, onednn.DST] + [onednn.BIAS] * (self._bias is not None),
            avoid=self._avoid_for_results,
        )

    @functools.cached_property
    def _backward(self) -> onednn.Operation:
        arrays = [self._source, self._rounded, self._target]
        return onednn.Operation(
            "convolution_backward_data",
            [onednn.CONVOLUTION, *arrays, *self._steps, self._forward.descriptor],
            [onednn.DIFF_SRC, onednn.WEIGHTS, onednn.DIFF_DST],
            avoid=self._avoid,
        )

    @functools.cached_property
    def _gradient(self) -> onednn.Operation:
        arrays = [self._source, self._sums, self._bias, self._target]
        return onednn.Operation(
            "convolution_backward_weights",
            [onednn.CONVOLUTION, *arrays, *self._steps, self._forward.descriptor],
            [onednn.SRC, onednn.DIFF_WEIGHTS, onednn.DIFF_DST]
            + [onednn.DIFF_BIAS] * (self._bias is not None),
            avoid=self._avoid_for_weights,
        )

    @functools.cached_property
    def _forward_weights(self) -> Weights:
        return Weights(self._plain, self._plain_rounded, self._forward, onednn.WEIGHTS)

    @functools.cached_property
    def _backward_weights(self) -> Weights:
        return Weights(self._plain, self._plain_rounded, self._backward, onednn.WEIGHTS)

    @functools.cached_property
    def _gradient_weights(self) -> Weights:
        return Weights(self._plain, self._plain, self._gradient, onednn.DIFF_WEIGHTS)


_convolution = onednn.kept(_Convolution)


def _meets(first: int, stride: int, count: int, side: int) -> bool:
    """Return whether one of the pixels first, first + stride, ..., `count` in all, is in [0, side)."""
    return any(0 <= first + stride * place < side for place in range(count))


class _Convolve(PyLayer):
    @staticmethod
    def forward(ctx, x, weight, bias, steps):
        # The kernels get addresses, which carry neither shape nor dtype.
        assert x.ndim == 4 and x.shape[-1] == weight.shape[1] * steps.groups, (x.shape, weight.shape)
        x = dense(x)
        shape = (*x.shape[:3], *weight.shape)
        ctx.key = (shape, steps, bias is not None, number(x))
        ctx.save_for_backward(x, weight)
        ctx.wanted = [not tensor.stop_gradient for tensor in (x, weight, bias) if tensor is not None]
        return _convolution(*ctx.key).forward(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        grad = dense(grad)
        x, weight = ctx.saved_tensor()
        operations = _convolution(*ctx.key)
        x_wanted, *weights_wanted = ctx.wanted
        grads = [operations.source_gradient(grad, weight) if x_wanted else None]
        if any(weights_wanted):
            grads += operations.weight_gradients(x, grad)
        else:
            grads += [None] * len(weights_wanted)
        return tuple(g if wanted else None for g, wanted in zip(grads, ctx.wanted))
