"""Plant faults into a gallery of faces, and count which of them plsc gallery doctor finds: per kind, with the
false alarms.

    python -m benchmarks quality --run output/lfw_dev --faces lfw_dev/images --half report

Pictures are those of people whom the run was not trained on. Half of the people serve to choose limits
(`--half choose`), the other half
to report. Blur: Gaussian, 2.5 to 5 of 112 pixels. Small: 12 to 28 pixels. Stretched: 25 to 45 % of one side
cut off. Off-centre: turned by 20 to 40 degrees, shifted by 15 to 28 of 112 pixels, shrunk. Wrong person: half
of them other people's of the gallery, half strangers'.
Copy: another's picture, encoded anew, under a second name. Twin: another picture of somebody, under a second
name. A picture that was not planted and is named counts as a false alarm, whatever is on it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from plsc.apps.serving.embedder import from_run
from plsc.apps.serving.gallery import quality as doctor
from plsc.apps.serving.gallery.alike import compare
from plsc.apps.serving.gallery.pictures import embed_pictures, people_of
from plsc.apps.serving.gallery.strangers import MOST_PICTURES
from plsc.evaluation.intervals import wilson
from plsc.evaluation.search import search
from plsc.evaluation.strangers import fit_tail, one_of_everybody_first
from plsc.utils.text import table
from plsc.utils.vectors import unit_rows

KINDS = ("blur", "small", "stretched", "off-centre", "wrong person", "copy", "twin")
FPIR = 0.01
_SPLITS = 20  # of the strangers: one half measures the threshold, the other one searches


class Planted(NamedTuple):
    """A gallery with faults, and strangers.

    people: N names, files: N paths, kinds: N, "" for what was not planted. originals: file of a copy -> that
    of the picture.
    """

    people: list[str]
    files: list[str]
    kinds: np.ndarray
    originals: dict[str, str]
    strangers: list[str]


def add_arguments(part: argparse.ArgumentParser) -> None:
    part.add_argument("--run", required=True, help="of the network")
    part.add_argument("--faces", required=True, help="a folder for each person")
    part.add_argument("--half", choices=("choose", "report"), default="report", help="of the people")
    part.add_argument("--pictures", type=int, default=2000)
    part.add_argument("--faults", type=int, default=200)
    part.add_argument("--seed", type=int, default=0)


def quality(args: argparse.Namespace) -> dict:
    """Plant faults into a gallery, and count what the doctor finds."""
    embedder = from_run(args.run)
    trained = embedder.trained_on()
    people = {name: files for name, files in people_of(args.faces).items() if name not in trained}
    with tempfile.TemporaryDirectory() as folder:
        planted = plant(
            people,
            args.half == "report",
            args.pictures,
            args.faults,
            Path(folder),
            np.random.default_rng(args.seed),
        )
        embeddings, kept, _ = embed_pictures(embedder, planted.files, planted.people)
        assert len(kept) == len(planted.files)
        preprocessing = embedder.preprocessing
        looks = doctor.look_at_files(planted.files, preprocessing, doctor.face_detector(preprocessing))
        names, owners = np.unique(planted.people, return_inverse=True)
        pictures = doctor.Pictures(planted.files, looks, embeddings, owners.astype(np.int64), names.tolist())
        findings = doctor.judge(pictures, preprocessing, embedder.threshold)
        strangers, _, _ = embed_pictures(embedder, planted.strangers, planted.strangers)
    named = np.zeros(len(planted.files), bool)
    named[[finding.picture for finding in findings]] = True
    galleries = {
        "without the planted": planted.kinds == "",
        "with them": np.ones(len(named), bool),
        "after the list": ~named,
    }
    fpir, by_themselves = {}, {}
    for name, kept in galleries.items():
        nearest = _nearest(embeddings[kept], owners[kept], strangers)
        fpir[name] = fpir_of(nearest, args.seed)
        threshold = own_threshold(embeddings[kept], owners[kept])
        by_themselves[name] = [threshold, float(np.mean(nearest > threshold))]
    return {
        **count(planted, findings),
        "half": args.half,
        "pictures": len(planted.files),
        "people": len(names),
        "strangers": len(strangers),
        "fpir": fpir,
        "by_themselves": by_themselves,
        "not_checked": doctor.not_checked(looks, doctor.limits_of(looks, preprocessing), preprocessing),
    }


def plant(
    people: dict[str, list[str]],
    second: bool,
    pictures: int,
    faults: int,
    folder: Path,
    rng: np.random.Generator,
) -> Planted:
    """Choose people and plant faults. second: take the second half of the people."""
    several = sorted(name for name, files in people.items() if len(files) > 1)
    single = sorted(name for name, files in people.items() if len(files) == 1)
    rng.shuffle(several)
    rng.shuffle(single)
    several, single = several[second::2], single[second::2]
    rows = [[name, file, ""] for name in several for file in people[name]]
    rows += [[name, people[name][0], ""] for name in single[: max(0, pictures - len(rows))]]
    strangers = [people[name][0] for name in single if name not in {row[0] for row in rows}]
    left = Counter(row[0] for row in rows)
    many = [name for name in several if left[name] > 2]
    each = faults // 6
    of_kind = dict.fromkeys(KINDS[:5], each) | {"copy": each // 2, "twin": each - each // 2}
    originals: dict[str, str] = {}
    taken: set[int] = set()

    def draw(which) -> int:
        number = int(rng.choice([n for n in range(len(rows)) if n not in taken and which(rows[n])]))
        taken.add(number)
        return number

    def spare(row) -> bool:
        return left[row[0]] > 2

    for turn in range(of_kind["wrong person"]):
        to = str(rng.choice(many))
        if turn % 2:
            rows.append([to, strangers.pop(), "wrong person"])
            taken.add(len(rows) - 1)
        else:
            row = rows[draw(lambda row: spare(row) and row[0] != to)]  # noqa: B023
            left[row[0]] -= 1
            row[0], row[2] = to, "wrong person"
    for _ in range(of_kind["twin"]):
        row = rows[draw(spare)]
        left[row[0]] -= 1
        row[0], row[2] = f"{row[0]} again", "twin"
    for _ in range(of_kind["copy"]):
        name, file, _ = rows[draw(spare)]
        rows.append([f"{name} again", file, "copy"])
        taken.add(len(rows) - 1)
    for kind in KINDS[:4]:
        for _ in range(of_kind[kind]):
            rows[draw(lambda row: True)][2] = kind
    rows.sort()
    files = []
    for number, (_, file, kind) in enumerate(rows):
        if kind in ("", "wrong person", "twin"):
            files.append(file)
            continue
        path = folder / f"{number}.{'jpg' if kind == 'copy' else 'png'}"
        cv2.imwrite(str(path), spoil(cv2.imread(file), kind, rng), [cv2.IMWRITE_JPEG_QUALITY, 80])
        files.append(str(path))
        if kind == "copy":
            originals[str(path)] = file
    return Planted([row[0] for row in rows], files, np.array([row[2] for row in rows]), originals, strangers)


def spoil(picture: np.ndarray, kind: str, rng: np.random.Generator) -> np.ndarray:
    """Make a bad picture of a good one, uint8 [H, W, 3]."""
    height, width = picture.shape[:2]
    unit = width / 112
    if kind == "blur":
        return cv2.GaussianBlur(picture, (0, 0), unit * rng.uniform(2.5, 5))
    if kind == "small":
        side = int(rng.integers(12, 29))
        return cv2.resize(picture, (side, side), interpolation=cv2.INTER_AREA)
    if kind == "stretched":
        cut = int(width * rng.uniform(0.25, 0.45) / 2)
        return picture[:, cut : width - cut] if rng.random() < 0.5 else picture[cut : height - cut]
    if kind == "off-centre":
        middle = ((width - 1) / 2, (height - 1) / 2)
        turn = rng.uniform(20, 40) * rng.choice([-1, 1])
        matrix = cv2.getRotationMatrix2D(middle, turn, rng.uniform(0.65, 0.9))
        shift, way = unit * rng.uniform(15, 28), rng.uniform(0, 2 * np.pi)
        matrix[:, 2] += shift * np.array([np.cos(way), np.sin(way)])
        return cv2.warpAffine(picture, matrix, (width, height), borderMode=cv2.BORDER_REFLECT)
    return picture


def count(planted: Planted, findings: list[doctor.Finding]) -> dict:
    """Count the planted pictures that were found, and the others that were named. Naming the original of a
    copy, or of a twin, finds it."""
    named = {finding.picture: finding.rule for finding in findings}
    numbers = {file: number for number, file in enumerate(planted.files)}
    found = {number for number in named if planted.kinds[number]}
    false = {number for number in named if not planted.kinds[number]}
    for copy, original in planted.originals.items():
        number = numbers.get(original)
        if number in false and numbers[copy] not in found and named[number] == "same picture":
            found.add(numbers[copy])
            false.discard(number)
    for number in [number for number in false if named[number] == "same person"]:
        twins = {
            other
            for other, person in enumerate(planted.people)
            if person == f"{planted.people[number]} again" and planted.kinds[other] == "twin"
        }
        if twins:
            found |= twins
            false.discard(number)
    kinds = {
        kind: [sum(planted.kinds[number] == kind for number in found), int((planted.kinds == kind).sum())]
        for kind in KINDS
    }
    total = sum(of for _, of in kinds.values())
    return {
        "kinds": kinds,
        "false_alarms": dict(Counter(named[number] for number in false)),
        "named_though_not_planted": sorted(f"{named[number]}: {planted.files[number]}" for number in false),
        "precision": len(found) / max(1, len(found) + len(false)),
        "recall": len(found) / total,
        "precision_95": wilson(len(found) / max(1, len(found) + len(false)), max(1, len(found) + len(false))),
        "recall_95": wilson(len(found) / total, total),
    }


def _nearest(embeddings: np.ndarray, owners: np.ndarray, strangers: np.ndarray) -> np.ndarray:
    """Return the cosine of each stranger with the nearest person, whose embeddings are summed."""
    present, numbers = np.unique(owners, return_inverse=True)
    sums = np.zeros((len(present), embeddings.shape[1]), np.float32)
    np.add.at(sums, numbers, embeddings)
    return search(strangers, unit_rows(sums, np.linalg.norm(sums, axis=1)), 1)[0][:, 0].astype(np.float64)


def own_threshold(embeddings: np.ndarray, owners: np.ndarray) -> float:
    """Measure the threshold of a gallery by its own people, each without their own pictures, as `plsc gallery
    build` does."""
    people = np.unique(owners, return_inverse=True)[1]
    chosen = one_of_everybody_first(people, MOST_PICTURES)
    alike = compare(embeddings, people)
    return fit_tail(alike.other[chosen], people[chosen], FPIR, alike.nearest[chosen]).threshold(FPIR)


def fpir_of(nearest: np.ndarray, seed: int) -> float:
    """Measure the threshold by half of the strangers, and the FPIR by the others: the mean of _SPLITS such
    halves.

    nearest: float64 [n], the cosine of each with the nearest person.
    """
    rng = np.random.default_rng(seed)
    rates = []
    for _ in range(_SPLITS):
        order = rng.permutation(len(nearest))
        one, other = nearest[order[::2]], nearest[order[1::2]]
        rates.append(np.mean(other > fit_tail(one, np.arange(len(one)), FPIR).threshold(FPIR)))
    return float(np.mean(rates))


def show(result: dict) -> str:
    """Format the numbers as text."""
    rows = [[kind, f"{found} of {of}"] for kind, (found, of) in result["kinds"].items()]
    alarms = ", ".join(f"{count} {rule}" for rule, count in result["false_alarms"].items()) or "none"
    low, high = result["precision_95"]
    least, most = result["recall_95"]
    return "\n".join(
        [
            f"{result['pictures']:,} pictures of {result['people']:,} names, half to {result['half']}",
            table(rows, ["planted", "found"]),
            f"precision {result['precision']:.3f} ({low:.3f} to {high:.3f}), recall {result['recall']:.3f} ({least:.3f} to {most:.3f})",
            f"named though not planted: {alarms}",
            f"FPIR of {result['strangers']:,} strangers, nominal {FPIR:g}, threshold measured by half of them: "
            + ", ".join(f"{name} {rate:.4f}" for name, rate in result["fpir"].items()),
            "threshold that the gallery measures by its own people, and FPIR of the strangers at it: "
            + ", ".join(
                f"{name} {threshold:.3f}, {rate:.4f}"
                for name, (threshold, rate) in result["by_themselves"].items()
            ),
            *result["not_checked"],
        ]
    )
