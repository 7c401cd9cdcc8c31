"""Evaluate a checkpoint: `plsc eval`."""

from __future__ import annotations

from collections.abc import Sequence

from plsc.cli.arguments import make_parser, parse


def main(argv: Sequence[str]) -> None:
    """Run `plsc eval`."""
    what = "evaluate a checkpoint on the sets of DataLoader.Eval"
    parser = make_parser("eval", what, "-c first/config.yaml")
    args = parse(parser, argv)
    from plsc.entry import Entry

    Entry(args.config, args.override).evaluate()
