"""Embed pictures with SFace, with any ONNX network for aligned faces, or with a plsc run.

    network = open_network()
    (prepared,) = network.embed_pictures(["ann.jpg"])
    prepared.embeddings    # float32 [1, 128]: the largest face's unit embedding

For a face network, a picture's largest face is detected and aligned. A picture that already has the
network's input size (112 x 112, as `plsc align` writes it) is used unchanged.
"""

import functools
import json
import os
import threading
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import cv2
import numpy as np

from plsc.apps.faces.alignment import SIZE, align
from plsc.apps.faces.detector import Detector, Face
from plsc.apps.faces.networks import SFACE, YUNET
from plsc.apps.faces.photos import Picture, find_faces, picture_name, read_photo, refuse_group
from plsc.apps.gallery.onnx_file import OnnxFile
from plsc.data.images import to_sample
from plsc.errors import UserError, escape
from plsc.evaluation.search import row_lengths, unit_rows
from plsc.utils.bar import Bar
from plsc.utils.logging import warn_once
from plsc.utils.parallel import Pool, in_parallel
from plsc.utils.preprocessing import Preprocessing
from plsc.utils.published import path_of, sha256_of

Faces = Literal["largest", "clear", "all"]
"""Which faces in a picture to embed.

- "largest": the largest face.
- "clear": the largest face. A picture whose second largest face is nearly as large is rejected.
- "all": every face.
"""
_BATCH = 64
_AT_ONCE = 256  # most pictures whose samples are in memory


def last_part(name: str) -> str:
    """Return the last component in a name with folders, in Unicode form NFC: "faces/Ann" -> "Ann"."""
    return unicodedata.normalize("NFC", name).rstrip("/").rsplit("/", 1)[-1]


class PreparedPicture(NamedTuple):
    """A picture that is prepared for the network, or the reason why it cannot be used."""

    samples: Sequence[np.ndarray] = ()
    """Samples for the selected faces, or for the whole picture: uint8 [C, H, W] each."""
    faces: Sequence[Face] = ()
    """All faces in the picture, largest first. Empty if faces were not detected."""
    left_out: str = ""
    """Why the picture cannot be used, in one line. Empty if it can be used."""
    embeddings: np.ndarray | None = None
    """The samples' unit embeddings, float32 [n, D]. None before they are computed."""


class EmbeddingNetwork(ABC):
    """A network that turns samples into unit embeddings.

    Attributes:
        title: the network's name in messages.
        identity: text that identifies its weights.
        origin: the arguments with which `open_network` opens it again.
        preprocessing: how its samples are prepared.
        finds_faces: whether to embed detected faces. If False, whole pictures are embedded.
        pair_threshold: cosine above which two pictures show one person, or None. A gallery has its own.
    """

    finds_faces = True
    pair_threshold: float | None = None

    def __init__(self, title: str, identity: str, origin: dict[str, Any], preprocessing: Preprocessing):
        self.title, self.identity, self.origin, self.preprocessing = title, identity, origin, preprocessing
        self._lock = threading.Lock()

    def prepare(self, picture: Picture, faces: Faces = "largest") -> PreparedPicture:
        """Read a picture, detect its faces, and make the samples of the selected faces.

        Args:
            picture: a path, the bytes of a file, an array or a Pillow image.
            faces: which faces to select.

        Returns the samples, or the reason in `left_out` if the picture cannot be used.
        """
        shape = self.preprocessing.shape
        try:
            pixels = read_photo(picture)
            if not self.finds_faces or pixels.shape[:2] == shape[1:]:
                return PreparedPicture([to_sample(pixels, self.preprocessing)])
            found = find_faces(self._detector, picture, pixels, every=faces == "all")
            if faces == "clear":
                refuse_group(picture, found)
        except UserError as error:
            return PreparedPicture(left_out=str(error))
        chosen = found if faces == "all" else found[:1]
        cut = [align(pixels, face.landmarks, max(shape[1:])) for face in chosen]
        return PreparedPicture([to_sample(face, self.preprocessing) for face in cut], found)

    def embed_pictures(self, pictures: Sequence[Picture], faces: Faces = "largest") -> list[PreparedPicture]:
        """Embed each picture's selected faces.

        Args:
            pictures: the pictures to embed.
            faces: which faces in each picture to select.

        Returns one result for each picture, in the same order. A result has `embeddings` or `left_out`, but
        no samples.
        """
        embedded: list[PreparedPicture] = []
        with Bar("embedding", len(pictures), "pictures") as bar:
            for start in range(0, len(pictures), _AT_ONCE):
                prepare = functools.partial(self.prepare, faces=faces)
                part = [*in_parallel(prepare, pictures[start : start + _AT_ONCE])]
                samples = [sample for prepared in part for sample in prepared.samples]
                rows = self.embed(samples) if samples else np.empty((0, 0), np.float32)
                ends = np.cumsum([len(prepared.samples) for prepared in part])[:-1]
                for picture, prepared, own in zip(pictures[start:], part, np.split(rows, ends)):
                    lengths = row_lengths(own)
                    if prepared.samples and not (lengths > 0).all():
                        what = "numbers that are not finite" if np.isnan(lengths).any() else "zeros"
                        why = f"{escape(picture_name(picture))}: the network gives {what} for it"
                        embedded.append(PreparedPicture(faces=prepared.faces, left_out=why))
                    else:
                        embedded.append(prepared._replace(samples=(), embeddings=own))
                bar.update(len(part))
        return embedded

    def embed(self, samples: Sequence[np.ndarray]) -> np.ndarray:
        """Compute samples' unit embeddings, float32 [n, D].

        A row is zero if the network returns zeros for its sample.
        """
        with self._lock:
            return unit_rows(self._embed(np.stack(samples)))

    @abstractmethod
    def _embed(self, samples: np.ndarray) -> np.ndarray:
        """Compute embeddings of any length, float32 [B, D], for samples uint8 [B, C, H, W]."""

    @functools.cached_property
    def _detector(self) -> Detector:
        return Detector()

    def trained_on(self) -> frozenset[str]:
        """Return the names of people that the network was trained on, without folders.

        The set is empty if they are unknown.
        """
        return frozenset()


class _SFaceNetwork(EmbeddingNetwork):
    pair_threshold = 0.363  # published with the network

    def __init__(self, path: str, origin: str = "sface"):
        preprocessing = Preprocessing((3, SIZE, SIZE), channels="BGR")
        super().__init__("sface", SFACE.sha256, {"network": origin}, preprocessing)
        self._networks = Pool(lambda: cv2.FaceRecognizerSF.create(path, ""))

    def _embed(self, samples: np.ndarray) -> np.ndarray:
        pictures = np.ascontiguousarray(samples.transpose(0, 2, 3, 1))
        return np.stack([*in_parallel(self._feature, pictures)])

    def _feature(self, picture: np.ndarray) -> np.ndarray:
        with self._networks.one() as network:
            return network.feature(picture)[0].copy()


class _OnnxNetwork(EmbeddingNetwork):
    def __init__(self, path: str):
        self._file = OnnxFile(path)
        card = self._file.card or {"preprocessing": {"aligned": True}, "threshold": None, "network": None}
        identity = card["network"] or sha256_of(path)
        super().__init__(escape(path), identity, {"network": os.path.abspath(path)}, self._file.preprocessing)
        self.finds_faces = card["preprocessing"].get("aligned", False)
        self.pair_threshold = card["threshold"]

    def _embed(self, samples: np.ndarray) -> np.ndarray:
        return self._file.embed(samples)

    def trained_on(self) -> frozenset[str]:
        if self._file.card:  # a run that may have been trained on the user's own people
            _warn_of_rates(f"{self.title}: does not contain the trained classes' names, -c RUN knows them")
        return frozenset()


class _RunNetwork(EmbeddingNetwork):
    def __init__(self, config: str, overrides: Sequence[str]):
        from plsc.config import load
        from plsc.distributed.environment import before_paddle
        from plsc.training.run_folder import open_checkpoint, start

        before_paddle()  # the config may name classes from modules that import Paddle
        self._config = load(config, overrides)
        start(self._config.Global)
        from plsc.training.load_weights import load_network

        self._saved = saved = open_checkpoint(self._config.Global)
        self._backbone = load_network(saved, self._config)
        checkpoint = f"Global.checkpoint={json.dumps(os.path.abspath(saved.path))}"
        origin = {"config": os.path.abspath(config), "overrides": [*overrides, checkpoint]}
        described = f"{saved.path.parent.parent}, step {saved.step}"
        self._flip = self._config.DataLoader.Eval.flip  # so that embeddings equal `plsc predict`'s
        super().__init__(described, saved.network(self._flip), origin, saved.preprocessing)
        self.finds_faces = bool(saved.preprocessing.aligned)
        self.pair_threshold = saved.threshold(self._flip)

    def _embed(self, samples: np.ndarray) -> np.ndarray:
        from plsc.training.embed import embed

        read = lambda start, stop: samples[start:stop]
        return embed(self._backbone, read, len(samples), self.preprocessing, _BATCH, self._flip)

    def trained_on(self) -> frozenset[str]:
        if self._saved.classes() is None:
            _warn_of_rates(f"{self.title}: was trained on classes without names")
        return frozenset(map(last_part, self._saved.classes() or ()))


def _warn_of_rates(why: str) -> None:
    warn_once(f"{why}; if a gallery contains such classes, its measured rates are too good")


def open_network(
    network: EmbeddingNetwork | str | None = None, config: str | None = None, overrides: Iterable[str] = ()
) -> EmbeddingNetwork:
    """Open a network.

    Args:
        network: "sface", an ONNX file's path, or an open network, which is returned. None means "sface".
        config: a run's folder or config, which replaces "sface" or a path.
        overrides: values that override the config's keys, as with `-o`.

    Raises UserError if the network does not exist or cannot be opened.
    """
    if isinstance(network, EmbeddingNetwork):
        return network
    if config is not None:
        return _RunNetwork(config, [*overrides])
    if network in (None, "sface"):
        return _SFaceNetwork(str(path_of(SFACE, YUNET)))
    if not os.path.isfile(network):
        raise UserError(
            f"network {escape(network)}: is not a file; give sface, the path of an ONNX file, or a run (-c "
            'RUN, in Python network=open_network(config="RUN"))'
        )
    if sha256_of(network) == SFACE.sha256:  # OpenCV runs it, because OpenCV knows its preprocessing
        return _SFaceNetwork(network, os.path.abspath(network))
    return _OnnxNetwork(network)
