"""On W ranks: synchronised batch norm against one float64 computation over the samples of all ranks, and a
training.

Argument: a folder for the run.
"""

import sys
from pathlib import Path

import numpy as np
import paddle
from paddle import nn

from plsc import distributed as d
from plsc.backbones.iresnet import _Features
from plsc.distributed.sync_batch_norm import synchronise
from tests.distributed.test_sync_batch_norm import train_wide
from tests.helpers.bounds import EPS, assert_within, perturbed

folder = Path(sys.argv[1])
d.init("cpu", threads=1)
W, r = d.world_size(), d.rank()


def expected(x, dy, weight, bias, axes, epsilon):
    """The output, the gradients of x, weight and bias, mean and variance: all float64, over all samples."""
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    root = np.sqrt(variance + epsilon)
    y = (x - mean) / root
    dy_hat = dy * weight
    dx = (dy_hat - dy_hat.mean(axes, keepdims=True) - y * (dy_hat * y).mean(axes, keepdims=True)) / root
    return y * weight + bias, dx, (dy * y).sum(axes), dy.sum(axes), mean.ravel(), variance.ravel()


def check(layer, shape, channel, offset=0.0, counts=None):
    """Compare forward, backward and running statistics; rank r has counts[r] of the samples."""
    counts = counts or [shape[0]] * W
    starts = np.cumsum([0, *counts])
    rng = np.random.default_rng(7)
    C = shape[channel]
    broadcast = [C if axis == channel else 1 for axis in range(len(shape))]
    axes = tuple(axis for axis in range(len(shape)) if axis != channel)
    x = (offset + rng.standard_normal((starts[-1], *shape[1:]))).astype(np.float32)
    dy = rng.standard_normal(x.shape).astype(np.float32)
    weight = np.ones(C) if layer.weight is None else rng.standard_normal(C)
    bias = np.zeros(C) if layer.bias is None else rng.standard_normal(C)
    for parameter, value in ((layer.weight, weight), (layer.bias, bias)):
        if parameter is not None:
            parameter.set_value(value.astype(np.float32))
    layer.train()
    mine = slice(starts[r], starts[r + 1])
    tensor = paddle.to_tensor(x[mine], stop_gradient=False)
    y = layer(tensor)
    y.backward(paddle.to_tensor(dy[mine]))
    shaped = (array.astype(np.float32).reshape(broadcast) for array in (weight, bias))
    keep = layer._momentum

    def compute(*arrays):
        y, dx, dweight, dbias, mean, variance = expected(*arrays, axes, layer._epsilon)
        return y[mine], dx[mine], (1 - keep) * mean, keep + (1 - keep) * variance, dweight, dbias

    want, bound = perturbed(compute, x, dy, *shaped)
    found = y.numpy(), tensor.grad.numpy(), layer._mean.numpy(), layer._variance.numpy()
    assert_within(found, want[:4], bound[:4])
    for parameter, *whole in zip((layer.weight, layer.bias), want[4:], bound[4:]):
        if parameter is not None and not parameter.stop_gradient:
            assert_within(d.all_reduce(parameter.grad.clone()).numpy(), *whole)
        elif parameter is not None:
            assert parameter.grad is None
    assert len(set(d.gather_objects(layer._mean.numpy().tobytes() + layer._variance.numpy().tobytes()))) == 1


unequal = [5, *[2] * (W - 1)]
check(synchronise(nn.BatchNorm2D(3)), (4, 3, 5, 6), 1)
check(synchronise(nn.BatchNorm2D(3, data_format="NHWC")), (4, 5, 6, 3), 3, counts=unequal)
check(synchronise(nn.BatchNorm1D(8, momentum=0.5, epsilon=2e-5)), (4, 8), 1, offset=300.0, counts=unequal)
check(synchronise(nn.BatchNorm1D(8)), (4, 8, 3), 1, counts=[1, *[4] * (W - 1)])
check(synchronise(nn.BatchNorm3D(3, data_format="NDHWC")), (4, 2, 3, 2, 3), 4)
check(synchronise(nn.BatchNorm3D(3)), (4, 3, 2, 3, 2), 1)
check(synchronise(nn.BatchNorm2D(3, bias_attr=False)), (4, 3, 5, 6), 1)
check(synchronise(nn.BatchNorm2D(3, weight_attr=False, bias_attr=False)), (4, 3, 5, 6), 1)
check(synchronise(_Features(8)), (4, 8), 1)

# Of 16 bits, as under Global.amp: computed in float32, and given back as it came.
x = paddle.to_tensor(np.random.default_rng(r).standard_normal((6, 4)).astype(np.float32))
net = synchronise(nn.BatchNorm1D(4))
for dtype in ("bfloat16", "float16"):
    rounded = x.astype(dtype)
    y = net(rounded)
    assert str(y.dtype).endswith(dtype) and net._mean.dtype == paddle.float32
    wide = net(rounded.astype("float32")).numpy()
    # Half the last of the 8 or 11 bits, or all of it where Paddle cuts off.
    last_bit = {"bfloat16": 2**-7, "float16": 2**-10}[dtype]
    assert_within(y.astype("float32").numpy(), wide, last_bit * np.abs(wide))

# Of the network's input no gradient is asked.
first = synchronise(nn.BatchNorm1D(4))
(first(paddle.to_tensor(np.arange(8.0 + r, dtype="float32")[-8:].reshape(2, 4))) ** 2).sum().backward()
assert np.abs(first.weight.grad.numpy()).min() > 0.1 and first.bias.grad is not None

# Names and order stay; in evaluation mode, and where a layer always takes its running statistics, no rank
# waits for another.
plain = nn.Sequential(
    nn.BatchNorm1D(4), nn.Linear(4, 4), nn.Sequential(nn.BatchNorm1D(4, use_global_stats=True))
)
names = list(plain.state_dict())
optimized = [parameter.name for parameter in plain.parameters()]
net = synchronise(plain)
assert list(net.state_dict()) == names and [p.name for p in net.parameters()] == optimized
if r == 0:
    net[2].train()
    net[2](paddle.ones([2, 4]))
    net.eval()
    want = np.full([2, 4], 1 / np.sqrt(1 + net[0]._epsilon))
    assert_within(
        net[0](paddle.ones([2, 4])).numpy(), want, 2 * EPS * want
    )  # of a sum, root, division and product

runs = {
    "sync": ["Model.sync_batchnorm=true"],
    "plain": [],
    "recomputed": ["Model.sync_batchnorm=true", "Model.recompute=[layers]"],
    "accumulated": ["Model.sync_batchnorm=true", "DataLoader.Train.accumulate=2"],
}
for name, overrides in runs.items():
    samples = 12 // W // (1 + (name == "accumulated"))
    train_wide(folder / name, *overrides, f"DataLoader.Train.batch_size={samples}")
print(f"rank {r} of {W}: synchronised batch norm ok")
