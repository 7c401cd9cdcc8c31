"""Run `plsc gallery`: store known people and recognize them in pictures.

    plsc gallery build people.gallery photos/
    plsc gallery search people.gallery who.jpg

Pictures are photos straight from a camera. The answer goes to stdout, and the log goes to stderr.

Exit codes:

- 0: success. `search` named every picture. `verify` found the same person.
- 1: `search` could not name a picture. `verify` found two people. After `build` or `add`, or in `list`, the
    gallery finds fewer than half its people.
- 2: an error in the arguments or the input.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence

from plsc.apps.faces.command import add_groups
from plsc.apps.gallery.embed import EmbeddingNetwork, open_network
from plsc.apps.gallery.gallery import Gallery, verify
from plsc.data.folder import images_below
from plsc.errors import UserError, escape
from plsc.evaluation.gallery_threshold import RATE
from plsc.utils.options import add_overrides
from plsc.utils.text import plural


def add_network(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the options that select a network to a command's parser.

    Args:
        parser: the parser that gets the options.
        default: the default network, as the help text shows it.
    """
    given = parser.add_mutually_exclusive_group()
    given.add_argument(
        "--network", metavar="NAME", help=f"sface, or the file of an ONNX network; default: {default}"
    )
    given.add_argument("-c", "--config", metavar="RUN", help="the folder of your own run, instead")
    add_overrides(parser, "with -c: a key that overrides the run's")


def network_of(args: argparse.Namespace) -> EmbeddingNetwork | None:
    """Open the network that the arguments name. Return None if they name none.

    Raises UserError if there are overrides without a config.
    """
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
        if name != "verify":
            made.add_argument("gallery", help="the gallery's file, or milvus://host:port/name")
        if network:
            add_network(made, network)
        return made

    build = verb(
        "build", _report_build, "make a gallery from a folder that has a folder for each person", "sface"
    )
    build.add_argument("people", help="photos/Ann/1.jpg, photos/Ann/2.jpg, photos/Bob/1.jpg, ...")
    rate = f"share of strangers that may get a name; default: {RATE}"
    build.add_argument("--rate", type=float, default=RATE, metavar="SHARE", help=rate)
    add_groups(build)
    add = verb("add", _add, "add pictures of a person", "the gallery's")
    add.add_argument("name", help="the person's name, new or known")
    add.add_argument("pictures", nargs="+", help="files or folders")
    add_groups(add)
    remove = verb("remove", _remove, "remove people with all their pictures, or single pictures")
    remove.add_argument("names", nargs="+", metavar="name", help="a person as Ann, a picture as Ann/3.jpg")
    listed = verb("list", _list, "show who is in a gallery, or the pictures of a person")
    listed.add_argument("name", nargs="?", help="the person's name")
    search = verb("search", _search, "find out whom pictures show", "the gallery's")
    search.add_argument(
        "pictures",
        nargs="+",
        help="files or folders; if a file shows several faces, the largest is looked up",
    )
    both = verb("verify", _verify, "find out whether two pictures show one person", "sface")
    both.add_argument("a", help="a file")
    both.add_argument("b", help="a file")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run `plsc gallery`. Raises UserError."""
    args = _parser().parse_args(argv)
    with contextlib.redirect_stdout(sys.stderr):  # keep stdout for the answer
        network = network_of(args) if "network" in args else None
        if args.verb == "verify":
            text, code = args.act(args, network)
        else:
            if args.verb == "build":
                gallery = Gallery.build(args.gallery, args.people, network, args.rate, args.groups)
            else:
                gallery = Gallery.open(args.gallery, network)
            with contextlib.closing(gallery):
                text, code = args.act(args, gallery)
    print(text)
    return code


def _with_folders(pictures: Sequence[str]) -> list[str]:
    """Replace each folder by the images in it, at any depth."""
    return [each for name in pictures for each in (images_below(name) if os.path.isdir(name) else [name])]


def _report_build(args: argparse.Namespace, gallery: Gallery) -> tuple[str, int]:
    path = escape(args.gallery)
    text, code = _report(f"{path}: {_size(gallery)}", gallery, gallery.left_out)
    if code:
        text += f"\n{path} was written; remove it before you build it with another network"
    return text, code


def _list(args: argparse.Namespace, gallery: Gallery) -> tuple[str, int]:
    if args.name:
        return "\n".join(f"{args.name}/{picture}" for picture in gallery.pictures_of(args.name)), 0
    text, code = _report(f"{escape(args.gallery)}: {_size(gallery)}", gallery)
    people = (f"{name}: {plural(pictures, 'picture')}" for name, pictures in gallery.people.items())
    return "\n".join([text, *people]), code


def _add(args: argparse.Namespace, gallery: Gallery) -> tuple[str, int]:
    if os.path.isfile(args.name):
        raise UserError(
            f"{escape(args.name)}: is a file, not a person's name; "
            f"plsc gallery add {escape(args.gallery)} NAME {escape(args.name)} ..."
        )
    pictures = _with_folders(args.pictures)
    left_out = gallery.add(args.name, pictures, args.groups)
    added = plural(len(pictures) - len(left_out), "picture")
    people = plural(len(gallery), "person", "people")
    return _report(f"{escape(args.name)}: {added} added; {people}", gallery, left_out)


def _report(first: str, gallery: Gallery, left_out: Sequence[str] = ()) -> tuple[str, int]:
    """Report about a gallery: `first`, its threshold, and the number of lines about skipped pictures."""
    lines = [first, gallery.threshold.describe()]
    if left_out:
        lines.append(f"skipped: {plural(len(left_out), 'picture')}, named above")
    return "\n".join(lines), int(gallery.threshold.finds_too_few)


def _size(gallery: Gallery) -> str:
    return f"{plural(len(gallery), 'person', 'people')}, {plural(gallery.pictures, 'picture')}"


def _remove(args: argparse.Namespace, gallery: Gallery) -> tuple[str, int]:
    gallery.remove(*args.names)
    return f"{', '.join(map(escape, args.names))}: removed; {_size(gallery)}", 0


def _verify(args: argparse.Namespace, network: EmbeddingNetwork | None) -> tuple[str, int]:
    verification = verify(args.a, args.b, network)
    return str(verification), int(not verification.same)


def _search(args: argparse.Namespace, gallery: Gallery) -> tuple[str, int]:
    pictures = _with_folders(args.pictures)
    answers = gallery.search(pictures)
    lines = []
    for picture, answer in zip(pictures, answers):
        several = f"; the largest of {len(answer.faces)} faces" if len(answer.faces) > 1 else ""
        lines.append(f"{escape(picture)}: {answer}{several}")
    return "\n".join(lines), int(not all(answer.name for answer in answers))
