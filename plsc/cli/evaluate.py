"""Evaluate a checkpoint: `plsc eval`."""

from __future__ import annotations

from collections.abc import Sequence

from plsc.cli.arguments import make_parser, parse


def main(argv: Sequence[str]) -> None:
    """Run `plsc eval`."""
    what = "evaluate a checkpoint on the sets of DataLoader.Eval"
    parser = make_parser("eval", what, "-c first/config.yaml")
    parser.add_argument(
        "--set-threshold",
        action="store_true",
        help="store the main set's threshold with the checkpoint, for predict and export",
    )
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="store P(same) and the thresholds for FARs with the checkpoint, for export and galleries",
    )
    parser.add_argument(
        "--compare",
        metavar="RUN",
        help="another run's folder or results.json: a second column in tables and report",
    )
    args = parse(parser, argv)
    from plsc.entry import Entry

    Entry(args.config, args.override).evaluate(
        set_threshold=args.set_threshold,
        compare=args.compare,
        calibrate=args.calibrate,
    )
