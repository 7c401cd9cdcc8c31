"""Measure the collectives of plsc.distributed that training calls, by size and world size.

    python -m benchmarks collectives --ranks 2 4 --kb 1 1024 65536

Each world size is measured in new processes. A size belongs to one rank's part: its rows in a gather, or
its array in a sum.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks import measure, run_ranks
from benchmarks.machine import describe_machine, format_machine
from plsc.errors import UserError
from plsc.utils.text import table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[2], help="processes on this machine, at least 2"
    )
    parser.add_argument(
        "--kb", type=int, nargs="+", default=[1, 64, 1024, 16384], help="message sizes in units of 1024 bytes"
    )
    parser.add_argument("--runs", type=int, default=9, help="runs of each, in turn; medians count")
    parser.add_argument("--device", default="cpu", help="as Global.device")
    parser.add_argument(
        "--row",
        type=Path,
        help="measure in this process, which is one of the ranks, and write the result to this file",
    )


def collectives(args: argparse.Namespace) -> dict:
    """Measure how long each collective takes between processes on this machine."""
    if args.row:
        return {"rows": measure_rows(args.kb, args.runs, args.device)}
    rows = []
    for ranks in args.ranks:
        if ranks < 2:
            raise UserError(f"--ranks: one process has no collectives (got {ranks}), give 2 or more")
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder, "rows.json")
            asked = ["collectives", "--kb", *map(str, args.kb), "--runs", str(args.runs)]
            asked += ["--device", args.device, "--row", str(target)]
            last_line = run_ranks(asked, ranks, Path(folder, "log"))
            if not target.exists():
                raise UserError(f"{ranks} ranks were not measured: {last_line}")
            rows += json.loads(target.read_text())["rows"]
    return {**describe_machine(), "rows": rows}


def measure_rows(sizes_kb: list[int], runs: int, device: str) -> list[dict]:
    """Measure the rows for the current world size. Every rank calls this."""
    from plsc.distributed import environment

    threads = environment.prepare()
    from plsc import distributed

    distributed.init(device, threads)
    asked = [("count", 0), *((what, kb) for what in ("sum", "gather", "reduce-scatter") for kb in sizes_kb)]
    work = {(what, kb): _collective(what, kb << 10) for what, kb in asked}
    measure.alternate(1, work, measure.finish)
    return [
        {"what": what, "ranks": distributed.world_size(), "kb": kb, "seconds": seconds}
        for (what, kb), seconds in measure.alternate(runs, work, measure.finish).items()
    ]


def _collective(name: str, size: int) -> Callable[[], object]:
    """Return a function that calls a collective. `size`: bytes in one rank's part."""
    import paddle

    from plsc import distributed

    if name == "count":
        return lambda: distributed.all_reduce(paddle.zeros([1])).item()
    numbers, ranks = size // 4, distributed.world_size()
    x = paddle.zeros([numbers * ranks if name == "reduce-scatter" else numbers])
    counts = [numbers] * ranks
    return {
        "sum": lambda: distributed.all_reduce(x),
        "gather": lambda: distributed._c_allgather(x, counts),
        "reduce-scatter": lambda: distributed._c_reducescatter(x, counts),
    }[name]


def show(result: dict) -> str:
    rows = [[row["what"], row["ranks"], row["kb"] or None, 1e3 * row["seconds"]] for row in result["rows"]]
    return f"{format_machine(result)}\n{table(rows, ['collective', 'ranks', 'KiB', 'ms'])}"
