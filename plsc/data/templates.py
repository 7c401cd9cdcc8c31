"""Read IJB's data sets for its 1:1 protocol, and a search (1:N) in your own gallery.

IJB's 1:1 protocol compares templates, which are sets with one person's images. `IjbPairs` reads the same
lists as InsightFace's eval_ijbc (meta/ijbc_face_tid_mid.txt and meta/ijbc_template_pair_label.txt). The
images must already be aligned and cropped. Try it:

    GalleryProbe("gallery/", "probe/").identities
"""

import os
from hashlib import sha256
from pathlib import Path

import numpy as np

from plsc.data.dataset import IdentificationSet, TemplatePairs
from plsc.data.folder import read_folder
from plsc.data.image_list import Paths, identity_names, read_list, refuse_missing
from plsc.data.images import Encoded, EncodedPairs, read_file, read_sample
from plsc.data.pairs import is_number, open_text
from plsc.errors import UserError


class IjbPairs(EncodedPairs, TemplatePairs):
    """Template pairs in IJB-B's and IJB-C's layout.

    - `images`: a list with lines `name template media`, where template and media are numbers.
    - `list`: the pairs, with lines `template template 1` for one identity and 0 for two identities.
    - `root`: the images' folder. Empty means the folder that contains `images`.
    - further keys: those of EncodedPairs (plsc.data.images).
    """

    files = ("images", "list")

    def __init__(self, images: str, list: str, root: str = "", **options):
        super().__init__(**options)
        names, numbers = _read_rows(images)
        self.paths = Paths.of(root or os.path.dirname(images), names)
        refuse_missing(self.paths, images)
        self.num_images = len(names)
        self.title = Path(list).stem
        known, self.template = np.unique(numbers[:, 0], return_inverse=True)
        self.media = numbers[:, 1]
        rows = _read_numbers(list)
        unknown = ~np.isin(rows[:, :2], known)
        if unknown.any():
            row, column = np.argwhere(unknown)[0].tolist()
            raise UserError(
                f"{list}: line {row + 1}: template {rows[row, column]} has no image in {images}"
                f" ({len(np.unique(rows[:, :2][unknown])):,} such templates in all)"
            )
        self.pairs = np.searchsorted(known, rows[:, :2])
        self.same = rows[:, 2] == 1

    def pairs_by_content(self) -> np.ndarray:
        return self.pairs  # templates are not compared by content

    def encoded(self, index: int) -> np.ndarray:
        return read_file(self.paths[index])

    def image_name(self, index: int) -> str:
        return self.paths[index]

    def pair_name(self, number: int) -> str:
        return f"line {number + 1}"


def _read_rows(path: str) -> tuple[list[str], np.ndarray]:
    """Read lines `name number number`. Returns the names, and the numbers int64 [N, 2]."""
    names, numbers = [], []
    for line_number, line in enumerate(open_text(path), start=1):
        fields = line.rsplit(maxsplit=2)
        if len(fields) != 3 or not all(map(is_number, fields[1:])):
            raise UserError(f"{path}: line {line_number}: must be 'name template media'")
        names.append(fields[0].strip())
        numbers.append((int(fields[1]), int(fields[2])))
    if not names:
        raise UserError(f"{path}: is empty")
    return names, np.array(numbers, np.int64)


def _read_numbers(path: str) -> np.ndarray:
    """Read lines `template template flag` as int64 [P, 3]. IJB-C has 15 million such lines."""
    try:
        rows = np.loadtxt(path, np.int64, ndmin=2)
    except (ValueError, OverflowError):
        rows = np.empty((0, 3), np.int64)
    if rows.shape[1:] != (3,) or not len(rows) or not np.isin(rows[:, 2], (0, 1)).all():
        raise UserError(f"{path}: lines must be 'template template 1' or 0, three whole numbers each")
    return rows


class GalleryProbe(Encoded, IdentificationSet):
    """A search for probes in a gallery.

    - `gallery`, `probe`: two image folders or two list files. In a folder, the names of subfolders are the
      identities. In a list, the labels are the identities: names, or any numbers, which may have gaps. If a
      probe's identity is not in the gallery, the search should not find it.
    - further keys: those of EncodedPairs (plsc.data.images).
    """

    files = ("gallery", "probe")

    def __init__(self, gallery: str, probe: str, **options):
        super().__init__(**options)
        parts = [_read_part(path) for path in (gallery, probe)]
        self._paths = [paths for paths, _ in parts]
        counts = [len(paths) for paths in self._paths]
        self.gallery = np.arange(counts[0])
        self.probe = np.arange(counts[0], sum(counts))
        self.num_images = sum(counts)
        self.title = Path(gallery).stem
        known, self.identities = np.unique(np.concatenate([who for _, who in parts]), return_inverse=True)
        if os.path.isdir(gallery):
            self.names = identity_names([os.path.join(gallery, name) for name in known])
        elif known.dtype.kind == "U":  # a list with names
            self.names = known
        if not np.isin(self.identities[self.probe], self.identities[self.gallery]).any():
            raise UserError(f"{probe}: none of its identities is in {gallery}; both must use the same names")

    def probes_in_gallery(self) -> list[tuple[int, int]]:
        sizes = np.array([_size(self.image_name(index)) for index in range(self.num_images)])
        # Only files whose size occurs in both parts are read.
        numbers = np.flatnonzero(np.isin(sizes, np.intersect1d(sizes[self.gallery], sizes[self.probe])))
        known: dict[bytes, int] = {}
        found = []
        for index in numbers.tolist():  # the gallery comes first
            try:
                digest = sha256(self.encoded(index)).digest()
            except UserError:
                continue  # the error is reported when the image is embedded
            if index < len(self.gallery):
                known.setdefault(digest, index)
            elif digest in known:
                found.append((index, known[digest]))
        return found

    def encoded(self, index: int) -> np.ndarray:
        return read_file(self.image_name(index))

    def image(self, index: int) -> np.ndarray:
        return read_sample(self.image_name(index), self.preprocessing)

    def image_name(self, index: int) -> str:
        gallery, probe = self._paths
        return gallery[index] if index < len(gallery) else probe[index - len(gallery)]


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def _read_part(path: str) -> tuple[Paths, np.ndarray]:
    """Return the images in a folder or a list, and each image's identity [N]: names, or numbers."""
    if os.path.isdir(path):
        paths, labels, names = read_folder(path)
        return paths, np.array(names)[labels]
    paths, labels, names = read_list(path)
    refuse_missing(paths, path)
    return paths, np.array(names)[labels] if names else labels
