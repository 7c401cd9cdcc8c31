"""Show, write and verify the model card of a run: `plsc card`.

    plsc card verify output             # evaluates again, and compares

docs/evaluation.md explains it. On several ranks start `plsc/__main__.py card verify RUN` as tools/eval.py is.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from plsc.config import add_overrides, load
from plsc.distributed import environment
from plsc.entry import Entry
from plsc.errors import shown
from plsc.evaluation.card import NOT_COMPUTED, Card, read_card, to_markdown
from plsc.utils.files import sha256_of

_SHOWN = 20  # differences


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("plsc card", description="The model card of a run.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, what: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=what, description=what)
        made.add_argument("run", metavar="RUN", help="the folder of a finished run")
        return made

    verb("show", "print the card").add_argument("--json", action="store_true", help="all of it, as JSON")
    write = verb("write", "evaluate a checkpoint, and write the card of the run anew")
    write.add_argument("--checkpoint", default="newest", choices=["newest", "best"], help="default: newest")
    check = verb("verify", "hash and evaluate again, and compare every number; exit code 1 for a difference")
    check.add_argument(
        "--no-training-data", action="store_true", help="do not compare the training data, which are not here"
    )
    for each in (write, check):
        add_overrides(each, "a key that wins over the run's config.yaml, such as where the data are now")
    return parser


def _entry(run: str, overrides: Sequence[str], **settings: object) -> Entry:
    """Make the Entry of the run in this folder, wherever it was made."""
    given = {"output_dir": run, "resume": False, **settings}
    ours = [f"Global.{key}={json.dumps(value)}" for key, value in given.items()]
    return Entry(Path(run) / "config.yaml", [*overrides, *ours])


def _threads(run: str, card: Card, overrides: Sequence[str]) -> int | None:
    """Return the threads for a rank: the config's, else those of the card, so that the numbers can be
    compared exactly."""
    chosen = load(Path(run) / "config.yaml", overrides).Global.threads
    known = card.machine.get("threads of a rank")
    return chosen or (known if isinstance(known, int) and 1 <= known <= (os.cpu_count() or 1) else None)


def main(argv: Sequence[str]) -> int:
    """Run `plsc card`. Raises UserError."""
    args = _parser().parse_args(argv)
    if args.verb == "write":
        path = _entry(args.run, args.override, checkpoint=args.checkpoint).write_card()
        if environment.rank_from_env() == 0:
            print(f"done: {shown(path)}")
        return 0
    card = read_card(Path(args.run))
    if args.verb == "show":
        print(json.dumps(card.model_dump(), indent=1) if args.json else to_markdown(card))
        return 0
    config = Path(args.run) / "config.yaml"
    if not config.is_file() or sha256_of(config) != card.files.get(
        config.name
    ):  # it may not even be read any more
        return _report(args.run, [f"{config}: is not the one that the card was written with"], NOT_COMPUTED)
    threads = _threads(args.run, card, args.override)
    outcome = _entry(args.run, args.override, threads=threads).check_card(not args.no_training_data)
    return _report(args.run, outcome.differences, outcome.compared)


def _report(run: str, differences: Sequence[str], compared: str) -> int:
    """Print on rank 0 what differs and what was compared; return the exit code."""
    if environment.rank_from_env() == 0:
        for line in differences[:_SHOWN]:
            print(f"DIFFERS {shown(line)}")
        if len(differences) > _SHOWN:
            print(f"DIFFERS and {len(differences) - _SHOWN:,} more")
        verdict = "is not what the card says" if differences else "is what the card says"
        print(shown(f"done: {run} {verdict}: {compared}"))
    return 1 if differences else 0
