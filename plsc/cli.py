"""The console scripts plsc-train, plsc-eval, plsc-predict, plsc-export, ..., and `python -m plsc VERB`; tools/*.py call these too.

They read argv and call one verb of Entry; plsc-run, plsc-selftest, plsc-convert, plsc-doctor, plsc-import and plsc-ckpt have a module each.
A UserError is printed, one line a mistake, and the exit code is 2.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence

from plsc import config, environment
from plsc.entry import Entry
from plsc.errors import UserError, shown
from plsc.registry import did_you_mean

_VERBS = {
    "train": "train, verify, and write the report",
    "eval": "evaluate a checkpoint on the sets of DataLoader.Eval",
    "predict": "embeddings of images, as .npy",
    "export": "write the backbone for Paddle Inference and ONNX",
}

_OTHERS = {
    "run": "train on several ranks, and restart what died",
    "import": "weights of other programs",
    "ckpt": "look at, check, and cut checkpoints",
    "convert": "a set of images to another format",
    "doctor": "what is wrong with a set of images",
    "selftest": "check this machine",
    "plan": "what a run will take: memory, time, how many classes fit",
    "benchmark": "speed and memory of the parts",
}


def _parser(verb: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(f"plsc-{verb}", description=_VERBS[verb])
    config.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of a user's mistake too")
    if verb == "train":
        parser.add_argument(
            "--dry-run", action="store_true", help="print the resolved config and the plan, train nothing"
        )
    if verb == "eval":
        parser.add_argument(
            "--set-threshold",
            action="store_true",
            help="store the main set's threshold with the checkpoint, for predict and export",
        )
    if verb == "predict":
        parser.add_argument("images", nargs="+", help="image files, or one .txt list of them")
        parser.add_argument("--output", metavar="FOLDER", help="default: predict in Global.output_dir")
    return parser


def run(verb: str, argv: Sequence[str] | None = None) -> int:
    """One verb with its arguments; the exit code."""
    args = _parser(verb).parse_args(argv)
    # Read when Paddle is imported. Its 2.6 would else log the end of a launch after our last line.
    os.environ.setdefault("GLOG_minloglevel", "1")

    def act() -> None:
        entry = Entry(args.config, args.override)
        if verb == "train" and args.dry_run:
            print(entry.dry_run())
        elif verb == "predict":
            images = args.images
            entry.predict(
                images[0] if len(images) == 1 and images[0].endswith(".txt") else images, args.output
            )
        elif verb == "eval":
            entry.test(set_threshold=args.set_threshold)
        else:
            {"train": entry.train, "export": entry.export}[verb]()

    return _without_traceback(act, args.debug)


def _without_traceback(act: Callable[[], int | None], debug: bool = False) -> int:
    """The exit code of `act`; 2, and a line for each of the user's mistakes, where it raises UserError."""
    try:
        return act() or 0
    except UserError as error:
        if debug:
            raise
        if "PADDLE_TRAINER_ID" in os.environ:
            # The launcher terminates all ranks when one has ended; this one is about to, and with its own exit code.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for line in str(error).split("\n"):
            print(f"ERROR {shown(line)}", file=sys.stderr, flush=True)
        return 2


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m plsc VERB ...`."""
    argv = list(sys.argv[1:] if argv is None else argv)
    others = {
        "run": supervise,
        "selftest": selftest,
        "convert": convert,
        "doctor": doctor,
        "import": import_weights,
        "ckpt": ckpt,
        "benchmark": benchmark,
        "plan": plan,
    }
    if argv and argv[0] in others:
        return others[argv[0]](argv[1:])
    if not argv or argv[0] not in _VERBS:
        verbs = {**_VERBS, **_OTHERS}
        asked = argv in ([], ["-h"], ["--help"])
        if not asked:
            print(f"ERROR unknown verb '{argv[0]}'{did_you_mean(argv[0], verbs)}", file=sys.stderr)
        print(
            "usage: python -m plsc VERB ...\n"
            + "\n".join(f"  {verb:10}{what}" for verb, what in verbs.items())
        )
        return 0 if asked else 2
    return run(argv[0], argv[1:])


def train() -> int:
    return run("train")


def evaluate() -> int:
    return run("eval")


def predict() -> int:
    return run("predict")


def export() -> int:
    return run("export")


def supervise(argv: Sequence[str] | None = None) -> int:
    """`plsc-run`; exit code 1 if it gave up."""
    from plsc.supervisor import main  # here: the verbs do without it

    return _without_traceback(lambda: main(argv))


def import_weights(argv: Sequence[str] | None = None) -> int:
    """`plsc-import`."""
    environment.prepare()
    from plsc.importers import main  # here: it imports Paddle

    return _without_traceback(lambda: main(argv))


def selftest(argv: Sequence[str] | None = None) -> int:
    """`plsc-selftest`; exit code 1 if a part failed."""
    threads, _ = environment.prepare()
    from plsc.selftest import main  # here: it imports Paddle

    return main(argv, threads)


def plan(argv: Sequence[str] | None = None) -> int:
    """`plsc-plan`."""
    from plsc.plan import main  # here: the verbs do without it

    return _without_traceback(lambda: main(argv))


def benchmark(argv: Sequence[str] | None = None) -> int:
    """tools/benchmark.py."""
    from plsc.benchmark import main  # here: the verbs do without it

    return _without_traceback(lambda: main(argv))


def convert(argv: Sequence[str] | None = None) -> int:
    """`plsc-convert`."""
    from plsc.convert import main  # here: the verbs do without it

    return _without_traceback(lambda: main(argv))


def doctor(argv: Sequence[str] | None = None) -> int:
    """`plsc-doctor`; exit code 1 for warnings, 2 for errors."""
    from plsc.doctor import main  # here: the verbs do without it

    return _without_traceback(lambda: main(argv))


def ckpt(argv: Sequence[str] | None = None) -> int:
    """`plsc-ckpt`."""
    from plsc.ckpt import main  # here: the verbs do without it

    return _without_traceback(lambda: main(argv))
