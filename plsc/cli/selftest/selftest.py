"""Check collectives, heads and checkpoints on this machine against simple numpy, in under two minutes.

    plsc selftest                 on this process and, launched, on 2 ranks
    plsc selftest --ranks 4       on 4 ranks too; --ranks 1: on this process only
    plsc selftest --nnodes 2 --rank 0 --master 10.0.0.1:8090 --nproc_per_node 8    on several machines
    python -m paddle.distributed.launch --nproc_per_node 4 plsc/__main__.py selftest          in a launch of yours


A part that raises on one of several ranks ends that rank, because the others may be waiting for it; the
launching process then starts new ranks for the remaining parts. The parts: parts.py.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import paddle

from plsc import distributed
from plsc.apps.supervise.selftest_of_machines import make_parser
from plsc.cli.selftest.parts import PARTS
from plsc.distributed import device as devices
from plsc.distributed import environment, launcher
from plsc.distributed.environment import CPU
from plsc.distributed.network import measure_network
from plsc.utils.text import table

PART_SECONDS = 60  # a part that takes longer on several ranks is ended: a rank is probably waiting for ever


@dataclass
class Row:
    """The result of a part: its worst error and the name of that, or why and when (seconds) it failed."""

    part: str
    worst: float = 0.0
    of: str = ""
    failure: str = ""
    time: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.failure and self.worst <= PARTS[self.part][1]

    def cells(self) -> list[str]:
        number = self.failure or (f"{self.worst:.1e} {self.of}" if self.worst else "0")
        return [self.part, "pass" if self.passed else "FAIL", number, f"{PARTS[self.part][1]:g}"]


def run_part(part: str) -> Row:
    """Run one part on this rank, and catch what it raises."""
    try:
        worst = PARTS[part][0]()
    except Exception as error:  # noqa: BLE001 (a broken part must not hide the others)
        traceback.print_exc()
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Row(part, failure=text[:90], time=time.time())
    of = max(worst, key=worst.get)
    return Row(part, worst[of], of)


def run_parts(parts: Sequence[str], results: Path | None) -> list[Row]:
    """Run the parts on this rank, up to the first that raises if there are other ranks.

    Args:
        results: folder for this rank's file: the name of each part when it begins, and its row; None: no
            file.
    """
    rows: list[Row] = []
    for part in parts:
        _write(results, part)
        if distributed.world_size() > 1:
            faulthandler.dump_traceback_later(PART_SECONDS, exit=True)
        rows.append(run_part(part))
        faulthandler.cancel_dump_traceback_later()
        _write(results, asdict(rows[-1]))
        if rows[-1].failure and distributed.world_size() > 1:
            break
    return rows


def _write(results: Path | None, line: str | dict) -> None:
    if results is not None:
        with open(results / f"rank-{distributed.rank()}.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def launch_parts(parts: Sequence[str], ranks: int, device: str, folder: Path) -> list[Row]:
    """Run the parts on `ranks` processes of this machine; each row is the worst of all ranks.

    Logs: `folder`.
    """
    rows: list[Row] = []
    while len(rows) < len(parts):
        left = parts[len(rows) :]
        results = folder / f"{ranks}-ranks-from-part-{len(rows) + 1}"
        results.mkdir()
        arguments = ["selftest", "--device", device, "--results", str(results), "--parts", *left]
        code = launcher.launch(arguments, ranks, results / "log", say=lambda line: None, device=device)
        joined = join_ranks(left, [_read(results / f"rank-{rank}.jsonl") for rank in range(ranks)])
        why = f"the launch of {ranks} ranks ended with exit code {code} before it"
        rows += joined or [Row(part, failure=why) for part in left]
    return rows


def _read(path: Path) -> list[str | dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def join_ranks(parts: Sequence[str], lines_of_rank: list[list]) -> list[Row]:
    """Join the lines of all ranks to a row for each part, up to the first part that failed on a rank."""
    rows = []
    for part in parts:
        ended = [
            [Row(**line) for line in lines if line != part and _part(line) == part] for lines in lines_of_rank
        ]
        began = [rank for rank, lines in enumerate(lines_of_rank) if part in lines]
        failures = [
            (row[0].time, rank, row[0].failure) for rank, row in enumerate(ended) if row and row[0].failure
        ]
        if failures:  # the first to fail: the others failed because it ended
            _, rank, failure = min(failures)
            return [*rows, Row(part, failure=f"rank {rank}: {failure}")]
        if not all(ended):
            lost = [rank for rank in began if not ended[rank]]
            return [*rows, Row(part, failure=f"rank {lost[0]} ended in it")] if lost else rows
        rows.append(max((row[0] for row in ended), key=lambda row: row.worst))
    return rows


def _part(line: str | dict) -> str | None:
    return line["part"] if isinstance(line, dict) else None


def _show(where: str, rows: list[Row]) -> list[str]:
    """Print the table, and return the names of the parts that failed."""
    print(
        f"\n{where}\n\n{table([row.cells() for row in rows], ['part', 'result', 'worst error', 'limit'])}",
        flush=True,
    )
    return [f"{row.part} ({where})" for row in rows if not row.passed]


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = make_parser(list(PARTS))
    args = parser.parse_args(argv)
    if args.ranks < 1:
        parser.error(f"--ranks must be at least 1 (got {args.ranks})")
    if (args.config or args.override) and "PADDLE_TRAINER_ID" not in os.environ:
        parser.error("-c and -o are compared between machines, give --nnodes too")
    args.parts = args.parts or list(PARTS)
    return args


def main(argv: Sequence[str]) -> int:
    """Run `plsc selftest` here; return 0 if every part passed, else 1. In a launch: of this rank alone."""
    args = _arguments(argv)
    threads, _ = environment.prepare(device=args.device)
    distributed.init(args.device, threads, tf32=False)  # the limits are those of float32
    rows = run_parts(args.parts, args.results)
    ranks, device = distributed.world_size(), paddle.get_device().partition(":")[0]
    if args.results is not None:
        return int(
            any(row.failure for row in rows)
        )  # the launching process compares the numbers with the limits
    failed = _show(f"{ranks} rank{'s' if ranks > 1 else ''} on {device}, Paddle {paddle.__version__}", rows)
    if "PADDLE_TRAINER_ID" in os.environ:
        if len(rows) == len(args.parts) and not rows[-1].failure:
            if environment.machines_from_env() > 1:
                print(f"\nnetwork: {measure_network()}")
            distributed.barrier()  # the launcher ends the other ranks once one exits with 1
        return int(bool(failed))
    if args.ranks > 1:
        failed += _launch_all(args.parts, sorted({2, args.ranks}), device)
    print(f"\nFAILED: {'; '.join(failed)}" if failed else "\nall parts passed")
    return int(bool(failed))


def _launch_all(parts: Sequence[str], numbers: Sequence[int], device: str) -> list[str]:
    """Launch each number of ranks, print its table, and return the failed parts; then logs are kept."""
    folder = Path(tempfile.mkdtemp(prefix="plsc-selftest-"))
    failed = []
    for ranks in numbers:
        here = _device_for(ranks, device)
        failed += _show(f"{ranks} ranks on {here}", launch_parts(parts, ranks, here, folder))
    if failed:
        print(f"\nlogs of the ranks: {folder}")
    else:
        shutil.rmtree(folder)
    return failed


def _device_for(ranks: int, device: str) -> str:
    """Choose the kind of device if there is a card for each rank, else the CPU."""
    return CPU if devices.count(device) < ranks else device
