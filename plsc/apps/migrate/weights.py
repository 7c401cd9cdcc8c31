"""Fetch networks for faces that others have trained and published: `plsc weights list`, `plsc weights get
NAME`.

A network comes from the address in the table, to this machine. Nothing is kept of a file with another
SHA-256. It becomes a checkpoint folder as by `plsc import`, for Weights.name and -c. Try it:

    plsc weights get w600k_r50 --output r50
    plsc predict -c r50/config.yaml photo.jpg
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from plsc.apps.migrate.import_weights import import_weights
from plsc.apps.migrate.onnx_file import import_onnx
from plsc.config import load
from plsc.data.preprocessing import MEAN, SCALE, Preprocessing
from plsc.errors import UserError, shown, writing
from plsc.utils.bar import Bar
from plsc.utils.disk import refuse_full_disk
from plsc.utils.files import weights_folder
from plsc.utils.registry import did_you_mean
from plsc.utils.text import table

_BLOCK = 2**20  # bytes
_STALL = 30.0  # seconds without a byte


class Published(NamedTuple):
    """A network on a server: RGB pictures of 112 x 112, aligned, become 512 numbers."""

    url: str
    sha256: str
    network: str
    trained_on: str
    people: int
    images: str | None
    megabytes: int
    licence: str


_RESEARCH = "non-commercial research only"  # InsightFace says so of all its weights

# Each SHA-256 stands, with the same file's name, in places that do not depend on each other:
#   w600k_r50     uniface's constants.py (PyPI), the manifests of programs that pin this address or InsightFace's buffalo_l.zip
#   glintr100     Git LFS's pointer of its copies, the manifests of programs that pin InsightFace's antelopev2.zip or this address
#   ms1mv3_r100   two programs that pin this address; one of them compared it with two further copies
PUBLISHED = {
    "w600k_r50": Published(
        url="https://huggingface.co/public-data/insightface/resolve/33c1063c49c785b7652d3fd529f86fa4f149392b/models/buffalo_l/"
        "w600k_r50.onnx",
        sha256="4c06341c33c2ca1f86781dab0e829f88ad5b64be9fba56e56bc9ebdefc619e43",
        network="IResNet50",
        trained_on="WebFace600K",
        people=600_000,
        images=None,
        megabytes=174,
        licence=_RESEARCH,
    ),
    "glintr100": Published(
        url="https://huggingface.co/DIAMONIK7777/antelopev2/resolve/main/glintr100.onnx",
        sha256="4ab1d6435d639628a6f3e5008dd4f929edf4c4124b1a7169e1048f9fef534cdf",
        network="IResNet100",
        trained_on="Glint360K",
        people=360_232,
        images="17.1 M",
        megabytes=261,
        licence=_RESEARCH,
    ),
    "ms1mv3_r100": Published(
        url="https://huggingface.co/camenduru/show/resolve/064a379f415f674051145ec4862f54bd6a65073f/models/arcface/"
        "ms1mv3_arcface_r100_fp16.pth",
        sha256="a566a62357f0c55b679d9ff2f022a294486568be0c00665d39029d0e46a8109b",
        network="IResNet100",
        trained_on="MS1MV3",
        people=93_431,
        images="5.2 M",
        megabytes=261,
        licence=_RESEARCH,
    ),
}


def get(name: str, output: str | None = None) -> Path:
    """Fetch a network and import it -> its folder: `output`, new or empty, or the one that Weights.name looks
    in.

    Raises UserError: an unknown name, a folder that is not empty, a server that fails, another SHA-256, no
    room.
    """
    row = PUBLISHED.get(name)
    if row is None:
        raise UserError(
            f"{shown(name)}: is no published network that is known{did_you_mean(name, PUBLISHED)}; plsc weights list has them"
        )
    folder = Path(os.path.abspath(output or weights_folder(name)))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{shown(folder)}: is there already; remove it, or name a new folder with --output")
    if row.url.endswith(".onnx"):
        import_onnx(row.url)
    config = load({"Model.name": row.network, "Model.embedding_size": 512})
    preprocessing = Preprocessing.of_images((3, 112, 112), MEAN, SCALE, "RGB", True)
    with writing(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".weights-") as beside:
            path = Path(beside, row.url.rpartition("/")[2])
            _download(row, path)
            about = {
                "file": row.url,
                "sha256": row.sha256,
                "licence": row.licence,
                "trained_on": row.trained_on,
            }
            import_weights(str(path), config, folder, preprocessing, **about)
    return folder


def _download(row: Published, path: Path) -> None:
    """Fetch the network's file to `path`, a new one, and compare its SHA-256 on the way."""
    url = shown(row.url)
    digest = hashlib.sha256()
    opened = _ask(url, lambda: urllib.request.urlopen(row.url, timeout=_STALL))  # noqa: S310 - one of the table
    with opened as answer:
        size = answer.length or row.megabytes * 10**6
        # Twice: the file, and the checkpoint that it becomes.
        refuse_full_disk(path.parent, 2 * size, url, "name another folder with --output")
        with writing(path), open(path, "xb") as file, Bar(f"fetching {path.name}", size, "bytes") as bar:
            while block := _ask(url, lambda: answer.read(_BLOCK)):
                file.write(block)
                digest.update(block)
                bar.update(len(block))
        if answer.length:
            raise UserError(
                f"{url}: the connection broke, {answer.length:,} of {size:,} bytes are missing; try again"
            )
    if digest.hexdigest() != row.sha256:
        raise UserError(
            f"{url}: is not the file that was published: its SHA-256 is {digest.hexdigest()}, must be {row.sha256}; nothing is kept"
        )


def _ask(url: str, act: Callable[[], Any]) -> Any:
    """Do what asks a server. UserError if it fails."""
    try:
        return act()
    except urllib.error.HTTPError as error:
        raise UserError(
            f"{url}: the server answers {error.code} {shown(error.reason)}; try again later"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        why = " ".join(str(getattr(error, "reason", error)).split()) or type(error).__name__
        raise UserError(f"{url}: cannot be fetched: {shown(why)}; try again") from error


def _list() -> None:
    headers = ["name", "network", "trained on", "people", "images", "MB", "file", "licence"]
    rows = [
        (
            name,
            row.network,
            row.trained_on,
            row.people,
            row.images,
            row.megabytes,
            row.url.rpartition(".")[2],
            row.licence,
        )
        for name, row in PUBLISHED.items()
    ]
    print(table(rows, headers))
    print()
    print(
        table(
            [(name, row.sha256, row.url) for name, row in PUBLISHED.items()], ["name", "SHA-256", "address"]
        )
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run `plsc weights`. Raises UserError."""
    parser = argparse.ArgumentParser(
        "plsc weights", description="Networks for faces that others have published."
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("list", help="which are known, what they were trained on, and their licence")
    parser_get = verbs.add_parser("get", help="fetch one from its address, and import it")
    parser_get.add_argument("name", metavar="NAME", help="as plsc weights list has it")
    parser_get.add_argument(
        "--output",
        metavar="FOLDER",
        help="a new folder; default: in the user's caches, where Weights.name looks",
    )
    args = parser.parse_args(argv)
    if args.verb == "list":
        _list()
        return
    folder = get(args.name, args.output)
    row = PUBLISHED[args.name]
    start = quote(shown(f"Global.init_from={folder}" if args.output else f"Weights.name={args.name}"))
    norms = " Optimizer.freeze_norms=true" if row.url.endswith(".onnx") else ""
    print(f"done: {shown(folder)}; {row.licence}")
    print(f"  plsc predict -c {quote(shown(folder / 'config.yaml'))} PHOTOS   (aligned ones: plsc align)")
    print(f"  plsc train -c YOURS.yaml -o {start} Model.name={row.network} Model.embedding_size=512{norms}")
