"""Train with a config: `plsc train`.

    plsc train -c configs/              in this process
    plsc train -c configs/ --ranks 2    in two processes, which are restarted if one dies

In a launch each rank runs the first form. Paddle's launcher starts it as tools/train.py.
"""

import os
import signal
from collections.abc import Sequence

from plsc import config
from plsc.cli.arguments import make_parser, parse
from plsc.cli.mistakes import ignore_the_launcher
from plsc.distributed import environment
from plsc.errors import UserError
from plsc.utils.logging import get_logger


def main(argv: Sequence[str]) -> int:
    """Run `plsc train`.

    Returns 0, or 128 + the signal number that stopped it, or 2 if an evaluation or the report failed.
    With --dry-run it returns 1 if this machine has no room for the run.
    """
    what = "train, verify, and write the report"
    parser = make_parser("train", what, "-c configs/ -o Global.epochs=2 Global.output_dir=first")
    restarts = "train on N processes on this machine, and restart those that die (default: in this process)"
    parser.add_argument("--ranks", type=int, metavar="N", help=restarts)
    plan = "print the resolved config and the plan without training; exit code 1 if this machine has no room"
    parser.add_argument("--dry-run", action="store_true", help=plan)
    args = parse(parser, argv)
    if args.ranks is not None and not 1 <= args.ranks <= 64:
        parser.error(f"--ranks must be 1 to 64, processes of this machine (got {args.ranks})")
    if args.ranks and not args.dry_run:
        return _supervise(args.config, args.override, args.ranks)
    if args.dry_run:
        return _plan(args.config, args.override, args.ranks)
    from plsc.entry import Entry

    if args.config is None and environment.rank_from_env() == 0:
        get_logger().info(
            "no -c: training with the built-in defaults, on generated glyphs if -o names no other data "
            "(plsc train --dry-run shows all keys)"
        )
    result = Entry(args.config, args.override).train() or {}
    if stopped := result.get("stopped"):
        code = 128 + signal.Signals[stopped]
    else:
        code = 2 if result.get("failures") else 0
    if code:
        ignore_the_launcher()
    return code


def _plan(path: str | None, overrides: list[str], ranks: int | None) -> int:
    """Print config and plan. Return 1 if this machine has no room for the run, else 0."""
    from plsc.training.dry_run import dry_run

    cfg = config.load(path, overrides)
    with cfg.naming_places():
        text, fits = dry_run(cfg, ranks)
    print(text)
    return 0 if fits else 1


def _supervise(path: str | None, overrides: list[str], ranks: int) -> int:
    """Train on several ranks on this machine. They run this verb without --ranks."""
    if (rank := os.environ.get("PADDLE_TRAINER_ID")) is not None:
        raise UserError(
            f"--ranks {ranks}: this process is rank {rank} of a launch already (PADDLE_TRAINER_ID); omit "
            "--ranks, or start without Paddle's launcher"
        )
    from plsc.apps.restart import supervise

    arguments = ["train"]
    if path is not None:
        arguments += ["-c", path]
    if overrides:
        arguments += ["-o", *overrides]
    cfg = config.load(path, overrides)
    with cfg.naming_places():
        return supervise(cfg, arguments, ranks)
