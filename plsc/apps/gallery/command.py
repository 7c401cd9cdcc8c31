"""Keep known people, and find out whom a picture shows.

    plsc gallery build people.gallery photos/
    plsc gallery search people.gallery who.jpg

Pictures are photos as they come from a camera. The answer goes to stdout, the log to stderr. Exit codes: of
search 0 where each picture has a name, else 1; of the others 0; 2 for a mistake.
"""

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence

from plsc.apps.faces.command import add_groups
from plsc.apps.gallery.embed import Network, open_network
from plsc.apps.gallery.gallery import Gallery
from plsc.apps.gallery.threshold import RATE
from plsc.config import add_overrides
from plsc.errors import UserError, shown
from plsc.utils.text import counted


def add_network(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the options that name a network to a command."""
    given = parser.add_mutually_exclusive_group()
    given.add_argument(
        "--network", metavar="NAME", help=f"sface, or the file of an ONNX network; default: {default}"
    )
    given.add_argument("-c", "--config", metavar="RUN", help="the folder of a run of your own, in its place")
    add_overrides(parser, "with -c: a key that wins over the run's")


def network_of(args: argparse.Namespace) -> Network | None:
    """Open the network that the arguments name; None: they name none."""
    if args.override and not args.config:
        raise UserError("-o, --device: change the run that -c names; give -c too")
    named = args.network or args.config
    return open_network(args.network, args.config, args.override) if named else None


def _parser() -> argparse.ArgumentParser:
    what = "Keep known people, and find out whom a picture shows."
    parser = argparse.ArgumentParser("plsc gallery", description=what)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, act: Callable, help: str, network: str = "") -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=help, description=f"plsc gallery {name}: {help}.")
        made.set_defaults(act=act)
        made.add_argument("gallery", help="the gallery's file, or milvus://host:port/name")
        if network:
            add_network(made, network)
        return made

    build = verb("build", _built, "make a gallery of a folder with a folder for each person", "sface")
    build.add_argument("people", help="photos/Ann/1.jpg, photos/Ann/2.jpg, photos/Bob/1.jpg, ...")
    rate = f"of strangers that get a name; default: {RATE}"
    build.add_argument("--rate", type=float, default=RATE, metavar="SHARE", help=rate)
    add_groups(build)
    add = verb("add", _add, "add pictures of a person", "the gallery's")
    add.add_argument("name", help="of the person, new or known")
    add.add_argument("pictures", nargs="+", help="files")
    add_groups(add)
    remove = verb("remove", _remove, "remove people with all of their pictures")
    remove.add_argument("names", nargs="+", metavar="name", help="of a person")
    verb("list", _list, "show who is in a gallery")
    search = verb("search", _search, "say whom pictures show", "the gallery's")
    search.add_argument("pictures", nargs="+", help="files; of several faces in one the largest is looked up")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run `plsc gallery`. Raises UserError."""
    args = _parser().parse_args(argv)
    with contextlib.redirect_stdout(sys.stderr):  # the log; stdout has the answer only
        network = network_of(args) if "network" in args else None
        if args.verb == "build":
            gallery = Gallery.build(args.gallery, args.people, network, args.rate, args.groups)
        else:
            gallery = Gallery.open(args.gallery, network)
        with contextlib.closing(gallery):
            text, code = args.act(args, gallery)
    print(text)
    return code


Printed = tuple[str, int]
"""Text for stdout, and the exit code."""


def _built(args: argparse.Namespace, gallery: Gallery) -> Printed:
    return f"{_described(args, gallery)}{_said(gallery.left_out)}", 0


def _list(args: argparse.Namespace, gallery: Gallery) -> Printed:
    return "\n".join([_described(args, gallery), *gallery]), 0


def _described(args: argparse.Namespace, gallery: Gallery) -> str:
    size = f"{_people(gallery)}, {counted(gallery.pictures, 'picture')}"
    return f"{shown(args.gallery)}: {size}\n{gallery.threshold.describe()}"


def _people(gallery: Gallery) -> str:
    return counted(len(gallery), "person", "people")


def _said(left_out: Sequence[str]) -> str:
    return f"\nleft out: {counted(len(left_out), 'picture')}, named above" if left_out else ""


def _add(args: argparse.Namespace, gallery: Gallery) -> Printed:
    left_out = gallery.add(args.name, args.pictures, args.groups)
    added = counted(len(args.pictures) - len(left_out), "picture")
    size = f"{_people(gallery)}\n{gallery.threshold.describe()}"
    return f"{shown(args.name)}: {added} added; {size}{_said(left_out)}", 0


def _remove(args: argparse.Namespace, gallery: Gallery) -> Printed:
    gallery.remove(*args.names)
    return f"{counted(len(args.names), 'person', 'people')} removed; {_people(gallery)}", 0


def _search(args: argparse.Namespace, gallery: Gallery) -> Printed:
    answers = gallery.search(args.pictures)
    lines = []
    for picture, answer in zip(args.pictures, answers):
        several = f"; the largest of {len(answer.faces)} faces" if len(answer.faces) > 1 else ""
        lines.append(f"{shown(picture)}: {answer}{several}")
    return "\n".join(lines), int(not all(answer.name for answer in answers))
