"""plsc gallery: keep the embeddings of known people, and find out whom a picture shows.

    plsc gallery build faces.gallery -c output/config.yaml people/
    plsc gallery search faces.gallery picture.png

The answer goes to stdout, the log to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plsc.apps.serving.gallery import Gallery, Match, doctor, quality
from plsc.apps.serving.gallery.content import source_of
from plsc.apps.serving.gallery.engine import refuse_existing
from plsc.apps.serving.gallery.evaluate import evaluate
from plsc.apps.serving.gallery.facts import Mapped
from plsc.apps.serving.gallery.mapping import fit_map
from plsc.apps.serving.gallery.milvus import is_url
from plsc.apps.serving.gallery.names import composed, name_of
from plsc.apps.serving.gallery.pictures import embed_pictures, people_of
from plsc.config import add_device, add_overrides
from plsc.data.arrays import open_npy
from plsc.data.folder import is_aligned
from plsc.distributed import environment
from plsc.errors import UserError, reading, shown
from plsc.utils.atomic_write import replace_file
from plsc.utils.files import parse_json, read_regular, sha256_of
from plsc.utils.logging import get_logger
from plsc.utils.text import counted, table
from plsc.utils.version import __version__


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "plsc gallery", description="Keep the embeddings of known people, and find out whom a picture shows."
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, help: str, network: str = "") -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=help, description=f"plsc gallery {name}: {help}.")
        made.add_argument("gallery", help="the gallery's file, or milvus://host:port/name")
        made.add_argument("--json", action="store_true", help="print JSON")
        if network:
            given = made.add_mutually_exclusive_group(required=network == "required")
            given.add_argument(
                "-c", "--config", metavar="RUN", help="folder or config.yaml of the run whose network embeds"
            )
            given.add_argument("--export", metavar="FOLDER", help="what plsc export wrote, in place of -c")
            add_overrides(made, "with -c: a key that wins over that file")
            add_device(made)
        return made

    threshold = {"type": float, "metavar": "COSINE", "help": "accept above it; default: the gallery's"}

    build = verb("build", "make a gallery of a folder with a folder for each person", "optional")
    build.add_argument("people", nargs="?", help="people/Ann/1.jpg, people/Ann/2.jpg, people/Bob/1.jpg, ...")
    build.add_argument(
        "--vectors", metavar="NPY", help="embeddings [n, D] of another program, in place of people and -c"
    )
    build.add_argument(
        "--labels", metavar="FILE", help="with --vectors: n lines, the name of each embedding's person"
    )
    build.add_argument(
        "--template",
        choices=("mean", "images"),
        default="mean",
        help="a row for each person, or each picture",
    )
    review = {
        "choices": quality.REVIEWS,
        "default": "standard",
        "help": "standard: refuse what is surely wrong (no face, another person), and warn of what is doubtful; "
        "strict: refuse both; off: refuse what cannot be read; default: standard",
    }
    build.add_argument("--review", **review)
    add = verb("add", "add pictures of a person", "optional")
    add.add_argument("name", help="of the person, new or known")
    add.add_argument("pictures", nargs="+", help="files")
    add.add_argument("--review", **review)
    add.add_argument("--meta", metavar="JSON", help="keep this with the person, and show it beside the name")
    remove = verb("remove", "remove people, from all of its files")
    remove.add_argument(
        "names",
        nargs="*",
        metavar="name",
        help="of a person; without names: finish a removal that was interrupted",
    )
    remove.add_argument(
        "--list",
        type=Path,
        metavar="FILE",
        help="remove the pictures that a list of plsc gallery doctor names, and people without other pictures",
    )
    remove.add_argument(
        "--receipt", type=Path, metavar="FILE", help="a new file, JSON: who was removed, when"
    )
    checkup = verb("doctor", "find what is wrong with the pictures in a gallery", "optional")
    checkup.add_argument(
        "--review",
        choices=quality.REVIEWS[1:],
        default="standard",
        help="strict: doubtful ones, too, are in the list uncommented",
    )
    checkup.add_argument(
        "--output", type=Path, default=Path("doctor"), metavar="FOLDER", help="default: doctor"
    )
    verb("list", "show what is in a gallery")
    search = verb("search", "find the most similar people", "optional")
    search.add_argument("pictures", nargs="+", help="files, each of one person who is looked up")
    search.add_argument("--top", type=int, default=5, metavar="N", help="people to show (default: 5)")
    search.add_argument("--threshold", **threshold)
    for part, whose in ((build, "of these people"), (add, "of the person"), (search, "search this one only")):
        part.add_argument("--collection", default=None if part is search else "", metavar="NAME", help=whose)
    backup = verb("backup", "copy a gallery, while others use it")
    backup.add_argument("target", help="a new file")
    verify = verb("verify", "say whether pictures show a person", "optional")
    verify.add_argument("name", help="of a person in the gallery")
    verify.add_argument("pictures", nargs="+", help="files, all of one person")
    limits = verify.add_mutually_exclusive_group()
    limits.add_argument("--threshold", **threshold)
    limits.add_argument(
        "--far", type=float, metavar="SHARE", help="the threshold that accepts this share of different pairs"
    )
    evaluate = verb(
        "evaluate", "measure how many known people are recognised, and strangers rejected", "optional"
    )
    evaluate.add_argument("people", help="a folder for each person; who is not in the gallery is a stranger")
    evaluate.add_argument(
        "--set-threshold",
        type=float,
        metavar="SHARE",
        help="from now on use the threshold that gives a name in this share of strangers' searches, measured on these",
    )
    upgrade = verb("upgrade", "embed all people again by another network", "required")
    source = upgrade.add_mutually_exclusive_group()
    source.add_argument(
        "people", nargs="?", help="folder of their pictures; default: those that were recorded"
    )
    source.add_argument(
        "--map",
        metavar="FOLDER",
        help="without their pictures: by a map between the networks, fitted on these of other people, a folder for each",
    )
    upgrade.add_argument(
        "--old",
        metavar="PATH",
        help="with --map: the run of the gallery's present network (folder or config.yaml), or its export's folder, if it is elsewhere now",
    )
    return parser


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments. Some versions of argparse leave over an optional argument that comes after an
    option."""
    parser = _parser()
    args, others = parser.parse_known_args(argv)
    lacks_people = getattr(args, "people", "") is None and not getattr(args, "map", None)
    if lacks_people and others and not others[0].startswith("-"):
        args.people = others.pop(0)
    if others:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    if getattr(args, "override", None) and not args.config:
        raise UserError("-o, --device: change the config that -c names; give -c too")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run `plsc gallery`; exit code 1 where pictures were left out, or somebody was not accepted. Raises
    UserError."""
    args = _parse(argv)
    with contextlib.redirect_stdout(sys.stderr):  # the log; stdout has the answer only
        gallery = _build(args) if args.verb == "build" else Gallery.open(args.gallery)
        with contextlib.closing(gallery):
            said, answer, code = _VERBS[args.verb](args, gallery)
    print(json.dumps(answer) if args.json else said)
    return code


Answer = tuple[str, Any, int]
"""Text, the same for JSON, and the exit code."""


def _build(args: argparse.Namespace) -> Gallery:
    refuse_existing(args.gallery)
    if (args.vectors is None) != (args.labels is None) or (args.vectors is None) == (args.people is None):
        raise UserError("build: takes the folder of people with -c or --export, or --vectors with --labels")
    if args.vectors:
        return _build_of_vectors(args)
    if not (args.config or args.export):
        raise UserError("build: name the network, -c CONFIG or --export FOLDER")
    people = people_of(args.people)
    embedder = _embedder(args)
    _check_folder(embedder, args.people)
    return Gallery.build(args.gallery, embedder, people, args.template, args.collection, args.review)


def _build_of_vectors(args: argparse.Namespace) -> Gallery:
    from plsc.apps.serving.embedder import from_vectors

    vectors = np.array(open_npy(args.vectors))
    with reading(args.labels):
        labels = read_regular(args.labels).decode().splitlines()
    if vectors.ndim != 2 or len(vectors) != len(labels) or not len(labels):
        raise UserError(
            f"{shown(args.vectors)}: must be [n, D] with a line of {shown(args.labels)} for each row, got {list(vectors.shape)} and "
            f"{counted(len(labels), 'line')}"
        )
    names, owners = np.unique(labels, return_inverse=True)
    order = np.argsort(owners, kind="stable")
    embedder = from_vectors(vectors.shape[1])
    people = names.tolist(), vectors[order], owners[order]
    return Gallery.from_embeddings(args.gallery, embedder, *people, args.template, args.collection)


def _upgrade(args: argparse.Namespace, gallery: Gallery) -> Answer:
    if args.old and not args.map:
        raise UserError("--old: names the network that --map leads from; give --map too")
    if args.map:
        return _upgrade_by_map(args, gallery)
    gallery.upgrade(_embedder(args), people_of(args.people) if args.people else None)
    return _made(gallery, "upgraded")


def _upgrade_by_map(args: argparse.Namespace, gallery: Gallery) -> Answer:
    pictures = people_of(args.map)
    new = _embedder(args)
    if args.old:
        gallery.use(_embedder_of(args.old))
    gallery.check_map(new, gallery.embedder.network, new.network)  # before all pictures are embedded
    gallery.upgrade_by_map(new, fit_map(gallery.embedder, new, pictures))
    return _made(gallery, "upgraded by a map")


def _embedder_of(path: str) -> Any:
    """Make the embedder of a run, or of an export's folder."""
    from plsc.apps.serving import embedder

    exported = os.path.isfile(os.path.join(path, "preprocessing.json"))
    return embedder.from_export(path) if exported else embedder.from_run(path)


def _made(gallery: Gallery, what: str) -> Answer:
    others = gallery.left_out
    text = f"{shown(gallery.path)}: {what}, {_people(gallery)}, {counted(gallery.rows, 'row')}"
    if gallery.facts.mapped:
        text += f"\nrows {shown(_describe_map(gallery.facts.mapped))}"
    text += f"\n{gallery.describe_threshold()}"
    if others:  # the log names them
        text += f"\nleft out: {counted(len(others), 'picture')}"
    return text, {**_facts(gallery), "left_out": [each._asdict() for each in others]}, int(bool(others))


def _add(args: argparse.Namespace, gallery: Gallery) -> Answer:
    name = name_of(args.name)
    meta = (
        None if args.meta is None else parse_json(args.meta, "--meta", "give an object such as '{\"id\": 7}'")
    )
    _use_network(args, gallery)
    paths = [*map(os.path.abspath, args.pictures)]
    known = gallery.sources(name) if name in gallery else []
    embeddings = gallery.embed(args.pictures)
    looks = _review(gallery, name, args.pictures, embeddings, args.review)
    sources = [source_of(path, look) for path, look in zip(paths, looks)]
    gallery.add(name, embeddings, sources, gallery.embedder, args.collection, meta)
    twice = sorted(path for path, count in Counter([*known, *paths]).items() if path in paths and count > 1)
    if twice:
        get_logger().warning(
            f"{shown(name)}: {len(twice):,} of these files count more than once now, such as {shown(twice[0])}; "
            "to begin anew, remove the person first"
        )
    text = f"{shown(name)}: {counted(len(args.pictures), 'picture')} added; {_people(gallery)}"
    return text, {"name": name, "pictures": len(args.pictures), "people": len(gallery)}, 0


def _check_folder(embedder: Any, folder: str) -> None:
    """Refuse by UserError aligned pictures, for a network that was trained on others."""
    if embedder.preprocessing.aligned is False and is_aligned(folder):
        raise UserError(
            f"{shown(folder)}: its pictures were aligned by plsc align, the network was trained on pictures that are not; give the "
            "photos themselves"
        )


def _review(
    gallery: Gallery, name: str, files: Sequence[str], embeddings: np.ndarray, review: quality.Review
) -> list[quality.Look | None]:
    """Judge pictures before they are added, and return their looks; UserError names those that are
    refused."""
    if review == "off":
        return [None] * len(files)
    faces = quality.face_detector(gallery.preprocessing)
    looks = quality.look_at_files(files, gallery.preprocessing, faces)
    pictures = quality.Pictures(files, looks, embeddings, np.zeros(len(files), np.int64), [name])
    limits = quality.limits_of_gallery(gallery, faces)
    findings = quality.judge_addition(gallery, name, embeddings, looks, limits)
    if refused := quality.refused(findings, pictures, review):
        raise UserError(
            "\n".join([*refused.values(), "nothing was added; --review off adds them all the same"])
        )
    return looks


def _doctor(args: argparse.Namespace, gallery: Gallery) -> Answer:
    _use_network(args, gallery)
    preprocessing = gallery.preprocessing
    pictures, unnamed = quality.of_gallery(gallery, quality.face_detector(preprocessing))
    if not pictures.files:
        raise UserError(f"{shown(args.gallery)}: has no pictures from files, which the doctor shows")
    looks, files = pictures.looks, pictures.files
    limits = quality.limits_of(looks, preprocessing)
    findings = quality.judge(pictures, preprocessing, gallery.pair_threshold, limits)
    notes = quality.not_checked(looks, limits, preprocessing)
    notes += [
        f"not checked: the pixels of {shown(file)}, which cannot be read any more"
        for file, look in zip(files, looks)
        if look is None
    ]
    if unnamed:
        notes.append(f"not checked: {counted(unnamed, 'picture')} that came as pixels, without a file")
    args.output.mkdir(parents=True, exist_ok=True)
    doctor.write_list(args.output / doctor.LIST, findings, pictures, args.review)
    doctor.write_page(
        args.output / doctor.PAGE, f"Gallery {shown(args.gallery)}", findings, pictures, preprocessing, notes
    )
    sure = sum(finding.sure for finding in findings)
    counts = Counter((finding.rule, "yes" if finding.sure else "no") for finding in findings)
    lines = [quality.describe(finding, pictures) for finding in findings if finding.sure]
    if counts:
        lines.append(table([[*rule, count] for rule, count in counts.items()], ["rule", "sure", "pictures"]))
    lines += notes
    lines.append(
        f"{counted(len(files), 'picture')} of {_people(gallery)}: {sure:,} surely wrong, {len(findings) - sure:,} doubtful; "
        f"{args.output / doctor.PAGE} shows them, plsc gallery remove {shown(args.gallery)} --list {args.output / doctor.LIST} "
        "removes those without # in the list"
    )
    answer = {"findings": doctor.as_json(findings, pictures), "not_checked": notes}
    return "\n".join(lines), answer, 2 if sure else int(bool(findings))


def _listed(path: Path, gallery: Gallery) -> dict[str, list[str]]:
    """Return which files of whom a list names. UserError for a picture that is not in the gallery."""
    named = {shown(name): name for name in gallery.names()}
    left: dict[str, list[str]] = {}
    found: dict[str, list[str]] = {}
    for line, name, file in doctor.read_list(path):
        if name in named and name not in left:
            left[name] = gallery.sources(named[name])
        source = next((source for source in left.get(name, ()) if shown(source) == file), None)
        if source is None:
            raise UserError(
                f"{shown(path)}:{line}: {file} of {name}: is not in the gallery; run plsc gallery doctor again"
            )
        left[name].remove(source)
        found.setdefault(named[name], []).append(source)
    return found


def _remove(args: argparse.Namespace, gallery: Gallery) -> Answer:
    if args.names and args.list:
        raise UserError("remove: takes names, or --list with a list of plsc gallery doctor")
    if args.receipt and (args.receipt.exists() or not os.access(args.receipt.parent, os.W_OK | os.X_OK)):
        raise UserError(
            f"--receipt: {shown(args.receipt)}: must be a new file, in a folder that is there and can be written"
        )
    before = _state(gallery)
    removed = (
        gallery.remove_pictures(_listed(args.list, gallery)) if args.list else gallery.remove(*args.names)
    )
    receipt = {
        "gallery": args.gallery if is_url(args.gallery) else os.path.abspath(args.gallery),
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "plsc": __version__,
        "network": gallery.facts.network,
        "removed": removed,
        "erased": gallery.erasure,
        "before": before,
        "after": _state(gallery),
    }
    if args.receipt:
        text = json.dumps(receipt, indent=1, ensure_ascii=False) + "\n"
        replace_file(args.receipt, text.encode("utf-8", "backslashreplace"))
    names = ", ".join(shown(person["name"]) for person in removed) or "nobody"
    if args.list:
        names = f"pictures of {names}"
    return f"{names}: removed; {_people(gallery)}", receipt, 0


def _state(gallery: Gallery) -> dict[str, Any]:
    """Describe a gallery: how many people and rows, and the SHA-256 of each file."""
    counts = {"people": len(gallery), "rows": gallery.rows}
    gallery.close()  # see store.py; it is opened again when it is used
    return {**counts, "sha256": {path.name: sha256_of(path) for path in gallery.files()}}


def _backup(args: argparse.Namespace, gallery: Gallery) -> Answer:
    gallery.backup(args.target)
    size = os.path.getsize(args.target)
    text = f"{shown(args.target)}: {_people(gallery)}, {size:,} bytes"
    return text, {"target": args.target, "bytes": size}, 0


def _list(args: argparse.Namespace, gallery: Gallery) -> Answer:
    facts = _facts(gallery)
    people = [
        {
            "name": person.name,
            "pictures": gallery.sources(person.name),
            "collection": person.collection,
            "meta": person.meta,
        }
        for person in gallery.people()
    ]
    lines = [f"{key + ' ':12}{_cell(value)}" for key, value in facts.items() if key != "measured"]
    lines.append(gallery.describe_threshold())
    cells = [
        [
            shown(each["name"]),
            len(each["pictures"]),
            shown(each["collection"]),
            "" if each["meta"] is None else shown(json.dumps(each["meta"])),
        ]
        for each in people
    ]
    names = table(cells, ["name", "files", "collection", "meta"])
    return "\n".join([*lines, "", names]), {**facts, "people": people}, 0


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else shown(value)


def _search(args: argparse.Namespace, gallery: Gallery) -> Answer:
    _use_network(args, gallery)
    limit = gallery.limit(args.threshold)
    matches = gallery.search(_queries(gallery, args.pictures), args.top, limit, args.collection)
    blocks = [
        f"{shown(picture)}: {_verdict(best, limit)}\n{_table(best)}"
        for picture, best in zip(args.pictures, matches)
    ]
    answer = [
        {
            "picture": picture,
            "name": best[0].name if best and best[0].accepted else None,
            "threshold": limit,
            "matches": [match._asdict() for match in best],
        }
        for picture, best in zip(args.pictures, matches)
    ]
    return "\n\n".join(blocks), answer, 0 if all(best and best[0].accepted for best in matches) else 1


def _verify(args: argparse.Namespace, gallery: Gallery) -> Answer:
    _use_network(args, gallery)
    limit = gallery.pair_limit(args.threshold, args.far)
    found = gallery.verify(args.name, _queries(gallery, args.pictures), limit)
    said = "yes" if found.accepted else "no"
    numbers = table([[found.similarity, limit, found.probability]], ["similarity", "threshold", "P(same)"])
    return f"{said}\n{numbers}", {"threshold": limit, **found._asdict()}, int(not found.accepted)


def _evaluate(args: argparse.Namespace, gallery: Gallery) -> Answer:
    _use_network(args, gallery)
    people = people_of(args.people)
    pictures = [path for paths in people.values() for path in paths]
    owners = [composed(name) for name, paths in people.items() for _ in paths]
    embeddings, kept, left_out = embed_pictures(gallery.embedder, pictures, owners)
    result = evaluate(gallery, embeddings, [owners[number] for number in kept.tolist()])
    lines = [result.table()]
    lines += [f"left out: {each.reason}" for each in left_out]
    if args.set_threshold is not None:
        inside = set(gallery.names())
        strangers = np.array([owners[number] not in inside for number in kept.tolist()], bool)
        whose = [owners[number] for number in kept[strangers].tolist()]
        gallery.measure_threshold(embeddings[strangers], whose, args.set_threshold)
        lines.append(f"from now on {gallery.describe_threshold()}")
    answer = {**result.numbers(), "left_out": [each._asdict() for each in left_out]}
    return "\n".join(lines), answer, int(bool(left_out))


_VERBS = {
    "doctor": _doctor,
    "backup": _backup,
    "evaluate": _evaluate,
    "build": lambda _, gallery: _made(gallery, "built"),
    "add": _add,
    "remove": _remove,
    "list": _list,
    "search": _search,
    "verify": _verify,
    "upgrade": _upgrade,
}


def _use_network(args: argparse.Namespace, gallery: Gallery) -> None:
    """Let the gallery use the network that the arguments name, or else its own when that is needed."""
    environment.prepare()
    if args.config or args.export:
        gallery.use(_embedder(args))
        if line := gallery.describe_other(gallery.embedder):
            get_logger().info(line)


def _embedder(args: argparse.Namespace) -> Any:
    """Make the embedder that the arguments name."""
    environment.prepare()
    from plsc.apps.serving import embedder

    return embedder.from_export(args.export) if args.export else embedder.from_run(args.config, args.override)


def _queries(gallery: Gallery, pictures: Sequence[str]) -> np.ndarray:
    """Embed pictures to compare, all of which must be usable; warn of those that are not aligned where the
    network's were."""
    embeddings = gallery.embed(pictures)
    preprocessing = gallery.preprocessing
    if preprocessing.aligned:
        looks = quality.look_at_files(pictures, preprocessing, quality.face_detector(preprocessing))
        limits = quality.limits_of(looks, preprocessing)
        for finding in quality.judge_pixels(looks, limits, preprocessing):
            file = shown(pictures[finding.picture])
            get_logger().warning(f"{file}: {finding.rule}: {finding.value}; {finding.remedy}")
        if not any(look is not None and look.faces is not None for look in looks):
            get_logger().info(quality.NO_DETECTOR)
    return embeddings


def _facts(gallery: Gallery) -> dict[str, Any]:
    header = gallery.facts
    return {
        "people": len(gallery),
        "rows": gallery.rows,
        "template": header.template,
        "network": f"{header.described} ({header.network})",
        "threshold": header.threshold,
        "measured": header.measured and header.measured.model_dump(),
        "pair_threshold": header.pair_threshold,
        "mirrored": header.flip,
        **({"mapped": _describe_map(header.mapped)} if header.mapped else {}),
    }


def _people(gallery: Gallery) -> str:
    return counted(len(gallery), "person", "people")


def _describe_map(mapped: Mapped) -> str:
    return (
        f"carried over from {mapped.described} ({mapped.network[:12]}) by a map fitted on {mapped.pictures:,} pictures of "
        f"{mapped.people:,} people; mean cosine with the network's own embeddings, on people left out of the fit: {mapped.cosine:.4f}"
    )


def _verdict(matches: Sequence[Match], limit: float) -> str:
    if not matches:
        return "nobody; the gallery is empty"
    nearest = matches[0]
    if not nearest.accepted:
        return f"nobody; the nearest is {shown(nearest.name)}, {nearest.similarity:.4f} of {limit:.4f}"
    above = sum(match.similarity > limit for match in matches)
    more = f"; {above} people are above the threshold {limit:.4f}, the nearest is named" if above > 1 else ""
    return f"{shown(nearest.name)}{more}"


def _table(matches: Sequence[Match]) -> str:
    rows = [[shown(match.name), match.similarity, "yes" if match.accepted else "no"] for match in matches]
    return table(rows, ["name", "similarity", "accepted"])
