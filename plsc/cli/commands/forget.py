"""plsc forget: take people out of a trained network, and write a receipt of it.

    plsc forget output Ann Bob --to output-without --gallery faces.gallery

The new run has neither their centres nor the optimizer's state of these, and is trained on without their images for three
eighths of the run's length. forgotten.json and forgotten.txt in its folder say what was done and what a membership test finds.
"""

from __future__ import annotations

import argparse
import json
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plsc.apps.serving.gallery import Gallery
from plsc.checkpoint import store
from plsc.checkpoint.class_names import format_names
from plsc.checkpoint.saved import Checkpoint
from plsc.config import add_overrides, load
from plsc.distributed import environment
from plsc.errors import MissingFileError, UserError, shown
from plsc.utils.atomic_write import remove, replace_file
from plsc.utils.logging import warn
from plsc.utils.registry import did_you_mean
from plsc.utils.text import table
from plsc.utils.version import __version__

_PROVES = (
    "What it shows: whether the network treats the training images of these people otherwise than images of people whom it has "
    "never seen, as far as these two scores can tell. 0.5 is what a guess has. What it does not show: that nothing of them is left. "
    "Another score may find more, and the intervals of few people are wide. Only a network that is trained anew without them never had "
    "them. Copies of images, networks, galleries and embeddings elsewhere are not known here."
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "plsc forget", description="Take people out of a trained network, and write a receipt of it."
    )
    parser.add_argument("run", help="folder of the run, Global.output_dir")
    parser.add_argument(
        "names", nargs="+", metavar="NAME", help="of classes, as in the checkpoint's classes.json"
    )
    parser.add_argument(
        "--to", metavar="FOLDER", help="of the run without them; default: the run's, and -without"
    )
    parser.add_argument("--ranks", type=int, default=1, help="processes of the repair (default: 1)")
    parser.add_argument(
        "--gallery", action="append", default=[], metavar="FOLDER", help="remove them from it, too"
    )
    parser.add_argument(
        "--delete-old",
        action="store_true",
        help="delete the run's checkpoints, exports and dumps that were made with them",
    )
    add_overrides(parser, "change the config of the repair, such as Global.epochs=4")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run `plsc forget`. Raises UserError."""
    args = _parser().parse_args(argv)
    if args.ranks < 1:
        raise UserError(f"--ranks: must be at least 1, got {args.ranks}")
    run = Path(args.run)
    output = Path(args.to or f"{run.resolve() if run.name in ('', '..') else run}-without")
    names = list(dict.fromkeys(args.names))
    checkpoint = _check(run, names, output)
    galleries = [Gallery.open(folder) for folder in args.gallery]
    environment.prepare()
    from plsc.training import forget

    cfg = load(run / "config.yaml", args.override)
    repaired = forget.repair_config(cfg, checkpoint, names, str(output), args.override)
    tested, strangers = forget.read_pictures(cfg, names)
    forget.check_repair(repaired, args.ranks)
    if cfg.Global.compatible_with and not repaired.Global.compatible_with:
        warn(
            f"Global.compatible_with is left out of the repair, since {shown(cfg.Global.compatible_with)} may have been trained "
            "with them; embed its galleries anew by the new network"
        )
    before, dropped = forget.test(cfg, checkpoint, tested, strangers, (), names)
    made = forget.repair(repaired, args.ranks)
    (after,) = forget.test(repaired, made, tested, strangers, ())
    of_old, of_new = _identify(checkpoint), _identify(made)
    held = forget.holders(run, names)
    receipt = {
        "forgotten": names,
        "images": len(tested.samples),
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "plsc": __version__,
        "from": of_old,
        "to": of_new,
        "strangers": {"set": strangers.title, "images": len(strangers.samples), "named": strangers.named},
        "membership": {
            "as trained": _plain(before),
            "without the centres": _plain(dropped),
            "after the repair": _plain(after),
        },
        "galleries": {},
        "deleted": [],
        "still there": [str(path) for path in held],
    }
    _write(output, receipt)  # what is removed below may fail halfway
    for gallery in galleries:
        receipt["galleries"][str(gallery.folder)] = gallery.erase(names)
        _write(output, receipt)
    if args.delete_old:
        for path in held:
            remove(path)
        receipt["deleted"], receipt["still there"] = receipt["still there"], []
    print(f"{_write(output, receipt)}done: {output / 'forgotten.txt'}, forgotten.json")
    return 0


def _write(output: Path, receipt: dict[str, Any]) -> str:
    """Write the receipt -> its text for people."""
    text = _format(receipt)
    as_json = json.dumps(receipt, indent=1, ensure_ascii=False) + "\n"
    for name, content in (("forgotten.json", as_json), ("forgotten.txt", text)):
        replace_file(output / name, content.encode("utf-8", "backslashreplace"))
    return text


def _check(run: Path, names: Sequence[str], output: Path) -> Path:
    """Find the newest checkpoint of a run. UserError if it does not know one of the names, or `output` has a run."""
    if not (run / "config.yaml").is_file():
        raise MissingFileError(f"{shown(run)}: has no config.yaml; name the folder of a run")
    checkpoint = store.find(run / "checkpoints")
    if checkpoint is None:
        raise MissingFileError(f"{shown(run)}: has no checkpoint, so nobody has to be forgotten")
    known = Checkpoint.open(checkpoint, whole=True).classes()
    if known is None:
        raise UserError(
            f"{checkpoint}: its classes have no names; plsc ckpt edit-identities --names gives some"
        )
    if lacking := set(names).difference(known):
        name = min(lacking)
        raise UserError(f"{checkpoint}: has no class '{shown(name)}'{did_you_mean(name, known)}")
    if (output / "checkpoints").exists():
        raise UserError(f"--to: {shown(output)} has a run already; name another folder")
    return checkpoint


def _identify(checkpoint: Path) -> dict[str, Any]:
    saved = Checkpoint.open(checkpoint, verify=False)
    return {"checkpoint": str(checkpoint), "network": saved.network, "classes": saved.num_classes}


def _plain(membership: Any) -> dict[str, Any]:
    return {score: auc and auc._asdict() for score, auc in membership._asdict().items()}


def _format(receipt: dict[str, Any]) -> str:
    """Format a receipt for people."""
    names = [shown(name) for name in receipt["forgotten"]]
    lines = [f"{len(names):,} forgotten: {format_names(names)}", f"{receipt['time']}, plsc {receipt['plsc']}"]
    for which in ("from", "to"):
        facts = receipt[which]
        lines.append(
            f"{which:5}{shown(facts['checkpoint'])}, {facts['classes']:,} classes, network {facts['network']}"
        )
    strangers = receipt["strangers"]
    lines.append(
        f"\nMembership test: {receipt['images']:,} training images of theirs against {strangers['images']:,} images of people "
        f"never trained on ({shown(strangers['set'])})\n"
    )
    if not strangers["named"]:
        lines.append("These have no names to compare: that they were never trained on is not checked.\n")
    rows = [
        [network, *(_format_auc(scores[score]) for score in ("nearest", "alike"))]
        for network, scores in receipt["membership"].items()
    ]
    lines.append(table(rows, ["network", "AUC: nearest centre", "AUC: alike among themselves"]))
    lines += ["", textwrap.fill(_PROVES, 120), ""]
    for gallery, there in receipt["galleries"].items():
        lines.append(f"gallery {shown(gallery)}: removed {format_names([*map(shown, there)]) or 'nobody'}")
    lines += [f"deleted: {shown(path)}" for path in receipt["deleted"]]
    lines += [f"made with them, and still there: {shown(path)}" for path in receipt["still there"]]
    lines.append(
        "Their images are still in the data: delete them, and then their names in DataLoader.Train.without."
    )
    return "\n".join(lines) + "\n"


def _format_auc(auc: dict[str, float] | None) -> str:
    return "-" if auc is None else f"{auc['value']:.3f} ({auc['low']:.3f} to {auc['high']:.3f})"
