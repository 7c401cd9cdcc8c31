"""Measure whether a gallery says how often a stranger gets a name: galleries of growing size, and strangers
whom nobody has seen.

    python -m benchmarks fpir --run output/lfw_dev --people lfw_dev/images --largest 5000

For each of 20 sizes from 10 to --largest people are drawn, enrolled with three pictures at most, and the
gallery measures its threshold by its own people whom the run was not trained on. One picture of each of a
thousand people (749 at least) who are not in it is searched. The interval that the gallery states holds, or
not, the share of these that got a name. People of the training fill the gallery up where the others would not
do.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from plsc.apps.serving.embedder import Embedder, from_run
from plsc.apps.serving.gallery import Gallery
from plsc.apps.serving.gallery.pictures import embed_pictures, people_of
from plsc.evaluation.strangers import one_of_everybody_first
from plsc.utils.text import last_part, table

SIZES = 20
_PICTURES = 3  # of a person in a gallery
_STRANGERS = 749, 1000  # that are searched, at least and at most


class _Without(Embedder):
    """The embedder of a run, without the people that it held out: they may be strangers here."""

    def __init__(self, of: Embedder):
        super().__init__(
            of.network, of.described, of.preprocessing, of.embedding_size, threshold=of.threshold
        )
        self._of = of

    def trained_on(self) -> frozenset[str]:
        return self._of.trained_on()

    def _embed(self, samples: np.ndarray) -> np.ndarray:
        return self._of.embed(samples)


def add_arguments(part: argparse.ArgumentParser) -> None:
    part.add_argument("--run", required=True, help="of the network")
    part.add_argument("--people", required=True, help="a folder for each person")
    part.add_argument("--largest", type=int, default=5000, help="people in the largest gallery")
    part.add_argument("--draws", type=int, default=1, help="how often each size is tried")


def fpir(args: argparse.Namespace) -> dict:
    """Count in how many galleries the stated interval holds the rate of strangers who get a name."""
    embedder = _Without(from_run(args.run))
    people = people_of(args.people)
    names = [*people]
    pictures = [path for paths in people.values() for path in paths]
    owners = np.repeat(np.arange(len(people)), [len(paths) for paths in people.values()])
    embeddings, kept, _ = embed_pictures(embedder, pictures, [names[owner] for owner in owners.tolist()])
    owners = owners[kept]
    trained = np.array([last_part(name) in embedder.trained_on() for name in names], bool)
    sizes = np.geomspace(10, args.largest, SIZES).astype(int).tolist()
    rows = [
        _try(embedder, names, embeddings, owners, trained, size, np.random.default_rng((draw, size)))
        for draw in range(args.draws)
        for size in sizes
    ]
    return {"rows": rows, "people": len(names), "trained": int(trained.sum()), "draws": args.draws}


def _try(
    embedder: Embedder,
    names: list[str],
    embeddings: np.ndarray,
    owners: np.ndarray,
    trained: np.ndarray,
    size: int,
    rng: np.random.Generator,
) -> dict:
    """Build one gallery and search strangers."""
    new, old = (rng.permutation(np.flatnonzero(which)) for which in (~trained, trained))
    fresh = min(size, len(new) - _STRANGERS[0])
    inside = np.concatenate([new[:fresh], old[: size - fresh]])
    assert len(inside) == size, f"a gallery of {size:,} leaves fewer than {_STRANGERS[0]} strangers"
    order = rng.permutation(len(owners))  # which pictures of a person are taken
    place = np.full(len(names), -1)
    place[inside] = np.arange(size)
    own = order[place[owners[order]] >= 0]
    own = own[np.argsort(place[owners[own]], kind="stable")]
    numbers = place[owners[own]]
    few = np.arange(len(own)) - np.searchsorted(numbers, numbers) < _PICTURES
    chosen = order[one_of_everybody_first(owners[order], len(names))]  # one of everybody
    strangers = chosen[np.isin(owners[chosen], new[fresh:][: _STRANGERS[1]])]
    with tempfile.TemporaryDirectory() as folder:
        gallery = Gallery.from_embeddings(
            Path(folder) / "g",
            embedder,
            [names[person] for person in inside.tolist()],
            embeddings[own[few]],
            numbers[few],
        )
        threshold, how = gallery.threshold, gallery.facts.measured
        found = gallery.search(embeddings[strangers], top=1)
        gallery.close()
    rate = float(np.mean([matches[0].accepted for matches in found]))
    stated = {"threshold": threshold, "low": how.low, "high": how.high}
    return {
        "size": size,
        "strangers": len(strangers),
        **stated,
        "rate": rate,
        "held": how.low <= rate <= how.high,
    }


def show(result: dict) -> str:
    """Format the numbers as text."""
    rows = result["rows"]
    cells = [
        [
            row["size"],
            f"{row['low']:.3f} to {row['high']:.3f}",
            f"{row['rate']:.4f}",
            "yes" if row["held"] else "no",
        ]
        for row in rows
    ]
    held = [sum(row["held"] for row in rows[start : start + SIZES]) for start in range(0, len(rows), SIZES)]
    counts = ", ".join(map(str, held))
    mean = np.mean([row["rate"] for row in rows])
    return (
        f"{table(cells, ['people', 'stated', 'measured', 'held'])}\n{result['people']:,} people, {result['trained']:,} of the training; "
        f"held in {counts} of {SIZES} sizes; mean rate {mean:.4f}, 0.01 asked for"
    )
