"""Check collectives and head on this machine against simple numpy: `plsc selftest`.

    plsc selftest                               in this process, and then on 2 ranks
    plsc selftest --ranks 8 --device gpu        also on 8 ranks
    plsc selftest --ranks 1                     in this process only
    python -m paddle.distributed.launch --nproc_per_node 4 plsc/__main__.py selftest      in your own launch

Every rank calls each part. A part returns its worst error on this rank. A part that raises ends the check.
"""

import argparse
import faulthandler
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import paddle

from plsc import distributed
from plsc.distributed import device as devices
from plsc.distributed import environment, launcher
from plsc.distributed.environment import CPU
from plsc.heads.self_check import LIMIT, head_error, relative
from plsc.utils.text import table

_PART_SECONDS = 60  # a longer part on several ranks is ended, since a rank probably waits for ever


def _uneven(least: int) -> tuple[list[int], slice]:
    """Return each rank's sample count, and this rank's slice."""
    counts = [least + 3 * rank for rank in range(distributed.world_size())]
    start = sum(counts[: distributed.rank()])
    return counts, slice(start, start + counts[distributed.rank()])


def check_all_reduce() -> float:
    """Check sums and maxima over the ranks, and the broadcast of rank 0's numbers."""
    rank = distributed.rank()
    x = np.random.default_rng(0).standard_normal((distributed.world_size(), 5)).astype(np.float32)
    return max(
        relative(distributed.all_reduce(paddle.to_tensor(x[rank])), x.astype(np.float64).sum(axis=0)),
        relative(distributed.all_reduce(paddle.to_tensor(x[rank]), "max"), x.max(axis=0)),
        relative(distributed.broadcast(paddle.to_tensor(x[rank])), x[0]),
    )


def check_gather() -> float:
    """Check the gather, forward and backward. Each rank multiplies its copy by rank + 1."""
    counts, own = _uneven(2)
    x = np.random.default_rng(1).standard_normal((sum(counts), 3)).astype(np.float32)
    mine = paddle.to_tensor(x[own], stop_gradient=False)
    gathered = distributed._c_allgather(mine)
    (gathered * (distributed.rank() + 1.0)).sum().backward()
    gradient = np.full(mine.shape, sum(range(1, len(counts) + 1)))
    return max(relative(gathered, x), relative(mine.grad, gradient))


def check_reduce_scatter() -> float:
    """Check the reduce-scatter, forward and backward."""
    counts, own = _uneven(1)
    x = np.random.default_rng(2).standard_normal((len(counts), sum(counts), 3)).astype(np.float32)
    mine = paddle.to_tensor(x[distributed.rank()], stop_gradient=False)
    scattered = distributed._c_reducescatter(mine, counts)
    (scattered * (distributed.rank() + 1.0)).sum().backward()
    weights = np.repeat(np.arange(1.0, len(counts) + 1), counts)[:, None]
    return max(
        relative(scattered, x.astype(np.float64).sum(axis=0)[own]),
        relative(mine.grad, np.broadcast_to(weights, mine.shape)),
    )


def check_data_parallel() -> float:
    """Check that all ranks get rank 0's parameters and the averaged gradients."""
    paddle.seed(distributed.rank())
    model, average_gradients = distributed.data_parallel(paddle.nn.Linear(2, 1))
    weight = model.parameters()[0]
    model(paddle.ones([1, 2]) * (distributed.rank() + 1.0)).sum().backward()
    average_gradients()
    average = np.full(weight.shape, (distributed.world_size() + 1) / 2)
    return max(
        relative(weight.grad, average), relative(weight, distributed.gather_objects(weight.numpy())[0])
    )


PARTS = {
    "all_reduce, broadcast": (check_all_reduce, 1e-6),
    "_c_allgather": (check_gather, 1e-6),
    "_c_reducescatter": (check_reduce_scatter, 1e-6),
    "data parallel": (check_data_parallel, 1e-6),
    "head against float64": (head_error, LIMIT),
}


def run_parts() -> bool:
    """Run all parts on this rank. Rank 0 prints the worst errors over all ranks. Every rank calls it.

    Returns whether all parts passed.
    """
    rows, passed = [], True
    for part, (check, limit) in PARTS.items():
        if distributed.world_size() > 1:
            faulthandler.dump_traceback_later(_PART_SECONDS, exit=True)
        worst = max(distributed.gather_objects(check()))
        faulthandler.cancel_dump_traceback_later()
        rows.append([part, "pass" if worst <= limit else "FAIL", f"{worst:.1e}", f"{limit:g}"])
        passed = passed and worst <= limit
    if distributed.rank() == 0:
        ranks = f"{distributed.world_size()} rank{'s' if distributed.world_size() > 1 else ''}"
        print(f"\n{ranks} on {paddle.get_device()}, Paddle {paddle.__version__}\n")
        print(table(rows, ["part", "result", "worst error", "limit"]), flush=True)
    return passed


def main(argv: Sequence[str]) -> int:
    """Run `plsc selftest`. Return 0 if every part passed, else 1."""
    what = "Check collectives and head on this machine against simple numpy."
    parser = argparse.ArgumentParser("plsc selftest", description=what)
    parser.add_argument("--ranks", type=int, default=2, help="the largest number of processes (default: 2)")
    parser.add_argument("--device", default="auto", help="as Global.device: where to compute")
    args = parser.parse_args(argv)
    if args.ranks < 1:
        parser.error(f"--ranks must be 1 or more (got {args.ranks})")
    threads = environment.prepare(device=args.device)
    os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")  # the limits are float32's
    distributed.init(args.device, threads)
    passed = run_parts()
    if "PADDLE_TRAINER_ID" in os.environ:
        distributed.barrier()  # the launcher ends the other ranks once one exits with 1
        return int(not passed)
    kind = paddle.get_device().partition(":")[0]
    for ranks in sorted({2, args.ranks} if args.ranks > 1 else ()):
        device = kind if devices.count(kind) >= ranks else CPU
        asked = ["selftest", "--device", device]
        with tempfile.TemporaryDirectory(prefix="plsc-selftest-") as logs:
            ends = launcher.launch(asked, ranks, Path(logs), lambda text: print(text, end=""))
            if {*ends.values()} != {0}:
                others = [
                    path.read_text(errors="backslashreplace") for path in sorted(Path(logs).iterdir())[1:]
                ]
                print(f"\nFAILED on {ranks} ranks; the others say:\n{''.join(others)}")
                return 1
    print("\nall parts passed" if passed else "\nFAILED")
    return int(not passed)
