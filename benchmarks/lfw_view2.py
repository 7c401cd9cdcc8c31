"""Repeat LFW's View 2, category "unrestricted, no outside data": ten networks, each tested once on people
whom it never saw.

    python -m benchmarks lfw_view2 --images lfw-deepfunneled --protocol lfw --output output/lfw_view2

The official files: the deep-funneled pictures (250 x 250; of these the box of `BOX` is taken, of smaller
pictures all), and pairs.txt and people.txt in --protocol. Fold k: the network starts from random weights and
is trained on the people of eight other folds by configs/published/lfw_view2.yaml; the threshold is the best
one for the 600 pairs of the ninth, fold k + 1; then fold k's 600 pairs are judged, once. So neither network
nor threshold knows anything of fold k. Ends with the mean and its standard error, as LFW's page of results
has them, and writes roc.txt in that page's format: a line for each threshold, the true and the false positive
rate, means of the ten folds.

Funnelling and deep funnelling (Huang et al., ICCV 2007, NIPS 2012) align LFW's own pictures without labels,
so no outside data enters. A fold that is finished is not trained again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from plsc.apps.serving.embedder import from_run
from plsc.apps.serving.gallery.pictures import embed_pictures
from plsc.data.pairs import PairList, open_text
from plsc.errors import UserError
from plsc.utils.bar import Bar
from plsc.utils.text import table

CONFIG = "configs/published/lfw_view2.yaml"
BOX = 50, 184, 58, 192  # rows and columns of a 250 x 250 picture: the face, without background
FOLDS = 10
_OFFICIAL = 250  # side of the official pictures
_POINTS = 2_000  # of the ROC curve


class Protocol(NamedTuple):
    """View 2: people of the folds with their number of pictures, and the lines of the folds' pairs."""

    people: list[dict[str, int]]
    pairs: list[list[str]]


def add_arguments(part: argparse.ArgumentParser) -> None:
    part.add_argument("--images", type=Path, required=True, help="folder with a folder for each person")
    part.add_argument("--protocol", type=Path, required=True, help="folder of pairs.txt and people.txt")
    part.add_argument("--output", type=Path, default=Path("output/lfw_view2"))
    part.add_argument("--ranks", type=int, default=1)
    part.add_argument("--folds", type=int, nargs="+", default=[*range(1, FOLDS + 1)], help="1 to 10")
    part.add_argument("-o", dest="overrides", nargs="+", default=[], help="of the config, as plsc train's")


def lfw_view2(args: argparse.Namespace) -> dict:
    """Train and test the networks of LFW's View 2."""
    protocol = read_protocol(args.protocol)
    crop_faces(args.images, args.output / "faces", protocol)
    rows = []
    curves = []
    for fold in args.folds:
        folder = args.output / f"fold_{fold:02}"
        write_lists(protocol, fold, args.output / "faces", folder)
        _train(folder, args)
        tested, chosen = _scores(folder, "test.txt"), _scores(folder, "threshold.txt")
        threshold = best_threshold(*chosen)
        rows.append({"fold": fold, "threshold": threshold, "accuracy": _accuracy(*tested, threshold)})
        curves.append(tested)
    np.savetxt(args.output / "roc.txt", roc(curves), fmt="%.6f")
    accuracies = [row["accuracy"] for row in rows]
    error = float(np.std(accuracies, ddof=1) / len(rows) ** 0.5) if len(rows) > 1 else None
    return {"rows": rows, "accuracy": float(np.mean(accuracies)), "standard_error": error}


def read_protocol(folder: Path) -> Protocol:
    """Read pairs.txt and people.txt as LFW's README describes them. UserError for other files."""
    people: list[dict[str, int]] = []
    lines = open_text(str(folder / "people.txt"))
    place = 1
    while place < len(lines):
        count = int(lines[place])
        fold = (line.split() for line in lines[place + 1 : place + 1 + count])
        people.append({name: int(pictures) for name, pictures in fold})
        place += 1 + count
    lines = open_text(str(folder / "pairs.txt"))
    folds, of_kind = map(int, lines[0].split())
    pairs = [lines[1 + 2 * of_kind * fold :][: 2 * of_kind] for fold in range(folds)]
    if not len(people) == len(pairs) == FOLDS:
        raise UserError(f"{folder}: pairs.txt and people.txt must have {FOLDS} folds, as View 2 has")
    return Protocol(people, pairs)


def crop_faces(images: Path, faces: Path, protocol: Protocol) -> None:
    """Write the faces of all people as PNG files; of those that are there already, nothing."""
    wanted = [
        f"{name}/{name}_{number:04}"
        for fold in protocol.people
        for name, pictures in fold.items()
        for number in range(1, pictures + 1)
    ]
    top, bottom, left, right = BOX
    with Bar("cutting faces", len(wanted), "pictures") as bar:
        for name in wanted:
            bar.update()
            target = faces / f"{name}.png"
            if target.exists():
                continue
            picture = cv2.imread(str(images / f"{name}.jpg"))
            if picture is None:
                raise UserError(
                    f"--images: {images / name}.jpg is missing or no picture; View 2 needs all people"
                )
            if picture.shape[0] == _OFFICIAL:
                picture = picture[top:bottom, left:right]
            target.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(target), picture)


def write_lists(protocol: Protocol, fold: int, faces: Path, folder: Path) -> None:
    """Write what a fold trains on, chooses its threshold by, and is tested on: train.txt, threshold.txt,
    test.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    tested = fold - 1
    threshold = fold % FOLDS
    training = [people for place, people in enumerate(protocol.people) if place not in (tested, threshold)]
    known = sorted(name for people in training for name, pictures in people.items() if pictures > 1)
    counts = {name: pictures for people in training for name, pictures in people.items()}
    with open(folder / "train.txt", "w", encoding="utf-8") as file:
        for label, name in enumerate(known):
            file.writelines(
                f"{faces.absolute()}/{name}/{name}_{number:04}.png\t{label}\n"
                for number in range(1, counts[name] + 1)
            )
    for name, place in (("test.txt", tested), ("threshold.txt", threshold)):
        lines = protocol.pairs[place]
        (folder / name).write_text("\n".join([f"1\t{len(lines) // 2}", *lines]) + "\n", encoding="utf-8")


def _train(folder: Path, args: argparse.Namespace) -> None:
    if (folder / "run" / "results.json").exists():
        return
    overrides = [
        f"Global.output_dir={folder / 'run'}",
        f"DataLoader.Train.dataset.list={folder / 'train.txt'}",
        f"DataLoader.Eval.dataset.list={folder / 'threshold.txt'}",
        f"DataLoader.Eval.dataset.root={args.output / 'faces'}",
        *args.overrides,
    ]
    command = [
        sys.executable,
        "-m",
        "plsc",
        "train",
        "-c",
        CONFIG,
        "--ranks",
        str(args.ranks),
        "-o",
        *overrides,
    ]
    subprocess.run(command, check=True)


def _scores(folder: Path, pairs: str) -> tuple[np.ndarray, np.ndarray]:
    """Compare the pairs of a file by the fold's network: cosines float32 [P], same bool [P]."""
    embedder = from_run(str(folder / "run"))
    data = PairList(str(folder / pairs), root=str(folder.parent / "faces"))
    embeddings, kept, _ = embed_pictures(embedder, [*data.paths], [*data.paths])
    assert len(kept) == len(data.paths)
    first, second = data.pairs.T
    return np.einsum("pd,pd->p", embeddings[first], embeddings[second]), data.same


def best_threshold(cosine: np.ndarray, same: np.ndarray) -> float:
    """Choose the threshold with the fewest errors: the median of those that lie in the middle between two
    cosines."""
    ordered = np.sort(cosine)
    between = (ordered[1:] + ordered[:-1]) / 2
    errors = np.count_nonzero((cosine >= between[:, np.newaxis]) != same, axis=1)
    return float(np.median(between[errors == errors.min()]))


def _accuracy(cosine: np.ndarray, same: np.ndarray, threshold: float) -> float:
    return float(np.mean((cosine >= threshold) == same))


def roc(curves: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Average the curves of the folds at fixed thresholds: true and false positive rates, float64 [points,
    2]."""
    cosines = np.concatenate([cosine for cosine, _ in curves])
    thresholds = np.quantile(cosines, np.linspace(1, 0, min(_POINTS, len(cosines))))
    thresholds = np.concatenate([[np.inf], thresholds])[:, np.newaxis]
    rates = [
        [(cosine >= thresholds)[:, same == wanted].mean(axis=1) for wanted in (True, False)]
        for cosine, same in curves
    ]
    return np.mean(rates, axis=0).T


def show(result: dict) -> str:
    """Format the numbers as text."""
    cells = [[row["fold"], f"{row['accuracy']:.4f}", f"{row['threshold']:.4f}"] for row in result["rows"]]
    error = result["standard_error"]
    spread = "" if error is None else f" ± {error:.4f}"
    return f"{table(cells, ['fold', 'accuracy', 'threshold'])}\nmean accuracy and standard error: {result['accuracy']:.4f}{spread}"
