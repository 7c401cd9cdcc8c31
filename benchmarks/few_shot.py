"""Classify characters that were never trained on from one or a few examples: Omniglot by the splits of
Vinyals et al. (NIPS 2016).

    python -m benchmarks few_shot --run output/omniglot --images images_all --split test.txt --episodes 1000

--images: Omniglot's official folders, an alphabet in each, a character in each of these. --split: a class a
line, `Alphabet/character01/rot090`, as the published splits have them (a character turned by 90 degrees is a
class of its own; without `/rot...` it stands upright). An episode draws `ways` classes, of each `shots`
pictures to know it by and `queries` others to classify: the class whose mean embedding is nearest. Accuracies
are means of the episodes, with a 95 % interval. The network comes from a run of plsc, trained on other
characters.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cv2
import numpy as np

from plsc.apps.serving.embedder import from_run
from plsc.data.images import to_sample
from plsc.data.pairs import open_text
from plsc.errors import UserError
from plsc.utils.bar import Bar
from plsc.utils.text import table
from plsc.utils.vectors import unit_rows


def add_arguments(part: argparse.ArgumentParser) -> None:
    part.add_argument("--run", required=True, help="of the network")
    part.add_argument("--images", type=Path, required=True, help="folder of the alphabets")
    part.add_argument("--split", type=Path, required=True, help="file with a class a line")
    part.add_argument("--ways", type=int, nargs="+", default=[5, 20])
    part.add_argument("--shots", type=int, nargs="+", default=[1, 5])
    part.add_argument("--queries", type=int, default=5, help="of a class, in an episode")
    part.add_argument("--episodes", type=int, default=1000)
    part.add_argument("--seed", type=int, default=0)


def few_shot(args: argparse.Namespace) -> dict:
    """Measure how well unseen characters are classified from few examples."""
    classes = read_split(args.split, args.images)
    embedder = from_run(args.run)
    embedded = embed(embedder, classes)
    rows = []
    for ways in args.ways:
        for shots in args.shots:
            rng = np.random.default_rng((args.seed, ways, shots))
            right = [episode(embedded, ways, shots, args.queries, rng) for _ in range(args.episodes)]
            interval = 1.96 * float(np.std(right, ddof=1)) / args.episodes**0.5
            rows.append(
                {"ways": ways, "shots": shots, "accuracy": float(np.mean(right)), "interval": interval}
            )
    return {"classes": len(classes), "episodes": args.episodes, "rows": rows}


def read_split(split: Path, images: Path) -> list[tuple[list[Path], int]]:
    """Read the classes of a split: the pictures of each, in order, and its quarter turns. UserError for a
    class that is not there."""
    classes = []
    for number, line in enumerate(open_text(str(split)), start=1):
        character, _, turned = line.strip().partition("/rot")
        pictures = sorted((images / character).glob("*.png"))
        if not pictures or turned not in ("", "000", "090", "180", "270"):
            raise UserError(
                f"{split}: line {number}: {line.strip()!r} must be a folder of PNG files in {images}, and /rot000, /rot090, /rot180 or "
                "/rot270, or nothing"
            )
        classes.append((pictures, int(turned or 0) // 90))
    return classes


def embed(embedder, classes: list[tuple[list[Path], int]]) -> list[np.ndarray]:
    """Embed the pictures of the classes: float32 [pictures, D] of each, of length 1."""
    embedded = []
    with Bar("embedding", len(classes), "classes") as bar:
        for pictures, turns in classes:
            pixels = [cv2.imread(str(picture), cv2.IMREAD_GRAYSCALE) for picture in pictures]
            turned = [np.ascontiguousarray(np.rot90(picture, turns)) for picture in pixels]
            samples = np.stack([to_sample(picture, embedder.preprocessing) for picture in turned])
            embedded.append(embedder.embed(samples))
            bar.update()
    return embedded


def episode(
    embedded: list[np.ndarray], ways: int, shots: int, queries: int, rng: np.random.Generator
) -> float:
    """Draw an episode, and return the share of its queries that are classified correctly; a tie counts as
    wrong.

    UserError: there are fewer classes than `ways`, or a class has too few pictures.
    """
    if len(embedded) < ways or min(map(len, embedded)) < shots + queries:
        raise UserError(
            f"--ways {ways} --shots {shots} --queries {queries}: the split has {len(embedded)} classes of at least "
            f"{min(map(len, embedded))} pictures; ask for fewer"
        )
    means = []
    asked = []
    for number in rng.choice(len(embedded), ways, replace=False).tolist():
        rows = embedded[number][rng.permutation(len(embedded[number]))[: shots + queries]]
        means.append(rows[:shots].mean(axis=0))
        asked.append(rows[shots:])
    cosines = np.stack(asked) @ unit_rows(np.stack(means)).T  # [ways, queries, ways]
    own = cosines[np.arange(ways), :, np.arange(ways)]
    best = np.count_nonzero(cosines >= own[..., np.newaxis], axis=-1) == 1
    return float(best.mean())


def show(result: dict) -> str:
    """Format the numbers as text."""
    cells = [
        [row["ways"], row["shots"], f"{100 * row['accuracy']:.2f} % ± {100 * row['interval']:.2f}"]
        for row in result["rows"]
    ]
    what = f"{result['classes']:,} unseen classes, {result['episodes']:,} episodes"
    return f"{table(cells, ['ways', 'shots', 'accuracy'])}\n{what}"
