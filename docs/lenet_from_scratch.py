"""Data parallelism from scratch: LeNet on Fashion-MNIST with k copies of the model, in one process and 200
lines.

Each "device" is a copy of the parameters. A batch is cut into k parts, each copy computes the gradients of
its part, the gradients are summed over the copies (`allreduce`), and every copy takes the same step. The
copies stay equal, and the step is that of one device with the whole batch. On one process all devices are the
CPU; plsc does the same with one process per device, where fleet's data parallel is the `allreduce` and
DataLoader's loader the `split_and_load` (configs/fashion_mnist_lenet.yaml). Run it:

    python docs/lenet_from_scratch.py --num_gpus 2 --folder FOLDER      # with the four .gz files of
    Fashion-MNIST
"""

from __future__ import annotations

import argparse
import time
import zlib  # noqa: F401 (before Paddle: version 2.6 brings a zlib along that the files' would stumble over)
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import paddle
import paddle.nn.functional as F

from plsc.data.idx import read_idx

FILES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}
SHAPES = [(20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,), (800, 128), (128,), (128, 10), (10,)]
Params = Sequence[paddle.Tensor]  # W1, b1, W2, b2, W3, b3, W4, b4
Context = Sequence[paddle.CPUPlace]  # a place per device
PADDLES = "~/.cache/paddle/dataset/fashion-mnist"  # where Paddle's own download puts the files


# The model


def init_params(scale: float = 0.01, seed: int = 0) -> Params:
    """LeNet's eight tensors, 129,068 numbers, float32: weights from N(0, scale), biases 0. They have no
    gradients."""
    rng = np.random.default_rng(seed)
    values = [rng.normal(0, scale, shape) if len(shape) > 1 else np.zeros(shape) for shape in SHAPES]
    return [paddle.to_tensor(value, dtype="float32", place=paddle.CPUPlace()) for value in values]


def lenet(X: paddle.Tensor, params: Params) -> paddle.Tensor:
    """Images [N, 1, 28, 28] -> scores [N, 10]."""
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    h1 = F.avg_pool2d(F.relu(F.conv2d(X, W1, b1)), 2, 2)  # 26 x 26, then 13 x 13
    h2 = F.avg_pool2d(F.relu(F.conv2d(h1, W2, b2)), 2, 2)  # 9 x 9, then 4 x 4
    h3 = F.relu(F.linear(h2.flatten(1), W3, b3))  # 800 -> 128
    return F.linear(h3, W4, b4)


def loss(scores: paddle.Tensor, y: paddle.Tensor) -> paddle.Tensor:
    """Softmax cross entropy of each sample: scores [N, 10], labels int64 [N] -> [N], not reduced."""
    return F.cross_entropy(scores, y, reduction="none").flatten()


def sgd(params: Params, lr: float, batch_size: int) -> None:
    """A step of plain SGD, in place. The gradients are sums over the whole batch, so its size divides them,
    not a part's."""
    with paddle.no_grad():
        for param in params:
            param.subtract_(lr * param.grad / batch_size)


# What makes it data parallel


def get_params(params: Params, ctx: paddle.CPUPlace) -> Params:
    """A copy of the parameters on the device `ctx`, each with a zero gradient to begin with."""
    copies = []
    for param in params:
        copy = paddle.to_tensor(param.numpy(), place=ctx, stop_gradient=False)
        copy.grad = paddle.zeros_like(copy)
        copies.append(copy)
    return copies


def allreduce(data: Sequence[paddle.Tensor]) -> None:
    """Sum all tensors into the first, in place, then copy the first back to each, which stays on its own
    device."""
    with paddle.no_grad():
        for other in data[1:]:
            data[0].add_(other)
        for other in data[1:]:
            paddle.assign(data[0], output=other)


def split_and_load(data: paddle.Tensor, ctx: Context) -> list[paddle.Tensor]:
    """Cut a batch [N, ...] into len(ctx) contiguous parts of equal size, one on each device.

    Raises AssertionError if N is not divisible by the number of devices: no sample is dropped.
    """
    n, k = data.shape[0], len(ctx)
    assert (n // k) * k == n, "# examples is not divided by # devices."
    return [paddle.to_tensor(part.numpy(), place=place) for part, place in zip(data.split(k), ctx)]


def train_batch(
    X: paddle.Tensor, y: paddle.Tensor, device_params: Sequence[Params], ctx: Context, lr: float
) -> None:
    """One step on a batch: X [N, 1, 28, 28], y int64 [N]. device_params: a copy of the parameters per
    device."""
    for params in device_params:
        for param in params:
            param.grad.zero_()  # backward adds to what is there
    parts = zip(split_and_load(X, ctx), split_and_load(y, ctx), device_params)
    losses = [loss(lenet(X_part, params), y_part) for X_part, y_part, params in parts]
    for of_device in losses:
        of_device.sum().backward()
    for copies in zip(*device_params):
        allreduce([copy.grad for copy in copies])
    for params in device_params:
        sgd(params, lr, X.shape[0])


# Data, training, validation


def load_data(folder: str | Path, part: str, batch_size: int, seed: int | None = None) -> Iterator:
    """One epoch's batches: images [B, 1, 28, 28] float32 in [0, 1], labels int64 [B]. The last one may be
    smaller.

    part: "train" or "test". seed: for the order. None keeps the files' order.
    """
    folder = Path(folder).expanduser()
    images, labels = (read_idx(folder / name, axes) for name, axes in zip(FILES[part], (3, 1)))
    order = np.arange(len(labels)) if seed is None else np.random.default_rng(seed).permutation(len(labels))
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        X = images[chosen, np.newaxis].astype(np.float32) / 255
        yield paddle.to_tensor(X), paddle.to_tensor(labels[chosen].astype(np.int64))


def accuracy(batches: Iterator, params: Params) -> float:
    """The share of samples whose own class has the highest score."""
    right = count = 0
    with paddle.no_grad():
        for X, y in batches:
            right += (lenet(X, params).argmax(axis=1) == y).sum().item()
            count += len(y)
    return right / count


def synchronise(device_params: Sequence[Params]) -> None:
    """Wait until every device has done all its work: on a GPU calls return before it. Reading a result waits
    for it."""
    for params in device_params:
        params[-1].numpy()


def train(
    num_gpus: int, batch_size: int, lr: float, folder: str | Path = PADDLES, scale: float = 0.01
) -> list[Params]:
    """Train for 5 epochs, and print each one's time and validation accuracy. Returns each device's
    parameters."""
    ctx = [paddle.CPUPlace() for _ in range(num_gpus)]
    print("running on:", ctx)
    params = init_params(scale)
    device_params = [get_params(params, place) for place in ctx]
    for epoch in range(1, 6):
        start = time.time()
        for X, y in load_data(folder, "train", batch_size, seed=epoch):
            train_batch(X, y, device_params, ctx, lr)
        synchronise(device_params)
        print(f"epoch {epoch}, time {time.time() - start:.1f} sec")
        found = accuracy(load_data(folder, "test", batch_size), device_params[0])
        print(f"validation accuracy: {found:.4f}")
    return device_params


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", default=PADDLES, help="with the four .gz files of Fashion-MNIST")
    parser.add_argument("--num_gpus", type=int, default=2, help="copies of the model")
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--scale", type=float, default=0.01, help="standard deviation of the initial weights")
    train(**vars(parser.parse_args()))
