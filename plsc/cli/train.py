"""Train by a config: `plsc train`.

    plsc train -c configs/              in this process
    plsc train -c configs/ --ranks 2    on two processes, which are started again when one dies

Paddle's launcher starts tools/train.py on its ranks; that is the first of these, once on each.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from plsc import config
from plsc.cli.arguments import make_parser, parse
from plsc.cli.mistakes import ignore_the_launcher
from plsc.distributed import environment, guard
from plsc.errors import UserError
from plsc.utils.logging import get_logger, warn

if TYPE_CHECKING:
    from plsc.config import Config


def main(argv: Sequence[str]) -> int:
    """Run `plsc train`; return 130 or 143 where SIGINT or SIGTERM has stopped it."""
    what = "train, verify, and write the report"
    parser = make_parser("train", what, "-c configs/ -o Global.epochs=2 Global.output_dir=first")
    parser.add_argument(
        "--ranks",
        type=int,
        metavar="N",
        help="train on N processes of this machine, restart what dies, and go on with a run that is not at its end "
        "(default: in this process, without restarts)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the resolved config and the plan, train nothing"
    )
    parser.add_argument("--stand-in", action="store_true", help=config.STAND_IN)
    args = parse(parser, argv)
    if args.ranks is not None and args.ranks < 1:
        parser.error(f"--ranks must be at least 1 (got {args.ranks})")
    if args.ranks and not args.dry_run:
        return _supervise(args)
    from plsc.entry import Entry

    entry = Entry(_stood_in(args)) if args.stand_in else Entry(args.config, args.override)
    if args.dry_run:
        print(entry.dry_run(args.ranks))
        return 0
    if args.config is None:
        _say_defaults()
    return _exit_code((entry.train() or {}).get("stopped"))


def _supervise(args: argparse.Namespace) -> int:
    """Train on several ranks of this machine, which run this verb without --ranks."""
    if (rank := os.environ.get("PADDLE_TRAINER_ID")) is not None:
        raise UserError(
            f"--ranks {args.ranks}: this process is rank {rank} of a launch already (PADDLE_TRAINER_ID); leave --ranks out, or start without "
            "Paddle's launcher"
        )
    from plsc.apps.restart.run import supervise

    cfg = config.load(args.config, args.override)
    arguments = ["train"]
    if args.stand_in:
        arguments.append("--stand-in")
    else:
        cfg.check_data()
    if args.config is not None:
        arguments += ["-c", args.config]
    if args.override:
        arguments += ["-o", *args.override]
    return supervise(cfg, arguments, args.ranks)


def _stood_in(args: argparse.Namespace) -> Config:
    """Return the config with noise in the place of its data. For a training, warn that it learns nothing.

    UserError for a training that would resume: a run on real images would go on with noise.
    """
    from plsc.training.stand_in import stand_in

    cfg = config.load(args.config, args.override)
    if not args.dry_run:
        if cfg.Global.resume:
            raise UserError(
                f"{cfg.source('Global.resume')}: Global.resume: --stand-in would train the run in Global.output_dir on noise; set it "
                "to false, and name another Global.output_dir"
            )
        warn(
            "--stand-in: the images are noise, for a test of speed and memory; nothing is learned or evaluated"
        )
    return stand_in(cfg)


def _say_defaults() -> None:
    """Say that no config is given, and where there are some."""
    if environment.rank_from_env() == 0:
        others = "; configs/ has other settings: plsc train -c configs/" if os.path.isdir("configs") else ""
        get_logger().info(
            "no -c: training with the built-in defaults, on generated glyphs where -o names no other data "
            f"(plsc train --dry-run shows all keys){others}"
        )


def _exit_code(stopped: str | None) -> int:
    """Return the exit code of a training; `stopped` names the signal that has stopped it."""
    if stopped is None or guard.SUPERVISOR in os.environ:  # a supervisor has an exit code of its own
        return 0
    ignore_the_launcher()
    return guard.exit_code(signal.Signals[stopped])
