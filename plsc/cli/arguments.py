"""Read the arguments that train, eval, predict and export share (-c, -o, --debug), and the verb's own."""

import argparse
import os
from collections.abc import Sequence

from plsc import config
from plsc.errors import escape
from plsc.utils.section import Section


def make_parser(verb: str, what: str, example: str) -> argparse.ArgumentParser:
    """Make the parser for a verb that takes a config.

    Args:
        verb: its name.
        what: the verb's description.
        example: an example's arguments.
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
        hint = _as_config(unknown) or _as_key(unknown)
        parser.error(f"unrecognized arguments: {' '.join(map(escape, unknown))}{hint}")
    return args


def _as_key(unknown: Sequence[str]) -> str:
    """Return ", did you mean '-o Global.epochs=2'?" for `--epochs 2`, and "" if no option is named like a
    key."""
    for word, following in zip(unknown, [*unknown[1:], ""]):
        option, _, value = word.partition("=")
        name = option.lstrip("-").replace("-", "_")
        if option.startswith("--") and name in Section.others:
            return f"; {Section.others[name]}, by -o Section.key=value"
        if option.startswith("--") and name in Section.elsewhere:
            value = value or ("VALUE" if following.startswith("-") else following or "VALUE")
            return f", did you mean '-o {Section.elsewhere[name]}={escape(value)}'?"
    return ""


def _as_config(unknown: Sequence[str]) -> str:
    """Return ", did you mean '-c FILE'?" with the first argument that is a config's or a run's path.
    Return "" if no argument is one."""
    for word in unknown:
        path = os.path.join(word, "config.yaml")
        if os.path.isfile(path) or word.endswith((".yaml", ".yml")):
            return f", did you mean '-c {escape(path if os.path.isdir(word) else word)}'?"
    return ""
