"""Measure how fast a checkpoint is saved, compared with plainly writing the same bytes to the same disk.

    python -m benchmarks save --classes 1000000 --dim 512 --folder output

One rank's centres and momentum are saved as training saves them. This includes the check for NaN,
safetensors files, checksums, fsync, the manifest and the rename. The plain write puts the same bytes into one
file and syncs it. With `--bank disk`, both read the bank from the disk. Nothing else runs, so the time of a
save is the pause that it causes in training.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.measure import reset_resident_peak, resident_bytes
from plsc.checkpoint import store
from plsc.checkpoint.tensorfile import blocks_of, layout
from plsc.errors import UserError
from plsc.heads.banks import Bank, build_bank
from plsc.heads.optimizer import Momentum
from plsc.heads.sampling import ClassShard
from plsc.native.bfloat16 import float32_of
from plsc.utils.preprocessing import Preprocessing

_ROWS = 65_536  # rows that are filled at a time


def add_arguments(part: argparse.ArgumentParser) -> None:
    part.add_argument("--classes", type=int, default=1_000_000)
    part.add_argument("--dim", type=int, default=512, help="embedding size")
    part.add_argument("--bank", choices=["device", "host", "disk"], default="device", help="Head.bank")
    part.add_argument(
        "--bank-dtype",
        choices=["float32", "bfloat16"],
        default="float32",
        help="bfloat16 only with host and disk",
    )
    part.add_argument("--runs", type=int, default=5, help="runs of each, in turn; medians count")
    part.add_argument(
        "--folder", default=".", help="a folder on the disk to measure; the files are deleted afterwards"
    )


def save(args: argparse.Namespace) -> dict:
    """Measure saving centres and momentum, in turn with plainly writing and syncing the same bytes."""
    if args.bank == "device" and args.bank_dtype != "float32":
        raise UserError("--bank-dtype: only with --bank host or disk")
    state = filled(args.bank, args.bank_dtype, args.classes, args.dim, args.folder).state()
    size = sum(math.prod(array.shape) * array.dtype.itemsize for array in state.values())
    seconds: dict[str, list[float]] = {"plain": [], "save": []}
    reset_resident_peak()
    before = resident_bytes()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for _ in range(args.runs):
            for name, write in (("plain", _plain), ("save", _save)):
                os.sync()  # so that earlier writes and deletions do not count
                began = time.perf_counter()
                made = write(Path(folder), state)
                seconds[name].append(time.perf_counter() - began)
                (shutil.rmtree if made.is_dir() else os.unlink)(made)
    plain, pause = (statistics.median(seconds[name]) for name in ("plain", "save"))
    return {
        "classes": args.classes,
        "dim": args.dim,
        "bank": f"{args.bank}, {args.bank_dtype}",
        "runs": args.runs,
        "megabytes": size / 1e6,
        "plain_seconds": seconds["plain"],
        "save_seconds": seconds["save"],
        "plain_mb_per_second": size / 1e6 / plain,
        "save_mb_per_second": size / 1e6 / pause,
        "save_over_plain_speed": plain / pause,
        "pause_seconds": pause,
        "more_memory_mb": (resident_bytes("VmHWM") - before) / 1e6,
    }


def filled(kind: str, dtype: str, classes: int, dim: int, folder: str) -> Bank:
    """Make a bank of `kind`, and fill all its rows and their momentum.

    Without that, zero pages would cost nothing to write. A bank on the disk has its file in `folder`.
    """
    settings = {"bias": False, "std": 0.01, "seed": 0, "rule": Momentum(0.9, 0.0)}
    bank = build_bank(kind, dtype, folder, ClassShard(classes, 0, classes), dim, **settings)
    for start in range(0, classes, _ROWS):
        rows = float32_of(np.asarray(bank.state()["centres"][start : start + _ROWS]))
        bank.load_rows(start, {"centres": rows, "momentum": -rows})
    return bank


def _plain(folder: Path, state: dict) -> Path:
    path = folder / "plain"
    with open(path, "xb", buffering=0) as file:
        for view in blocks_of(layout(state)):
            while len(view):
                view = view[file.write(view) :]
        os.fsync(file.fileno())
    return path


def _save(folder: Path, state: dict) -> Path:
    classes = len(state["centres"])
    network = {"stem.weight": np.zeros((64, 3, 3, 3), np.float32)}
    return store.save(
        folder,
        store.Content(
            step=1,
            epoch=1,
            states={"backbone": {"arrays": network}, "optimizer": {"arrays": network}},
            rows=state,
            num_classes=classes,
            shard=(0, classes),
            config={},
            preprocessing=Preprocessing((3, 112, 112)),
        ),
    )


def show(result: dict) -> str:
    share = 100 * result["save_over_plain_speed"]
    more = max(result["more_memory_mb"], 0)
    return (
        f"{result['classes']:,} classes x {result['dim']}, bank {result['bank']}, "
        f"{result['megabytes']:,.0f} MB, medians of {result['runs']} runs in turn\n"
        f"plain write and fsync  {result['plain_mb_per_second']:,.0f} MB/s\n"
        f"checkpoint             {result['save_mb_per_second']:,.0f} MB/s, {share:.0f} % of it\n"
        f"training pauses for {result['pause_seconds']:.2f} s, with {more:,.0f} MB more of memory"
    )
