"""Inspect, verify and average checkpoints: `plsc ckpt`. No Paddle.

plsc ckpt inspect output/checkpoints/step-00000656
plsc ckpt average output --last 5 --output averaged
"""

import argparse
import os
from collections.abc import Sequence
from typing import Any

from plsc.checkpoint.average import average
from plsc.checkpoint.saved import Checkpoint
from plsc.checkpoint.store import newest_below
from plsc.errors import escape_lines
from plsc.utils.text import table

_SHOWN = ("Model", "Head", "Optimizer")  # the config's sections


def inspect(folder: str) -> str:
    """Describe a checkpoint, or a run's newest one, in two tables. It reads headers
    and sizes, but no data."""
    saved = Checkpoint.open(newest_below(folder), verify=False)
    manifest, names, config, made = saved.manifest, saved.classes(), saved.config, saved.evaluation
    arrays = "; ".join(
        f"{name} {entry.code} {[saved.num_classes, *entry.shape[1:]]}"
        for name, entry in saved.head_arrays.items()
    )
    rows = [
        ("step", f"{saved.step:,}, epoch {saved.epoch}"),
        ("classes", f"{saved.num_classes:,}"),
        ("numbers per class", f"{saved.row_width} (embedding size x sub-centres)"),
        ("names", "none" if names is None else f"{len(names):,}, from {', '.join(names[:5])}"),
        ("world size", manifest.world_size),
        ("head", arrays),
        ("weights to use", saved.weights_file),
        ("preprocessing", _line(saved.preprocessing.to_json())),
        ("evaluation", f"{made.metric} {made.value} on {made.set}" if made else "none"),
        *((name, _line(config[name])) for name in _SHOWN if name in config),
        ("written by", f"plsc {manifest.plsc}"),
    ]
    classes = {part.file: f"[{part.start}, {part.stop})" for part in manifest.heads}
    files = [
        (name, f"{info.bytes:,}", classes.get(name, "-"), info.crc32) for name, info in manifest.files.items()
    ]
    headers = ["file", "bytes", "classes", "crc32"]
    return f"{table(rows, ['checkpoint', str(saved.path)])}\n\n{table(files, headers)}"


def _line(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items()) or "none"


def verify(folder: str) -> str:
    """Verify every byte in a checkpoint, or in a run's newest one, and return a report. Raises UserError for
    the first bad file."""
    saved = Checkpoint.open(newest_below(folder))
    count, size = len(saved.manifest.files), sum(info.bytes for info in saved.manifest.files.values())
    return f"{saved.path}: complete, {count} files, {size:,} bytes, every checksum is right"


def main(argv: Sequence[str]) -> int:
    """Run `plsc ckpt`. Raises UserError."""
    parser = argparse.ArgumentParser("plsc ckpt", description="Inspect, verify and average checkpoints.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, what in (("inspect", "show what a checkpoint contains"), ("verify", "compare every checksum")):
        verb = verbs.add_parser(name, help=what, description=what)
        verb.add_argument("folder", help="a checkpoint, or a run, whose newest one is used")
    what = "write the mean of a run's checkpoints"
    verb = verbs.add_parser("average", help=what, description=what)
    verb.add_argument("run", help="the folder of a run")
    verb.add_argument("--last", type=int, metavar="K", help="only the K newest checkpoints; default: all")
    verb.add_argument("--output", required=True, metavar="FOLDER", help="a new folder")
    args = parser.parse_args(argv)
    if args.verb == "inspect":
        report = inspect(args.folder)
    elif args.verb == "verify":
        report = verify(args.folder)
    else:
        report = average(args.run, args.last, args.output)
    print(escape_lines(report.removeprefix(f"{os.getcwd()}/")))
    return 0
