"""The command line: `plsc VERB ...`, and `python -m plsc VERB ...`; tools/*.py call these too.

COMMANDS is the one table of verbs. train, eval, predict and export call Entry; the others have a module each.
A UserError is printed, one line a mistake, and the exit code is 2; a run that a signal has stopped ends with
130 (SIGINT) or 143 (SIGTERM), as shells have it.

Imports little: a Ctrl-C while the verb imports Paddle must meet what handles it.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from plsc.distributed import environment
from plsc.errors import UserError, shortened, shown
from plsc.utils.installation import refuse_mixed_files
from plsc.utils.version import __version__

if TYPE_CHECKING:
    from plsc.config import Config

# No defects of ours: rights, file systems and their space. Readers and writers of many kinds meet these.
_OF_THE_MACHINE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
_HEAD_START = 3.0  # seconds that the first rank has, to print the mistake that another has printed
_EXAMPLES = {
    "train": "plsc train -c configs/ -o Global.epochs=2 Global.output_dir=first",
    "eval": "plsc eval -c first/config.yaml",
    "predict": "plsc predict -c first/config.yaml a.png b.png",
    "export": "plsc export -c first/config.yaml",
}


def _parser(verb: str) -> argparse.ArgumentParser:
    from plsc import config

    parser = argparse.ArgumentParser(
        f"plsc {verb}",
        description=COMMANDS[verb].help,
        epilog=f"example: {_EXAMPLES[verb]}",
    )
    config.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of a user's mistake too")
    parser.add_argument("--version", action="version", version=_version())
    if verb == "train":
        parser.add_argument(
            "--dry-run", action="store_true", help="print the resolved config and the plan, train nothing"
        )
        parser.add_argument("--stand-in", action="store_true", help=config.STAND_IN)
    if verb == "eval":
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
            "--groups",
            metavar="FILE",
            help="compare groups: lines of 'name<TAB>group', the name of an identity or an image",
        )
        parser.add_argument(
            "--compare",
            metavar="RUN",
            help="another run's folder or results.json: a second column in tables and report",
        )
    if verb == "predict":
        parser.add_argument(
            "images", nargs="+", help="image files, one .txt list of them, or one .npy file of samples"
        )
        parser.add_argument("--output", metavar="FOLDER", help="default: predict in Global.output_dir")
    return parser


def run(verb: str, argv: Sequence[str] | None = None) -> int:
    """Run one verb of Entry with its arguments, and return the exit code."""
    debug = "--debug" in (sys.argv[1:] if argv is None else argv)
    return without_traceback(lambda: _call_entry(verb, argv), debug)


def _call_entry(verb: str, argv: Sequence[str] | None) -> int:
    parser = _parser(verb)
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(map(shown, unknown))}{_as_config(unknown)}")
    from plsc.entry import Entry

    if verb == "train" and args.stand_in:
        entry = Entry(_stood_in(args))
    else:
        entry = Entry(args.config, args.override)
    if verb == "train" and args.dry_run:
        print(entry.dry_run())
    elif verb == "train":
        if args.config is None:
            _say_defaults()
        return _exit_code((entry.train() or {}).get("stopped"))
    elif verb == "predict":
        images = args.images
        entry.predict(images[0] if len(images) == 1 and images[0].endswith(".txt") else images, args.output)
    elif verb == "eval":
        entry.evaluate(
            set_threshold=args.set_threshold,
            compare=args.compare,
            calibrate=args.calibrate,
            groups=args.groups,
        )
    else:
        entry.export()
    return 0


def _as_config(unknown: Sequence[str]) -> str:
    """Return ", did you mean '-c FILE'?" with the first of these words that is the path of a config, or of a run."""
    for word in unknown:
        path = os.path.join(word, "config.yaml")
        if os.path.isfile(path) or word.endswith((".yaml", ".yml")):
            return f", did you mean '-c {shown(path if os.path.isdir(word) else word)}'?"
    return ""


def _stood_in(args: argparse.Namespace) -> Config:
    """Return the config with noise in the place of its data. For a training, warn that it learns nothing.

    UserError for a training that would resume: a run on real images would go on with noise.
    """
    environment.before_paddle()  # the config may name classes, whose modules import Paddle
    from plsc.config import load
    from plsc.errors import UserError
    from plsc.training.stand_in import stand_in
    from plsc.utils.logging import warn

    config = load(args.config, args.override)
    if not args.dry_run:
        if config.Global.resume:
            raise UserError(
                f"{config.source('Global.resume')}: Global.resume: --stand-in would train the run in Global.output_dir on noise; set it "
                "to false, and name another Global.output_dir"
            )
        warn(
            "--stand-in: the images are noise, for a test of speed and memory; nothing is learned or evaluated"
        )
    return stand_in(config)


def _say_defaults() -> None:
    from plsc.utils.logging import get_logger

    if environment.rank_from_env() == 0:
        others = "; configs/ has other settings: plsc train -c configs/" if os.path.isdir("configs") else ""
        get_logger().info(
            "no -c: training with the built-in defaults, on generated glyphs where -o names no other data "
            f"(plsc train --dry-run shows all keys){others}"
        )


def _exit_code(stopped: str | None) -> int:
    """Return the exit code of a training; `stopped` names the signal that has stopped it."""
    from plsc.distributed import guard

    if (
        stopped is None or guard.SUPERVISOR in os.environ
    ):  # plsc run has an exit code of its own; no rank has failed
        return 0
    _ignore_the_launcher()
    return guard.exit_code(signal.Signals[stopped])


def _ignore_the_launcher() -> None:
    """Ignore the launcher's SIGTERM to all ranks when one ends: this rank has an exit code of its own."""
    if "PADDLE_TRAINER_ID" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _wait_for_the_first_rank() -> None:
    """Wait until the launcher ends this rank, some seconds at most, unless it is the first one of its machine.

    The launcher shows what the first rank prints. It ends all ranks as soon as one has ended, also a first rank that is
    slower, and has not yet come to the mistake that they all have.
    """
    if os.environ.get("PADDLE_LOCAL_RANK", "0") != "0":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        signal.sigtimedwait([signal.SIGTERM], _HEAD_START)


def without_traceback(act: Callable[[], int | None], debug: bool = False) -> int:
    """Return the exit code of `act`; after a UserError print its lines and return 2; after Ctrl-C 130.

    An OSError of the machine, such as a full disk, is one line and 2, too.

    Where nobody reads stdout any more (`plsc ckpt list run | head -1`) end silently with 141, as other programs do.
    """
    environment.before_paddle()
    if hasattr(sys.stdout, "reconfigure"):  # a caller may have replaced sys.stdout
        sys.stdout.reconfigure(errors="backslashreplace")  # file names that are not UTF-8
    try:
        refuse_mixed_files()
        code = act() or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        if not _has_lost_its_reader(1):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what Python still writes when it ends
        return 128 + signal.SIGPIPE
    except (UserError, OSError) as error:
        if debug or not (isinstance(error, UserError) or error.errno in _OF_THE_MACHINE):
            raise
        _ignore_the_launcher()
        _finish_line()
        for line in _lines(error):
            print(f"ERROR {shown(shortened(line))}", file=sys.stderr, flush=True)
        _wait_for_the_first_rank()
        return 2
    except KeyboardInterrupt:
        if debug:
            raise
        print("ERROR interrupted", file=sys.stderr, flush=True)
        return 128 + signal.SIGINT


def _lines(error: UserError | OSError) -> list[str]:
    """Return the lines of a UserError, or one of where the machine refuses to read or write."""
    if isinstance(error, UserError):
        return str(error).split("\n")
    where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    remedy = "free some space there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "change its rights"
    return [f"{where}{error.strerror}; {remedy}, or name another folder"]


def _finish_line() -> None:
    """End the line on stdout that a full disk has cut, as of a log: stderr may go to the same file."""
    try:
        sys.stdout.flush()
    except OSError:
        print(file=sys.stderr)


def _has_lost_its_reader(descriptor: int) -> bool:
    """Say whether a file descriptor is a pipe whose other end is closed."""
    poll = select.poll()
    poll.register(descriptor, 0)  # errors are always reported
    return any(event & select.POLLERR for _, event in poll.poll(0))


def train(argv: Sequence[str] | None = None) -> int:
    """Run `plsc train`."""
    return run("train", argv)


def evaluate(argv: Sequence[str] | None = None) -> int:
    """Run `plsc eval`."""
    return run("eval", argv)


def predict(argv: Sequence[str] | None = None) -> int:
    """Run `plsc predict`."""
    return run("predict", argv)


def export(argv: Sequence[str] | None = None) -> int:
    """Run `plsc export`."""
    return run("export", argv)


def supervise(argv: Sequence[str] | None = None) -> int:
    """Run `plsc run`; exit code 1 if it gave up."""
    return _module("plsc.apps.supervise.supervisor", argv)


def import_weights(argv: Sequence[str] | None = None) -> int:
    """Run `plsc import`."""
    return _module("plsc.apps.migrate.import_weights", argv, prepare=True)


def selftest(argv: Sequence[str] | None = None) -> int:
    """Run `plsc selftest`; exit code 1 if a part failed, 2 if machines differ."""
    given = sys.argv[1:] if argv is None else argv
    if any(word.partition("=")[0] == "--nnodes" for word in given):
        return _module("plsc.apps.supervise.selftest_of_machines", argv)
    return _module("plsc.cli.commands.selftest.selftest", argv, prepare=True)


def plan(argv: Sequence[str] | None = None) -> int:
    """Run `plsc plan`."""
    return _module("plsc.apps.plan.plan", argv)


def convert(argv: Sequence[str] | None = None) -> int:
    """Run `plsc convert`."""
    return _module("plsc.apps.curate.convert", argv)


def doctor(argv: Sequence[str] | None = None) -> int:
    """Run `plsc doctor`; exit code 1 for warnings, 2 for errors."""
    return _module("plsc.apps.curate.doctor", argv)


def ckpt(argv: Sequence[str] | None = None) -> int:
    """Run `plsc ckpt`."""
    return _module("plsc.cli.commands.ckpt", argv)


def card(argv: Sequence[str] | None = None) -> int:
    """Run `plsc card`; exit code 1 if a run is not what its card says."""
    return _module("plsc.cli.commands.card", argv)


def align(argv: Sequence[str] | None = None) -> int:
    """Run `plsc align`; exit code 1 if a photo was left out."""
    return _module("plsc.apps.curate.align", argv)


def gallery(argv: Sequence[str] | None = None) -> int:
    """Run `plsc gallery`; exit code 1 where pictures were left out, or nobody was accepted."""
    return _module("plsc.apps.serving.gallery.command", argv)


def serve(argv: Sequence[str] | None = None) -> int:
    """Run `plsc serve`."""
    return _module("plsc.apps.serving.service.command", argv, prepare=True)


def _module(name: str, argv: Sequence[str] | None, prepare: bool = False) -> int:
    """Run the main() of a module.

    `prepare`: it imports Paddle, before which the environment must be set.
    """

    def act() -> int | None:
        threads = environment.prepare()[0] if prepare else None
        main = importlib.import_module(name).main
        return main(argv, threads) if name.endswith("selftest.selftest") else main(argv)

    return without_traceback(act)


class Command(NamedTuple):
    """A verb: its help text, the function that takes its arguments, and the heading in `plsc --help` that it stands under."""

    help: str
    call: Callable[..., int]
    heading: str


COMMANDS = {
    "train": Command("train, verify, and write the report", train, "start here"),
    "doctor": Command("what is wrong with a set of images", doctor, "data"),
    "align": Command("cut the faces out of photos, aligned", align, "data"),
    "convert": Command("a set of images to another format", convert, "data"),
    "run": Command("train on several ranks, and restart what died", supervise, "train"),
    "eval": Command("evaluate a checkpoint on the sets of DataLoader.Eval", evaluate, "train"),
    "plan": Command("what a run will take: memory, time, how many classes fit", plan, "train"),
    "import": Command("weights and training configs of other programs", import_weights, "train"),
    "gallery": Command("known people: build, add, search, verify", gallery, "use"),
    "serve": Command("compare and look up pictures over HTTP, with a web page", serve, "use"),
    "predict": Command("embeddings of images, as .npy", predict, "use"),
    "export": Command("write the backbone for Paddle Inference and ONNX", export, "use"),
    "card": Command("a run's model card: show, write, and verify by evaluating again", card, "care"),
    "ckpt": Command("look at, check, and cut checkpoints", ckpt, "care"),
    "selftest": Command("check this machine, or several", selftest, "care"),
}


def _version() -> str:
    return f"plsc {__version__}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run `plsc VERB ...`."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv == ["--version"]:
        print(_version())
        return 0
    if len(argv) > 1 and argv[0] == "help":
        argv = [argv[1], "--help"]
    if argv and argv[0] in COMMANDS:
        return COMMANDS[argv[0]].call(argv[1:])
    asked = argv in ([], ["-h"], ["--help"], ["help"])
    if not asked:
        from plsc.utils.registry import did_you_mean

        print(f"ERROR unknown verb '{shown(argv[0])}'{did_you_mean(argv[0], COMMANDS)}", file=sys.stderr)
    print(_overview())
    return 0 if asked else 2


def _overview() -> str:
    """Return the help of `plsc`: all verbs under their headings."""
    lines = ["usage: plsc VERB ...   (plsc VERB --help explains one; plsc --version)"]
    for heading in dict.fromkeys(command.heading for command in COMMANDS.values()):
        lines += ["", heading]
        lines += [f"  {verb:10}{of.help}" for verb, of in COMMANDS.items() if of.heading == heading]
    return "\n".join([*lines, "", "docs/quickstart.md goes through them; docs/errors.md has the mistakes"])
