"""Read queries and the gallery that they are looked for in: products, and re-identification with its cameras.

Try it: `QueryGallery("gallery.txt", "query.txt").cameras`.
"""

from __future__ import annotations

import os
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from plsc.data.dataset import RetrievalSet
from plsc.data.folder import read_folder
from plsc.data.image_list import SHOWN, Paths, check_list, identity_names, refuse_missing
from plsc.data.images import EncodedSearch
from plsc.data.pairs import open_text
from plsc.errors import MissingFileError, UserError, shown


class _Part(NamedTuple):
    """The gallery, or the queries."""

    paths: Paths
    identities: list[str]  # of each image
    cameras: list[str]  # of each image; empty: not known

    def where(self, keep: np.ndarray) -> _Part:
        """Select the images for which `keep`, bool [N], is True."""
        identities, cameras = ([*compress(names, keep)] for names in (self.identities, self.cameras))
        return _Part(self.paths.where(keep), identities, cameras)


class QueryGallery(EncodedSearch, RetrievalSet):
    """Queries, and a gallery to rank for each.

    `gallery`, `query`: two lists, `path<TAB>identity` or `path<TAB>identity<TAB>camera` a line, where
    identity and camera are any text; or two image folders, in which a folder's name is the identity. With
    cameras, gallery images of the query's identity from the query's camera do not count. A file that is in
    both is not compared with itself. `query` empty: every image of the gallery is a query among the others.
    `root`: where the relative paths of lists start; empty = each list's own folder. `title`: what logs and
    reports call the set; empty = the gallery's name. Further keys: those of plsc.data.images.EncodedPairs.
    """

    def __init__(self, gallery: str, query: str = "", root: str = "", title: str = "", **options):
        self.check(gallery=gallery, query=query, root=root, **options)
        super().__init__(**options)
        parts = [_read_part(path, root) for path in (gallery, query) if path]
        if len({bool(part.cameras) for part in parts}) == 2:
            raise UserError(f"{shown(query)}: one of the lists has cameras; give them in both, or in none")
        self.gallery = self.probe = np.arange(len(parts[0].paths))
        if query:
            self.probe = _places_in_gallery(*parts)
            new = self.probe < 0
            self.probe[new] = len(self.gallery) + np.arange(np.count_nonzero(new))
            parts[1] = parts[1].where(new)
        self._paths = [part.paths for part in parts]
        self.num_images = sum(map(len, self._paths))
        self.name = title or Path(gallery).stem
        known, self.identities = np.unique(
            np.concatenate([part.identities for part in parts]), return_inverse=True
        )
        self.names = _names(gallery, known)
        if parts[0].cameras:
            self.cameras = np.unique(np.concatenate([part.cameras for part in parts]), return_inverse=True)[1]

    @classmethod
    def check(cls, **kwargs) -> None:
        super().check(**kwargs)
        given = [kwargs[key] for key in ("gallery", "query") if kwargs.get(key)]
        for path in given:
            if not os.path.exists(path):
                raise MissingFileError(
                    f"gallery, query: '{shown(path)}' does not exist (looked in {Path.cwd()})"
                )
            if not os.path.isdir(path):
                check_list(path, kwargs.get("root", ""))
        if len({os.path.isdir(path) for path in given}) == 2:
            raise UserError("gallery, query: give two folders or two lists")


def _places_in_gallery(gallery: _Part, queries: _Part) -> np.ndarray:
    """Find the queries whose file is in the gallery, too: its place there, -1 of the others, int64 [Q].

    UserError: there it is of another identity or camera.
    """
    index_of = {os.path.normpath(path): index for index, path in enumerate(gallery.paths)}
    places = np.array([index_of.get(os.path.normpath(path), -1) for path in queries.paths])
    for number in np.flatnonzero(places >= 0).tolist():
        for what, of_query, in_gallery in zip(("identity", "camera"), queries[1:], gallery[1:]):
            if of_query and of_query[number] != in_gallery[places[number]]:
                raise UserError(
                    f"{shown(queries.paths[number])}: is of {what} '{shown(of_query[number])}' as a query, of "
                    f"'{shown(in_gallery[places[number]])}' in the gallery; correct one of the lists"
                )
    return places


def _names(gallery: str, known: np.ndarray) -> np.ndarray | None:
    """Return what the identities are called outside of the set; None for a list's numbers, which mean
    something in it only."""
    if os.path.isdir(gallery):
        return identity_names([os.path.join(gallery, name) for name in known])
    return None if all(name.isdecimal() for name in known.tolist()) else known


def _read_part(path: str, root: str) -> _Part:
    if os.path.isdir(path):
        paths, labels, names = read_folder(path)
        return _Part(paths, [names[label] for label in labels], [])
    lines = [line.split("\t") for line in open_text(path)]
    width = len(lines[0]) if lines else 0
    if width not in (2, 3):
        raise UserError(
            f"{shown(path)}: line 1: must be 'path<TAB>identity' or 'path<TAB>identity<TAB>camera'"
        )
    bad = [
        number
        for number, fields in enumerate(lines, start=1)
        if len(fields) != width or not all(field.strip() for field in fields)
    ]
    if bad:
        where = ", ".join(f"line {number}" for number in bad[:SHOWN])
        raise UserError(
            f"{shown(path)}: {where}: must have {width} columns separated by tabs, as line 1 has; {len(bad):,} bad lines in all"
        )
    paths, identities, *cameras = zip(*lines)
    part = _Part(Paths.of(root or os.path.dirname(path), paths), [*identities], [*(cameras or [()])[0]])
    refuse_missing(part.paths, path)
    return part
