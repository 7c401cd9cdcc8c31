"""Read the arguments of train, eval, predict and export: -c, -o, --debug, and those of the verb."""

import argparse
import os
from collections.abc import Sequence

from plsc import config
from plsc.errors import escape


def make_parser(verb: str, what: str, example: str) -> argparse.ArgumentParser:
    """Make the parser of a verb that takes a config.

    Args:
        verb: its name.
        what: description of the verb.
        example: arguments of an example.
    """
    parser = argparse.ArgumentParser(
        f"plsc {verb}", description=what, epilog=f"example: plsc {verb} {example}"
    )
    config.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of a user's mistake too")
    return parser


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments. If a config is given without -c, the error names the option."""
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(map(escape, unknown))}{_as_config(unknown)}")
    return args


def _as_config(unknown: Sequence[str]) -> str:
    """Return ", did you mean '-c FILE'?" with the first argument that is the path of a config or of a run.
    Return "" if there is none."""
    for word in unknown:
        path = os.path.join(word, "config.yaml")
        if os.path.isfile(path) or word.endswith((".yaml", ".yml")):
            return f", did you mean '-c {escape(path if os.path.isdir(word) else word)}'?"
    return ""
