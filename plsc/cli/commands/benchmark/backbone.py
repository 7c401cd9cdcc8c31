"""Measure the backbones: parameters, multiply-accumulates and images/s of training, as in docs/backbones.md.

A run is a forward and a backward pass of one batch, without data, head and optimizer; the networks take
turns, and the median of the runs counts. Try it: `python tools/benchmark.py backbone MobileFaceNet IResNet18
--batch 8 --threads 2`.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence

from plsc.distributed import environment
from plsc.utils.measure import alternate
from plsc.utils.registry import BACKBONES

HEADERS = ("name", "parameters", "MACs", "images/s")


def image_shape_of(name: str, size: int) -> tuple[int, int, int]:
    """Return the shape of square images of `size`, with the backbone's default channels."""
    channels = inspect.signature(BACKBONES.get(name)).parameters["image_shape"].default[0]
    return (channels, size, size)


def row(name: str, size: int, images_per_second: float | None) -> str:
    """Format a line of the table; images_per_second None: not measured."""
    from plsc.backbones.count import count

    shape = image_shape_of(name, size)
    cost = count(BACKBONES.build(name, embedding_size=512, image_shape=shape), shape)
    speed = "-" if images_per_second is None else f"{images_per_second:,.1f}"
    return f"| `{name}` | {cost.parameters / 1e6:.2f} M | {cost.macs / 1e9:.2f} G | {speed} |"


def one_pass(name: str, size: int, batch: int):
    """Return a function that runs forward and backward on one batch of noise."""
    import paddle

    shape = image_shape_of(name, size)
    net = BACKBONES.build(name, embedding_size=512, image_shape=shape)
    images, grad = paddle.randn([batch, *shape]), paddle.randn([batch, 512])

    def run() -> None:
        (net(images) * grad).sum().backward()
        net.clear_gradients()

    run()
    return run


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("benchmark backbone", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all that are built in")
    parser.add_argument("--size", type=int, default=112, help="height and width of the images")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, help="default: all processors")
    parser.add_argument("--runs", type=int, default=3, help="0: count only")
    args = parser.parse_args(argv)
    threads, _ = environment.prepare(args.threads)
    from plsc import distributed  # here: it imports Paddle, which has to find the environment prepared

    distributed.init("auto", threads)
    names = args.names or BACKBONES.names()
    seconds = {}
    if args.runs:
        seconds = alternate(args.runs, {name: one_pass(name, args.size, args.batch) for name in names})
    print(f"| {' | '.join(HEADERS)} |\n|{'---|' * len(HEADERS)}")
    for name in names:
        print(row(name, args.size, args.batch / seconds[name] if seconds else None), flush=True)
    return 0
