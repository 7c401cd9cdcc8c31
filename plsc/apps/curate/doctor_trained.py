"""Find the wrong labels of a training set by the network that it has trained: `plsc doctor --trained output`.

Every image is embedded by the networks of several of the run's checkpoints, since an earlier one has not
memorised what a later one has. It writes corrections.tsv, and
label_noise.html, which shows the pictures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from plsc.apps.curate.label_noise import LIMIT, LabelNoise, find_noise
from plsc.apps.curate.label_noise_page import Case, Part, Strip, strip_of, write_page
from plsc.checkpoint.store import completed
from plsc.config import Config, load
from plsc.data.batch import make_sample
from plsc.data.build import build_dataset
from plsc.data.corrections import Correction, names_of_classes, write_corrections
from plsc.data.dataset import EVALUATION, Dataset
from plsc.errors import CorruptImageError, MissingFileError, shown, writing
from plsc.evaluation.search import finite_unit_rows
from plsc.training.start import open_checkpoint, start
from plsc.utils.bar import Bar
from plsc.utils.logging import get_logger
from plsc.utils.vectors import unit_embeddings

CHECKPOINTS = 4  # of the run, evenly spread, the newest among them
VIEWS = 4  # of a sample that is augmented, each augmented in another way
SHOWN = 100  # corrections of a kind that the page has pictures of
PER_CLASS = 4  # pictures of a class beside each
LIST, PAGE = "corrections.tsv", "label_noise.html"
_BATCH = 256


class Listed(NamedTuple):
    """What goes into the list."""

    wrong: list[Correction]
    undecided: list[Correction]  # of classes of two samples, of which one may be wrong: proposed only


class Embedded(NamedTuple):
    """Embeddings of all samples by one network after the other, [N, networks * D]; 0 for those not trained
    on, or corrupt."""

    embeddings: np.ndarray
    corrupt: int
    described: str  # the networks, and how many views of each sample they have seen


def examine_trained(run: str, overrides: Sequence[str], output: Path) -> tuple[str, bool]:
    """Write the list and the page of a run; return the text to print, and whether anything is wrong.

    Args:
        run: its folder, or its config.yaml. overrides: as -o takes them.

    Raises UserError.
    """
    if not Path(run).exists():
        raise MissingFileError(
            f"--trained: {shown(run)}: no such folder; name a run's folder, or its config.yaml"
        )
    cfg = load(run, overrides)
    data = build_dataset(cfg.DataLoader, cfg.Global.seed, cfg.place)
    trained = np.arange(len(data))
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)  # first, since embedding all images takes long
    embedded = _embed_by_all([load(cfg, chosen) for chosen in _checkpoints(cfg)], data, trained)
    noise = find_noise(embedded.embeddings, data.labels, data.num_classes)
    corrections = [
        Correction("relabel", sample, to, score) if relabel else Correction("drop", sample, -1, score)
        for sample, to, score, relabel in zip(
            noise.samples.tolist(), noise.classes.tolist(), noise.scores.tolist(), noise.relabel.tolist()
        )
    ]
    listed = Listed(
        wrong=[correction for correction, undecided in zip(corrections, noise.undecided) if not undecided],
        undecided=[correction for correction, undecided in zip(corrections, noise.undecided) if undecided],
    )
    with writing(output):
        write_corrections(output / LIST, data, listed.wrong, proposed=listed.undecided)
        _write_page(output / PAGE, data, noise, listed, embedded)
    return _text(data, listed, embedded, output), any(listed)


def _checkpoints(cfg: Config) -> list[list[str]]:
    """List the overrides that choose each of the run's checkpoints, CHECKPOINTS of them at most; [] once
    where Global.checkpoint names one."""
    paths = completed(Path(cfg.Global.output_dir) / "checkpoints")
    if cfg.Global.checkpoint is not None or not paths:
        return [[]]
    count = min(CHECKPOINTS, len(paths))
    chosen = [paths[number * len(paths) // count - 1] for number in range(1, count + 1)]
    return [[f"Global.checkpoint={json.dumps(str(path))}"] for path in chosen]


def _embed_by_all(configs: Sequence[Config], data: Dataset, trained: np.ndarray) -> Embedded:
    """Embed by the network of each config, one after the other, into one array: there may be no memory for
    two."""
    start(configs[0])
    from plsc.training.trained import load_network

    steps = []
    corrupt: set[int] = set()
    views = _views(data, trained)
    of_each = f"{views} view{'s' * (views > 1)} of each"
    for number, cfg in enumerate(configs):
        network = load_network(open_checkpoint(cfg), cfg)
        evaluation = cfg.DataLoader.Eval
        embed = partial(
            unit_embeddings,
            partial(network.embed, batch_size=evaluation.batch_size),
            flip=network.choose_flip(evaluation.flip),
        )
        get_logger().info(f"embedding {len(trained):,} samples by {network.described}, {of_each}")
        size = network.checkpoint.embedding_size
        if number == 0:
            embeddings = np.zeros((len(data), len(configs) * size), np.float32)
        out = embeddings[:, number * size : (number + 1) * size]
        _embed(embed, network.described, data, trained, views, corrupt, out)
        steps.append(network.described)
    embeddings[[*corrupt]] = 0
    return Embedded(embeddings, len(corrupt), f"{'; '.join(steps)}: {of_each} sample")


def _views(data: Dataset, trained: np.ndarray) -> int:
    """Return how many views of each sample to take: 1 where the first ones are not augmented."""
    one, other = (_samples(data, trained[:_BATCH], view, set()) for view in (0, 1))
    return 1 if np.array_equal(one, other) else VIEWS


def _embed(
    embed: Callable[[np.ndarray], np.ndarray],
    described: str,
    data: Dataset,
    trained: np.ndarray,
    views: int,
    corrupt: set[int],
    out: np.ndarray,
) -> None:
    """Write the embeddings of the samples `trained`, indices, to `out` [N, D], at length 1; note the corrupt
    ones.

    described: the network, for messages.
    """
    with Bar("embedding", len(trained), "samples") as bar:
        for start in range(0, len(trained), _BATCH):
            indices = trained[start : start + _BATCH]
            for view in range(views):
                out[indices] += embed(_samples(data, indices, view, corrupt))
            out[indices] = finite_unit_rows(out, indices, described)
            bar.update(len(indices))


def _samples(data: Dataset, indices: np.ndarray, view: int, corrupt: set[int]) -> np.ndarray:
    """Make samples [n, *shape], of zeros and added to `corrupt` where they cannot be decoded."""
    samples = data.preprocessing.empty(len(indices))
    for row, index in enumerate(indices.tolist()):
        try:
            make_sample(data, EVALUATION + view, index, samples[row])
        except CorruptImageError:
            samples[row] = 0
            corrupt.add(index)
    return samples


def _text(
    data: Dataset,
    listed: Listed,
    embedded: Embedded,
    output: Path,
) -> str:
    count = len(listed.wrong)
    relabel = sum(correction.action == "relabel" for correction in listed.wrong)
    lines = [
        f"{shown(data.title)}: {len(data):,} samples in {data.num_classes:,} classes",
        f"by {embedded.described}",
        f"wrong labels: {count:,} ({count / len(data):.2%}), {relabel:,} with another label, {count - relabel:,} to drop",
        f"in classes of two samples, of which one may be wrong: {len(listed.undecided):,}; look at them, and delete the # in front of the wrong ones",
    ]
    if embedded.corrupt:
        lines.append(
            f"left out: {embedded.corrupt:,} images that cannot be decoded; plsc doctor -c names them"
        )
    return "\n".join([*lines, f"done: {output / PAGE}, and {output / LIST} to correct the labels by"])


def _write_page(
    path: Path,
    data: Dataset,
    noise: LabelNoise,
    corrections: Listed,
    embedded: Embedded,
) -> None:
    names = names_of_classes(data)
    members: dict[int, list[int]] = {}
    listed = np.zeros(len(data), bool)
    listed[noise.samples] = True
    for index in np.flatnonzero(~listed).tolist():
        members.setdefault(int(data.labels[index]), []).append(index)

    def strip(indices: list[int], text: str) -> Strip:
        samples = _samples(data, np.array(indices, np.int64), 0, set())
        return Strip(strip_of(samples, data.preprocessing) if indices else None, text)

    def of_class(number: int) -> Strip:
        return strip(members.get(number, [])[:PER_CLASS], names[number])

    nearest_classes = dict(zip(noise.samples.tolist(), noise.classes.tolist()))

    def of_wrong(correction: Correction) -> Case:
        sample = correction.number
        label = int(data.labels[sample])
        nearest = nearest_classes[sample]
        what = f"{correction.action}, score {correction.score:.1f}"
        name = shown(data.name(sample))
        strips = [strip([sample], name), of_class(label), of_class(nearest)]
        return Case(f"{what}: labelled {names[label]}, nearest {names[nearest]}", strips)

    write_page(
        path,
        f"Label noise: {shown(data.title)}",
        [
            ("wrong labels", f"{len(corrections.wrong):,}"),
            ("in classes of two", f"{len(corrections.undecided):,}"),
        ],
        [
            ("data", f"{len(data):,} samples in {data.num_classes:,} classes"),
            ("networks", embedded.described),
        ],
        [
            Part(
                "Wrong labels",
                f"The sample, others of its class, and of the nearest class; the {SHOWN} most certain ones. Score: by how many "
                f"deviations of the ordinary samples it is nearer to the other class than they are; {LIMIT:g} and more are listed.",
                [*map(of_wrong, corrections.wrong[:SHOWN])],
            ),
            Part(
                "Wrong labels in classes of two",
                "The two samples are less alike than one of them and another class, and nothing shows which of the two is wrong. "
                f"The list has them behind a #. The {SHOWN} most certain ones.",
                [*map(of_wrong, corrections.undecided[:SHOWN])],
            ),
        ],
    )
