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

from plsc.apps.serving.gallery import Gallery, Match, quality
from plsc.apps.serving.gallery.evaluate import evaluate
from plsc.apps.serving.gallery.files import Mapped, name_of
from plsc.apps.serving.gallery.mapping import fit_map
from plsc.apps.serving.gallery.pictures import embed_pictures, people_of
from plsc.data.folder import is_aligned
from plsc.distributed import environment
from plsc.errors import UserError, shown
from plsc.utils.atomic_write import replace_file
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
        made.add_argument("gallery", help="the gallery's folder")
        made.add_argument("--json", action="store_true", help="print JSON")
        if network:
            given = made.add_mutually_exclusive_group(required=network == "required")
            given.add_argument(
                "-c", "--config", metavar="CONFIG", help="config.yaml of the run whose network embeds"
            )
            given.add_argument("--export", metavar="FOLDER", help="what plsc export wrote, in place of -c")
            made.add_argument("-o", "--override", nargs="+", action="extend", default=[], metavar="KEY=VALUE")
        return made

    threshold = {"type": float, "metavar": "COSINE", "help": "accept above it; default: the gallery's"}

    build = verb("build", "make a gallery of a folder with a folder for each person", "required")
    build.add_argument("people", help="people/Ann/1.jpg, people/Ann/2.jpg, people/Bob/1.jpg, ...")
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
    add.add_argument("name")
    add.add_argument("pictures", nargs="+")
    add.add_argument("--review", **review)
    remove = verb("remove", "remove people, from all of its files", "optional")
    remove.add_argument("names", nargs="*", metavar="name")
    remove.add_argument(
        "--list",
        type=Path,
        metavar="FILE",
        help="remove the pictures of a list of plsc gallery doctor; whom no picture is left is removed",
    )
    remove.add_argument(
        "--receipt", type=Path, metavar="FILE", help="a new file, JSON: who was removed, when"
    )
    doctor = verb("doctor", "find what is wrong with the pictures in a gallery", "optional")
    doctor.add_argument(
        "--review",
        choices=quality.REVIEWS[1:],
        default="standard",
        help="strict: doubtful ones, too, are in the list uncommented",
    )
    doctor.add_argument(
        "--output", type=Path, default=Path("doctor"), metavar="FOLDER", help="default: doctor"
    )
    verb("list", "show what is in a gallery")
    search = verb("search", "find the most similar people", "optional")
    search.add_argument("pictures", nargs="+")
    search.add_argument("--top", type=int, default=5, metavar="N", help="people to show (default: 5)")
    search.add_argument("--threshold", **threshold)
    verify = verb("verify", "say whether pictures show a person", "optional")
    verify.add_argument("name")
    verify.add_argument("pictures", nargs="+", help="of one person")
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
    """Parse the arguments. Some versions of argparse leave over an optional argument that comes after an option."""
    parser = _parser()
    args, others = parser.parse_known_args(argv)
    if args.verb == "upgrade" and not (args.people or args.map) and others and not others[0].startswith("-"):
        args.people = others.pop(0)
    if others:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run `plsc gallery`; exit code 1 where pictures were left out, or somebody was not accepted. Raises UserError."""
    args = _parse(argv)
    with contextlib.redirect_stdout(sys.stderr):  # the log; stdout has the answer only
        said, answer, code = _VERBS[args.verb](args)
    print(json.dumps(answer) if args.json else said)
    return code


Answer = tuple[str, Any, int]
"""Text, the same for JSON, and the exit code."""


def _build(args: argparse.Namespace) -> Answer:
    embedder, people = _embedder(args), people_of(args.people)
    _check_folder(embedder, args.people)
    gallery = Gallery.build(args.gallery, embedder, people, args.template, args.review)
    return _made(gallery, "built")


def _upgrade(args: argparse.Namespace) -> Answer:
    gallery = Gallery.open(args.gallery)
    if args.old and not args.map:
        raise UserError("--old: names the network that --map leads from; give --map too")
    if args.map:
        return _upgrade_by_map(args, gallery)
    gallery.upgrade(_embedder(args), people_of(args.people) if args.people else None)
    return _made(gallery, "upgraded")


def _upgrade_by_map(args: argparse.Namespace, gallery: Gallery) -> Answer:
    pictures = people_of(args.map)
    new = _embedder(args)
    old = _old_embedder(args, gallery)
    gallery.check(old)
    gallery.check_map(new, old.network, new.network)  # before all pictures are embedded
    gallery.upgrade_by_map(new, fit_map(old, new, pictures))
    return _made(gallery, "upgraded by a map")


def _old_embedder(args: argparse.Namespace, gallery: Gallery) -> Any:
    """Make the embedder of the gallery's present network."""
    from plsc.apps.serving import embedder

    if args.old:
        exported = os.path.isfile(os.path.join(args.old, "preprocessing.json"))
        return embedder.from_export(args.old) if exported else embedder.from_run(args.old)
    if not gallery.header.origin:
        raise UserError(f"{shown(args.gallery)}: does not say where its network is; name it with --old")
    return embedder.from_origin(gallery.header.origin, gallery.header.network)


def _made(gallery: Gallery, what: str) -> Answer:
    others = gallery.left_out
    text = f"{shown(gallery.folder)}: {what}, {_people(gallery)}, {counted(gallery.rows, 'row')}"
    if gallery.header.mapped:
        text += f"\nrows {shown(_describe_map(gallery.header.mapped))}"
    text += f"\n{gallery.describe_threshold()}"
    if others:  # the log names them
        text += f"\nleft out: {counted(len(others), 'picture')}"
    return text, {**_facts(gallery), "left_out": [each._asdict() for each in others]}, int(bool(others))


def _add(args: argparse.Namespace) -> Answer:
    gallery = Gallery.open(args.gallery)
    paths = [*map(os.path.abspath, args.pictures)]
    name = name_of(args.name)
    known = gallery.sources(name) if name in gallery.names() else []
    embedder = _fitting_embedder(args, gallery)
    embeddings = _embed(embedder, args.pictures)
    if args.review != "off":
        _review(embedder, gallery, name, args.pictures, embeddings, args.review)
    gallery.add(name, embeddings, paths, embedder)
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
    embedder: Any, gallery: Gallery, name: str, files: Sequence[str], embeddings: np.ndarray, review: Any
) -> None:
    """Judge pictures before they are added; UserError names those that are refused."""
    preprocessing = embedder.preprocessing
    faces = quality.face_detector(preprocessing)
    looks = quality.look_at_files(files, preprocessing, faces)
    pictures = quality.Pictures(files, looks, embeddings, np.zeros(len(files), np.int64), [name])
    findings = quality.judge_addition(
        gallery, name, embeddings, looks, quality.limits_of_gallery(gallery, faces)
    )
    if refused := quality.refused(findings, pictures, review):
        raise UserError(
            "\n".join([*refused.values(), "nothing was added; --review off adds them all the same"])
        )


def _doctor(args: argparse.Namespace) -> Answer:
    gallery = Gallery.open(args.gallery)
    embedder = _fitting_embedder(args, gallery)
    files = [(number, file) for number, name in enumerate(gallery.names()) for file in gallery.sources(name)]
    if not files:
        raise UserError(f"{shown(args.gallery)}: has no pictures from files, which the doctor reads again")
    embeddings, kept, left_out = embed_pictures(
        embedder, [file for _, file in files], [gallery.names()[number] for number, _ in files]
    )
    used = [files[number] for number in kept.tolist()]
    preprocessing = embedder.preprocessing
    paths = [file for _, file in used]
    looks = quality.look_at_files(paths, preprocessing, quality.face_detector(preprocessing))
    owners = np.array([number for number, _ in used], np.int64)
    pictures = quality.Pictures(paths, looks, embeddings, owners, gallery.names())
    limits = quality.limits_of(looks, preprocessing)
    findings = quality.judge(pictures, preprocessing, gallery.pair_threshold, limits)
    notes = quality.not_checked(looks, limits, preprocessing)
    notes += [f"not checked: {each.reason}" for each in left_out]
    args.output.mkdir(parents=True, exist_ok=True)
    quality.write_list(args.output / quality.LIST, findings, pictures, args.review)
    quality.write_page(
        args.output / quality.PAGE, f"Gallery {shown(args.gallery)}", findings, pictures, preprocessing, notes
    )
    sure = sum(finding.sure for finding in findings)
    counts = Counter((finding.rule, "yes" if finding.sure else "no") for finding in findings)
    lines = [quality.describe(finding, pictures) for finding in findings if finding.sure]
    lines += (
        [table([[*rule, count] for rule, count in counts.items()], ["rule", "sure", "pictures"])]
        if counts
        else []
    )
    lines += notes
    lines.append(
        f"{counted(len(paths), 'picture')} of {_people(gallery)}: {sure:,} surely wrong, {len(findings) - sure:,} doubtful; "
        f"{args.output / quality.PAGE} shows them, plsc gallery remove {shown(args.gallery)} --list {args.output / quality.LIST} "
        "removes those without # in the list"
    )
    answer = {"findings": quality.as_json(findings, pictures), "not_checked": notes}
    return "\n".join(lines), answer, 2 if sure else int(bool(findings))


def _remove_listed(args: argparse.Namespace, gallery: Gallery) -> tuple[list[str], dict[str, list[str]]]:
    """Return whom a list concerns, and which files of each are left. UserError for a picture that is not in the gallery."""
    listed = quality.read_list(args.list)
    named = {shown(name): name for name in gallery.names()}
    left: dict[str, list[str]] = {}
    for (name, file), line in listed.items():
        files = left.setdefault(named[name], gallery.sources(named[name])) if name in named else []
        if not any(shown(path) == file for path in files):
            raise UserError(
                f"{shown(args.list)}:{line}: {file} of {name}: is not in the gallery; run plsc gallery doctor again"
            )
        left[named[name]] = [path for path in files if shown(path) != file]
    return [*left], left


def _remove(args: argparse.Namespace) -> Answer:
    gallery = Gallery.open(args.gallery)
    if bool(args.names) == (args.list is not None):
        raise UserError("remove: needs names, or --list with a list of plsc gallery doctor")
    left: dict[str, list[str]] = {}
    added = {}
    if args.list:
        args.names, left = _remove_listed(args, gallery)
        embedder = _fitting_embedder(args, gallery) if any(left.values()) else None
        added = {name: _embed(embedder, files) for name, files in left.items() if files}
    if args.receipt and (args.receipt.exists() or not args.receipt.parent.is_dir()):
        raise UserError(f"--receipt: {shown(args.receipt)}: must be a new file, in a folder that is there")
    facts = gallery.erase(args.names)
    for name, embeddings in added.items():
        gallery.add(name, embeddings, left[name], embedder)
    receipt = {
        "gallery": os.path.abspath(args.gallery),
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "plsc": __version__,
        "network": gallery.header.network,
        **facts,
    }
    if args.receipt:
        text = json.dumps(receipt, indent=1, ensure_ascii=False) + "\n"
        replace_file(args.receipt, text.encode("utf-8", "backslashreplace"))
    names = ", ".join(shown(person["name"]) for person in facts["removed"])
    if args.list:
        receipt["left"] = left
        names = f"pictures of {counted(len(left), 'person', 'people')}, all of {len(left) - len(added):,}"
    return f"{names}: removed; {_people(gallery)}", receipt, 0


def _list(args: argparse.Namespace) -> Answer:
    gallery = Gallery.open(args.gallery)
    facts = _facts(gallery)
    people = [{"name": name, "pictures": gallery.sources(name)} for name in gallery.names()]
    lines = [f"{key + ' ':12}{_cell(value)}" for key, value in facts.items() if key != "measured"]
    lines.append(gallery.describe_threshold())
    names = table([[shown(each["name"]), len(each["pictures"])] for each in people], ["name", "files"])
    return "\n".join([*lines, "", names]), {**facts, "people": people}, 0


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else shown(value)


def _search(args: argparse.Namespace) -> Answer:
    gallery = Gallery.open(args.gallery)
    limit = gallery.limit(args.threshold)
    embeddings = _embed_queries(_fitting_embedder(args, gallery), args.pictures)
    matches = gallery.search(embeddings, args.top, limit)
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


def _verify(args: argparse.Namespace) -> Answer:
    gallery = Gallery.open(args.gallery)
    limit = _pair_threshold(args, gallery)
    found = gallery.verify(args.name, _embed_queries(_fitting_embedder(args, gallery), args.pictures), limit)
    said = "yes" if found.accepted else "no"
    numbers = table([[found.similarity, limit, found.probability]], ["similarity", "threshold", "P(same)"])
    return f"{said}\n{numbers}", {"threshold": limit, **found._asdict()}, int(not found.accepted)


def _evaluate(args: argparse.Namespace) -> Answer:
    gallery = Gallery.open(args.gallery)
    people = people_of(args.people)
    pictures = [path for paths in people.values() for path in paths]
    owners = [name for name, paths in people.items() for _ in paths]
    embeddings, kept, left_out = embed_pictures(_fitting_embedder(args, gallery), pictures, owners)
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
    "evaluate": _evaluate,
    "build": _build,
    "add": _add,
    "remove": _remove,
    "list": _list,
    "search": _search,
    "verify": _verify,
    "upgrade": _upgrade,
}


def _embedder(args: argparse.Namespace, gallery: Gallery | None = None) -> Any:
    """Make the embedder that the arguments name, or else the one that the gallery was built with."""
    environment.prepare()
    from plsc.apps.serving import embedder

    if args.override and not args.config:
        raise UserError("-o: changes the config that -c names; give -c too")
    if args.export:
        return embedder.from_export(args.export)
    if args.config:
        return embedder.from_run(args.config, args.override)
    if gallery is None or not gallery.header.origin:
        raise UserError(
            f"{shown(args.gallery)}: does not say where its network is; name its run with -c, or --export"
        )
    try:
        return embedder.from_origin(gallery.header.origin, gallery.header.network)
    except UserError as error:
        raise UserError(
            f"{error}; it is the network of {shown(args.gallery)}: name where it is now with -c, or --export"
        ) from None


def _fitting_embedder(args: argparse.Namespace, gallery: Gallery) -> Any:
    """Make the embedder that the arguments name, or the gallery's; UserError where its embeddings cannot be compared."""
    embedder = _embedder(args, gallery)
    gallery.check(embedder)
    if line := gallery.describe_other(embedder):
        get_logger().info(line)
    return embedder


def _embed(embedder: Any, pictures: Sequence[str]) -> np.ndarray:
    """Embed pictures, all of which must be usable."""
    embeddings, _, unusable = embed_pictures(embedder, pictures, pictures)
    if unusable:
        raise UserError("\n".join(picture.reason for picture in unusable))
    return embeddings


def _embed_queries(embedder: Any, pictures: Sequence[str]) -> np.ndarray:
    """Embed pictures to compare, all of which must be usable; warn of those that are not aligned where the network's were."""
    embeddings = _embed(embedder, pictures)
    preprocessing = embedder.preprocessing
    if preprocessing.aligned:
        looks = quality.look_at_files(pictures, preprocessing, quality.face_detector(preprocessing))
        limits = quality.limits_of(looks, preprocessing)
        for finding in quality.judge_pixels(looks, limits, preprocessing):
            file = shown(pictures[finding.picture])
            get_logger().warning(f"{file}: {finding.rule}: {finding.value}; {finding.remedy}")
        if not any(look is not None and look.faces is not None for look in looks):
            get_logger().info(quality.NO_DETECTOR)
    return embeddings


def _pair_threshold(args: argparse.Namespace, gallery: Gallery) -> float | None:
    """Return the threshold of pairs that the arguments ask for, else the gallery's."""
    if args.far is None:
        return gallery.pair_threshold if args.threshold is None else args.threshold
    if gallery.calibration is None:
        raise UserError(
            f"--far: {shown(args.gallery)} has no calibration; store one with plsc eval --calibrate, and run plsc gallery upgrade"
        )
    return gallery.calibration.threshold(args.far)


def _facts(gallery: Gallery) -> dict[str, Any]:
    header = gallery.header
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
