"""The command line: `plsc VERB ...`, and `python -m plsc VERB ...`. tools/*.py call these too.

VERBS is the only list of verbs. Each verb has a function `main(argv) -> int | None` that returns the exit
code. A UserError is printed, one line for each mistake, and the exit code is 2. A run that a signal stopped
exits with 130 (SIGINT) or 143 (SIGTERM), as is usual in shells.

This module imports little, so that a Ctrl-C is handled even while a verb imports Paddle.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from plsc.cli.mistakes import without_traceback
from plsc.distributed import environment
from plsc.errors import UserError, escape, reading
from plsc.utils.version import __version__


class Verb(NamedTuple):
    """A verb: its module, with the function if that is not `main`, its help text, and its heading in
    `plsc --help`."""

    module: str
    help: str
    heading: str


VERBS = {
    "train": Verb(
        "plsc.cli.train", "train, verify, and write the report; --ranks N on several processes", "start here"
    ),
    "init": Verb("plsc.apps.curate.init", "inspect your pictures, and write a config for them", "start here"),
    "doctor": Verb("plsc.apps.curate.doctor", "find errors in sets of images", "data"),
    "align": Verb("plsc.apps.faces.command", "find the faces in photos, and cut them out aligned", "data"),
    "convert": Verb("plsc.apps.curate.convert", "convert a set of images to another format", "data"),
    "eval": Verb("plsc.cli.inference:evaluate", "evaluate a checkpoint on DataLoader.Eval's sets", "train"),
    "import": Verb("plsc.apps.migrate.import_weights", "import other programs' weights", "train"),
    "gallery": Verb(
        "plsc.apps.gallery.command", "keep known people, and find out whom a picture shows", "use"
    ),
    "serve": Verb(
        "plsc.apps.serve.command",
        "answer over HTTP whom a picture shows, with a web page",
        "use",
    ),
    "predict": Verb("plsc.cli.inference:predict", "write the embeddings of images, or their classes", "use"),
    "export": Verb(
        "plsc.cli.inference:export", "write the network for Paddle Inference, ONNX and others", "use"
    ),
    "ckpt": Verb("plsc.cli.ckpt", "show, verify and average checkpoints", "care"),
    "selftest": Verb("plsc.cli.selftest", "check that this machine computes correctly", "care"),
}
_OF_ALL_RANKS = ("train", "eval", "predict", "export", "selftest")


def main(argv: Sequence[str] | None = None) -> int:
    """Run `plsc VERB ...`."""
    argv = [_at_home(word) for word in (sys.argv[1:] if argv is None else argv)]
    if argv == ["--version"]:
        print(f"plsc {__version__}")
        return 0
    if len(argv) > 1 and argv[0] == "help":
        argv = [argv[1], "--help"]
    if argv and argv[0] in VERBS:
        verb, *arguments = argv
        return without_traceback(
            lambda: _run(verb, arguments),
            debug="--debug" in arguments,
            of_all_ranks=verb in _OF_ALL_RANKS,
        )
    asked = argv in ([], ["-h"], ["--help"], ["help"])
    if not asked:
        from plsc.utils.registry import did_you_mean

        print(f"ERROR unknown verb '{escape(argv[0])}'{did_you_mean(argv[0], VERBS)}", file=sys.stderr)
    return without_traceback(lambda: print(_overview())) or (0 if asked else 2)


def _at_home(word: str) -> str:
    """Expand `~` at the beginning of an argument, and after `--option=`, where shells do not expand it."""
    option, sign, value = word.rpartition("=") if word.startswith("--") else ("", "", word)
    return option + sign + os.path.expanduser(value)


def _run(verb: str, arguments: Sequence[str]) -> int | None:
    if "" in arguments:
        raise UserError("an argument is empty; is a shell variable not set?")
    if sys.getfilesystemencoding() != "utf-8":  # a locale with another encoding
        raise UserError("Python cannot use UTF-8 in file names here; set PYTHONUTF8=1")
    with reading("the current folder", missing="was deleted; change into another"):
        os.getcwd()
    if verb in (*_OF_ALL_RANKS, "import"):
        environment.before_paddle()
    module, _, function = VERBS[verb].module.partition(":")
    return getattr(importlib.import_module(module), function or "main")(arguments)


def _overview() -> str:
    """Return `plsc`'s help: all verbs under their headings."""
    lines = [
        (
            "usage: plsc VERB ..., such as plsc train -c configs/ --ranks 2   (plsc VERB --help explains "
            "one; plsc --version)"
        )
    ]
    for heading in dict.fromkeys(verb.heading for verb in VERBS.values()):
        lines += ["", heading]
        lines += [f"  {name:10}{verb.help}" for name, verb in VERBS.items() if verb.heading == heading]
    return "\n".join([*lines, "", "docs/quickstart.md has the first steps"])
