"""Read the arguments of train, eval, predict and export: -c, -o, --debug, and the verb's own."""

import argparse
import os
from collections.abc import Sequence

from plsc import config
from plsc.errors import escape


def make_parser(verb: str, what: str, example: str) -> argparse.ArgumentParser:
    """Make the parser of a verb that takes a config.

    Args:
        what: the verb does. example: of its arguments.
    """
    parser = argparse.ArgumentParser(
        f"plsc {verb}", description=what, epilog=f"example: plsc {verb} {example}"
    )
    config.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of a user's mistake too")
    return parser


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments; one that is a config without its -c is refused with what was meant."""
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(map(escape, unknown))}{_as_config(unknown)}")
    return args


def _as_config(unknown: Sequence[str]) -> str:
    """Return ", did you mean '-c FILE'?" with the first of these words that is the path of a config, or of a
    run."""
    for word in unknown:
        path = os.path.join(word, "config.yaml")
        if os.path.isfile(path) or word.endswith((".yaml", ".yml")):
            return f", did you mean '-c {escape(path if os.path.isdir(word) else word)}'?"
    return ""
