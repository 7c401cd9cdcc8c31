"""Inspect, verify, reshard, average and edit checkpoints, find duplicates in them, and export and import
their centres: `plsc ckpt`. No Paddle.

    plsc ckpt inspect output/checkpoints/step-00000656
    plsc ckpt reshard output/checkpoints/step-00000656 --ranks 3 --output cut/step-00000656

Nothing is changed in place, and a target appears under its name only when it is whole. docs/resume.md
explains the verbs.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any

from plsc.checkpoint.average import average
from plsc.checkpoint.centres import export_centres
from plsc.checkpoint.duplicates import find_duplicates
from plsc.checkpoint.identities import edit_identities
from plsc.checkpoint.manifest import config_sections
from plsc.checkpoint.reshard import reshard
from plsc.checkpoint.saved import Checkpoint
from plsc.errors import UserError, shown_lines
from plsc.training.thresholds import thresholds_of
from plsc.utils.text import table

MOST_RANKS = 99_999  # a head file's name has five digits
_SHOWN = ("Model", "Head", "Optimizer")  # sections of the config


def inspect(folder: str) -> dict[str, Any]:
    """Describe a checkpoint as plain values, for `inspect --json`. Reads headers and sizes, no data."""
    saved = Checkpoint.open(folder, verify=False)
    manifest, names = saved.manifest, saved.classes()
    ranges = {part.file: [part.start, part.stop] for part in manifest.heads}
    config = config_sections(saved.config_yaml)
    return {
        "folder": str(saved.path),
        "plsc": manifest.plsc,
        "step": saved.step,
        "epoch": saved.epoch,
        "num_classes": saved.num_classes,
        "embedding_size": saved.embedding_size,
        "world_size": manifest.world_size,
        "head": {
            name: [
                "bfloat16" if entry.code == "BF16" else str(entry.dtype),
                saved.num_classes,
                *entry.shape[1:],
            ]
            for name, entry in saved.head_arrays.items()
        },
        "files": [
            {"file": name, "bytes": info.bytes, "crc32": info.crc32, "classes": ranges.get(name)}
            for name, info in manifest.files.items()
        ],
        "weights": saved.weights_file,
        "names": None if names is None else {"count": len(names), "first": names[:5]},
        "preprocessing": saved.preprocessing,
        "best": saved.best.model_dump() if saved.best else None,
        "state": manifest.state,
        "config": {key: config[key] for key in _SHOWN if key in config},
    }


def format_facts(facts: dict[str, Any]) -> str:
    """Format the facts of inspect() as tables."""
    best, names = facts["best"], facts["names"]
    arrays = [
        f"{name} {kind} [{', '.join(map(str, shape))}]" for name, (kind, *shape) in facts["head"].items()
    ]
    rows = [
        ("step", f"{facts['step']:,}, epoch {facts['epoch']}"),
        ("classes", f"{facts['num_classes']:,}, embeddings of {facts['embedding_size']}"),
        ("names", "none" if names is None else f"{names['count']:,}, from {', '.join(names['first'])}"),
        ("world size", facts["world_size"]),
        ("head", "; ".join(arrays)),
        ("weights to use", facts["weights"]),
        ("preprocessing", _line(facts["preprocessing"])),
        ("best", _line(best) if isinstance(best, dict) else "none so far" if best is None else best),
        *((name, _line(section)) for name, section in facts["config"].items()),
        ("written by", f"plsc {facts['plsc']}"),
    ]
    files = [
        (entry["file"], f"{entry['bytes']:,}", *(_range(entry["classes"])), entry["crc32"])
        for entry in facts["files"]
    ]
    headers = ["file", "bytes", "classes", "rows", "crc32"]
    return f"{table(rows, ['checkpoint', facts['folder']])}\n\n{table(files, headers)}"


def _line(values: Any) -> str:
    if not isinstance(values, dict):
        return str(values)
    return ", ".join(f"{key} {value}" for key, value in values.items()) or "none"


def _range(classes: list[int] | None) -> tuple[str, int | None]:
    return ("-", None) if classes is None else (f"[{classes[0]}, {classes[1]})", classes[1] - classes[0])


def verify(folder: str) -> str:
    """Verify every byte of a checkpoint; return a report. Raises UserError that names the first bad file."""
    saved = Checkpoint.open(folder)
    count, size = len(saved.manifest.files), sum(info.bytes for info in saved.manifest.files.values())
    there = {path.name for path in saved.path.iterdir()} - {"manifest.json", *saved.manifest.files}
    more = f"; not of the checkpoint and not checked: {', '.join(sorted(there))}" if there else ""
    return f"{saved.path}: whole, {count} files, {size:,} bytes, every checksum is right{more}"


def cut(folder: str, target: str, ranks: int, verb: str = "reshard") -> str:
    """Merge, split or reshard `folder` into the new folder `target`; return a report."""
    if not 1 <= ranks <= MOST_RANKS:
        raise UserError(f"--ranks: must be an integer in [1, {MOST_RANKS}] (got {ranks})")
    saved = Checkpoint.open(folder)
    if verb == "split" and len(saved.manifest.heads) > 1:
        raise UserError(
            f"{folder}: has {len(saved.manifest.heads)} head files already; reshard --ranks {ranks} cuts them anew"
        )
    made = reshard(saved, target, ranks)
    was = f"{len(saved.manifest.heads)} head file{'s' * (len(saved.manifest.heads) != 1)}"
    return f"{made}: {saved.num_classes:,} classes in {ranks} head file{'s' * (ranks != 1)}, from {was}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("plsc ckpt", description="Checkpoints and class centres, offline.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, what: str, *, folder: bool = True, output: str | None = None) -> Any:
        made = verbs.add_parser(name, help=what, description=what)
        if folder:
            made.add_argument("folder", help="a checkpoint, such as output/checkpoints/step-00000656")
        if output:
            made.add_argument("--output", metavar="TARGET", required=True, help=output)
        return made

    new = "a new folder"
    verb("inspect", "what is in a checkpoint").add_argument(
        "--json", action="store_true", help="as JSON, all of it"
    )
    verb("verify", "compare every checksum")
    verb("merge", "the head in one file", output=new)
    for name, what in (("split", "one head file cut for N ranks"), ("reshard", "any number cut for N ranks")):
        verb(name, what, output=new).add_argument("--ranks", type=int, required=True, metavar="N")
    export = verb("export-centres", "the class centres alone", output="NAME.safetensors or NAME.npy")
    export.add_argument("--names", action="store_true", help="the classes' names too, in TARGET.names.json")
    export.add_argument("--normalise", action="store_true", help="to length 1")
    near = verb("duplicates", "pairs of classes that are probably one identity", folder=False)
    near.add_argument("run", metavar="RUN", help="a checkpoint, or a run's folder: its newest one")
    near.add_argument(
        "--threshold", type=float, metavar="T", help="cosine of two centres above which they are a pair"
    )
    near.add_argument("--top", type=int, metavar="N", help="the N nearest pairs only")
    near.add_argument("--output", metavar="FILE.csv", help="all pairs, for edit-identities --merge-list")
    mean = verb("average", "the mean of checkpoints of a run", folder=False, output=new)
    mean.add_argument("folders", nargs="+", metavar="CHECKPOINT", help="checkpoints, or the folder of a run")
    mean.add_argument(
        "--last", type=int, metavar="K", help="the K newest of the run; all that are there without it"
    )
    edit = verb("edit-identities", "rename, merge and drop classes by name", output=new)
    edit.add_argument("--rename", nargs="+", action="extend", default=[], metavar="old=new")
    edit.add_argument("--drop", nargs="+", action="extend", default=[], metavar="name")
    edit.add_argument(
        "--merge",
        nargs="+",
        action="append",
        default=[],
        metavar="name",
        help="names of one identity; the first stays",
    )
    edit.add_argument(
        "--merge-list", metavar="FILE", help="pairs to merge, as `duplicates --output` writes them"
    )
    edit.add_argument("--keep-list", metavar="FILE", help="drop all classes but these, a name a line")
    edit.add_argument("--names", metavar="FILE", help="names for a checkpoint without, a line a class")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `plsc ckpt`. Raises UserError."""
    args = _parser().parse_args(argv)
    if args.verb == "inspect":
        facts = inspect(args.folder)
        print(json.dumps(facts, indent=1) if args.json else shown_lines(format_facts(facts)))
        return 0
    if args.verb == "verify":
        report = verify(args.folder)
    elif args.verb in ("merge", "split", "reshard"):
        report = cut(args.folder, args.output, getattr(args, "ranks", 1), args.verb)
    elif args.verb == "export-centres":
        report = export_centres(args.folder, args.output, args.names, args.normalise)
    elif args.verb == "duplicates":
        report = find_duplicates(
            args.run, args.threshold, args.top, args.output, lambda saved: thresholds_of(saved).threshold
        )
    elif args.verb == "average":
        report = average(args.folders, args.last, args.output)
    else:
        lists = args.rename, args.drop, args.keep_list, args.names, args.merge, args.merge_list
        report = edit_identities(args.folder, args.output, *lists)
    print(shown_lines(report.removeprefix(f"{os.getcwd()}/")))
    return 0
