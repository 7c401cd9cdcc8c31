"""Measure the backbones: parameters, multiply-accumulates and images/s in training, as in docs/labbook.md.

A run is a forward and a backward pass with one batch, without data, head and optimizer. The networks take
turns, and the runs' median counts. Try it:

    python -m benchmarks backbone MobileFaceNet IResNet18 --batch 8 --threads 2
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks import against_torch, measure
from plsc.backbones.config import BACKBONES
from plsc.distributed import environment
from plsc.errors import UserError

HEADERS = ("name", "parameters", "MACs", "images/s")


def image_shape_of(name: str, size: int) -> tuple[int, int, int]:
    """Return the shape of square images with side `size`, with the backbone's default channels."""
    channels = inspect.signature(BACKBONES.get(name)).parameters["image_shape"].default[0]
    return (channels, size, size)


def row(name: str, size: int, images_per_second: float | None) -> str:
    """Format a table row. images_per_second: None if it was not measured."""
    from benchmarks.count import count

    shape = image_shape_of(name, size)
    cost = count(BACKBONES.get(name)(embedding_size=512, image_shape=shape), shape)
    speed = "-" if images_per_second is None else f"{images_per_second:,.1f}"
    return f"| `{name}` | {cost.parameters / 1e6:.2f} M | {cost.macs / 1e9:.2f} G | {speed} |"


def one_pass(name: str, size: int, batch: int):
    """Return a function that runs forward and backward on one noise batch."""
    import paddle

    shape = image_shape_of(name, size)
    net = BACKBONES.get(name)(embedding_size=512, image_shape=shape)
    images, grad = paddle.randn([batch, *shape]), paddle.randn([batch, 512])

    def run() -> None:
        (net(images) * grad).sum().backward()
        net.clear_gradients()

    run()
    return run


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks backbone", description=__doc__.splitlines()[0])
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"default: all built-in networks; with --against: {', '.join(against_torch.NETWORKS)}",
    )
    parser.add_argument(
        "--size",
        type=int,
        help="height and width of the images; default: 112; with --against: the network's own",
    )
    parser.add_argument("--batch", type=int, help="default: 8; with --against: the network's own")
    parser.add_argument(
        "--threads",
        type=int,
        nargs="+",
        help="default: all processors; several are allowed only with --against",
    )
    parser.add_argument("--runs", type=int, default=3, help="runs of each, in turn; 0 only counts parameters")
    parser.add_argument("--device", default="auto", help="as Global.device; only without --against")
    parser.add_argument("--against", choices=["torch"], help="compare with the same networks in PyTorch")
    parser.add_argument(
        "--dtype",
        choices=list(against_torch.MODES),
        default="float32",
        help="with --against: our networks' type; bfloat16 is compared with PyTorch's fastest mode",
    )
    parser.add_argument("--json", type=Path, help="with --against: also write the numbers to this file")
    args = parser.parse_args(argv)
    if args.against:
        return compare(args)
    if args.json or len(args.threads or ()) > 1 or args.dtype != "float32":
        raise UserError("--json, --dtype and several numbers of --threads: only with --against torch")
    size = args.size or 112
    batch = args.batch or 8
    threads = environment.prepare(args.threads[0] if args.threads else None)
    from plsc import distributed  # here, since it imports Paddle, whose environment must be prepared first

    distributed.init(args.device, threads)
    names = args.names or BACKBONES.builtin
    seconds = {}
    if args.runs:
        work = {name: one_pass(name, size, batch) for name in names}
        seconds = measure.alternate(args.runs, work, measure.finish)
    print(f"| {' | '.join(HEADERS)} |\n|{'---|' * len(HEADERS)}")
    for name in names:
        print(row(name, size, batch / seconds[name] if seconds else None), flush=True)
    return 0


def compare(args: argparse.Namespace) -> int:
    """Print the comparison with PyTorch."""
    if args.device != "auto":
        raise UserError(f"--device: only without --against, which compares CPUs (got {args.device})")
    if args.runs < 1:
        raise UserError(f"--runs: must be at least 1 with --against (got {args.runs})")
    threads = args.threads or [environment.prepare()]
    result = against_torch.compare(args.names, args.size, args.batch, threads, args.runs, args.dtype)
    print(against_torch.show(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0
