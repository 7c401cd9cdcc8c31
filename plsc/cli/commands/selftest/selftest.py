"""Check this machine: the collectives, the heads and the checkpoints against slow and obvious numpy, in under two minutes.

    plsc-selftest                 on this process and, launched, on 2 ranks
    plsc-selftest --ranks 4       on 4 ranks too; --ranks 1: on this process only
    python -m paddle.distributed.launch --nproc_per_node 4 tools/selftest.py          in a launch of yours

A part that raises on one of several ranks ends that rank, because the others may be waiting for it; whoever launched the ranks
then starts new ones for the parts that are left. The parts: selftest_parts.py.
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
from plsc.cli.commands.selftest.parts import PARTS
from plsc.distributed import launcher
from plsc.utils.text import table

PART_SECONDS = 60  # a part that takes longer on several ranks is ended: one of them waits in vain


@dataclass
class Row:
    """What became of a part: its worst error and what that is of, or why there is none and since when (seconds)."""

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
    """One part on this rank, whatever it raises."""
    try:
        worst = PARTS[part][0]()
    except Exception as error:  # noqa: BLE001 (a broken part must not hide the others)
        traceback.print_exc()
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Row(part, failure=text[:90], time=time.time())
    of = max(worst, key=worst.get)
    return Row(part, worst[of], of)


def run_parts(parts: Sequence[str], results: Path | None) -> list[Row]:
    """The parts on this rank, up to the first that raises if there are other ranks.

    Args:
        results: folder for this rank's file of rows, a name alone where a part begins; None writes none.
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
    """The parts on `ranks` processes of this machine, each row the worst of all ranks. Logs go below `folder`."""
    rows: list[Row] = []
    while len(rows) < len(parts):
        left = parts[len(rows) :]
        results = folder / f"{ranks}-ranks-from-part-{len(rows) + 1}"
        results.mkdir()
        arguments = ["selftest", "--device", device, "--results", str(results), "--parts", *left]
        code = launcher.launch(arguments, ranks, results / "log", say=lambda line: None)
        found = join_ranks(left, [_read(results / f"rank-{rank}.jsonl") for rank in range(ranks)])
        why = f"the launch of {ranks} ranks ended with exit code {code} before it"
        rows += found or [Row(part, failure=why) for part in left]
    return rows


def _read(path: Path) -> list[str | dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def join_ranks(parts: Sequence[str], lines_of_rank: list[list]) -> list[Row]:
    """One row for each part, from what every rank wrote, up to and with the first part that a rank did not end well."""
    rows = []
    for part in parts:
        found = [
            [Row(**line) for line in lines if line != part and _part(line) == part] for lines in lines_of_rank
        ]
        began = [rank for rank, lines in enumerate(lines_of_rank) if part in lines]
        failures = [
            (row[0].time, rank, row[0].failure) for rank, row in enumerate(found) if row and row[0].failure
        ]
        if failures:  # the first to fail: the others' complaint is that it left them
            _, rank, failure = min(failures)
            return [*rows, Row(part, failure=f"rank {rank}: {failure}")]
        if not all(found):
            lost = [rank for rank in began if not found[rank]]
            return [*rows, Row(part, failure=f"rank {lost[0]} ended in it")] if lost else rows
        rows.append(max((row[0] for row in found), key=lambda row: row.worst))
    return rows


def _part(line: str | dict) -> str | None:
    return line["part"] if isinstance(line, dict) else None


def _show(where: str, rows: list[Row]) -> list[str]:
    """Print the table; the names of the parts that failed."""
    print(
        f"\n{where}\n\n{table([row.cells() for row in rows], ['part', 'result', 'worst error', 'limit'])}",
        flush=True,
    )
    return [f"{row.part} ({where})" for row in rows if not row.passed]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("plsc-selftest", description="check this machine against dense numpy")
    parser.add_argument(
        "--ranks", type=int, default=2, metavar="N", help="1: this process only; above 2: 2 and N"
    )
    parser.add_argument("--device", choices=["auto", "cpu", "gpu"], default="auto")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART")
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.ranks < 1:
        parser.error(f"--ranks must be at least 1 (got {args.ranks})")
    return args


def main(argv: Sequence[str] | None, threads: int) -> int:
    """Exit code 0 if every part passed, 1 if not. In a launch: of this rank alone."""
    args = _arguments(argv)
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"  # its products have 10 bits, and the limits are those of float32
    distributed.init(args.device, threads)
    rows = run_parts(args.parts, args.results)
    ranks, device = distributed.world_size(), paddle.get_device().partition(":")[0]
    if args.results is not None:
        return int(any(row.failure for row in rows))  # whoever launched it judges the numbers
    failed = _show(f"{ranks} rank{'s' if ranks > 1 else ''} on {device}, Paddle {paddle.__version__}", rows)
    if "PADDLE_TRAINER_ID" in os.environ:
        if len(rows) == len(args.parts) and not rows[-1].failure:
            distributed.barrier()  # the launcher ends the other ranks once one says 1
        return int(bool(failed))
    if args.ranks > 1:
        failed += _launch_all(args.parts, sorted({2, args.ranks}), device)
    print(f"\nFAILED: {'; '.join(failed)}" if failed else "\nall parts passed")
    return int(bool(failed))


def _launch_all(parts: Sequence[str], numbers: Sequence[int], device: str) -> list[str]:
    """The tables of each number of ranks; what failed. The ranks' logs are kept then."""
    folder, failed = Path(tempfile.mkdtemp(prefix="plsc-selftest-")), []
    for ranks in numbers:
        here = _device_for(ranks, device)
        failed += _show(f"{ranks} ranks on {here}", launch_parts(parts, ranks, here, folder))
    if failed:
        print(f"\nlogs of the ranks: {folder}")
    else:
        shutil.rmtree(folder)
    return failed


def _device_for(ranks: int, device: str) -> str:
    """The GPUs if there is one for each rank."""
    return "cpu" if device == "cpu" or paddle.device.cuda.device_count() < ranks else "gpu"
