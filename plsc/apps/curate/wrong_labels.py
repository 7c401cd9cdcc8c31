"""Find a training set's wrong labels with the network that was trained on it.

A sample is compared with the mean of its class's other samples, so that it does not vote for its own
label. It is also compared with all other classes' means. A label counts as wrong if the sample is much
nearer to another class than ordinary samples are. Try it:

    plsc doctor --trained output
    label_noise(embeddings, labels, num_classes)
"""

from typing import NamedTuple

import numpy as np

from plsc.config import Config
from plsc.data.dataset import EVALUATION, Dataset, make_sample
from plsc.errors import CorruptImageError
from plsc.evaluation.search import finite_unit_rows, search
from plsc.training.run_folder import open_checkpoint, start

LIMIT = 3.0  # a label counts as wrong if its score is above this number of deviations
_LEAD = 0.25  # deviations by which the nearest class must lead the next one to be the label
_SAME = 0.5  # if at least this share of a class's samples is nearest to one other class, the two may be one


class Noise(NamedTuple):
    """The W wrong labels, the most certain first.

    Attributes:
        samples: int64 [W], sample indices.
        classes: int64 [W], each sample's nearest other class, or -1 if no class is clearly the label.
        scores: float64 [W], how much nearer each sample is to that class than ordinary samples are, in their
            deviations.
        twins: int64 [T, 2], pairs of classes that may be one class. Samples of the first that are nearest to
            the second do not count as wrong.
    """

    samples: np.ndarray
    classes: np.ndarray
    scores: np.ndarray
    twins: np.ndarray


def label_noise(embeddings: np.ndarray, labels: np.ndarray, num_classes: int) -> Noise:
    """Find wrong labels.

    A class of one or two samples gets no wrong label, because nothing shows which sample is wrong.

    Args:
        embeddings: float [N, D]. A zero row excludes its sample.
        labels: int64 [N].
        num_classes: class count.
    """
    every = np.arange(len(labels))
    embeddings = finite_unit_rows(embeddings, every, "label noise")
    sums = np.zeros((num_classes, embeddings.shape[1]), np.float32)
    np.add.at(sums, labels, embeddings)
    counts = np.bincount(labels[embeddings.any(axis=1)], minlength=num_classes)
    others = sums[labels] - embeddings
    own = np.einsum("nd,nd->n", finite_unit_rows(others, every, "label noise"), embeddings)
    means = finite_unit_rows(sums, np.arange(num_classes), "label noise")
    cosine, place = search(embeddings, means, 3)
    cosine[place == labels[:, np.newaxis]] = -np.inf
    order = np.argsort(-cosine, axis=1, kind="stable")[:, :2]
    first, second = np.take_along_axis(cosine, order, 1).T
    nearest = np.take_along_axis(place, order, 1)[:, 0]
    nearer = (first - own).astype(np.float64)
    known = embeddings.any(axis=1) & (counts[labels] > 2)
    # Wrong labels are above the median, so the deviation is computed from the samples below it.
    low, median = np.quantile(nearer[known], [0.1587, 0.5]) if known.any() else (0.0, 0.0)
    deviation = max(median - low, 1e-6)
    score = (nearer - median) / deviation
    wrong = known & (score > LIMIT) & (nearer > 0)
    twins = []
    for label in np.unique(labels[wrong]).tolist():
        members = wrong & (labels == label)
        other = np.bincount(nearest[members]).argmax()
        if (members & (nearest == other)).sum() >= _SAME * counts[label]:
            twins.append((label, other))
            wrong &= ~(members & (nearest == other))
    samples = np.flatnonzero(wrong)
    samples = samples[np.argsort(-score[samples], kind="stable")]
    is_certain = (first - second)[samples] > _LEAD * deviation
    classes = np.where(is_certain, nearest[samples], -1)
    return Noise(samples, classes, score[samples], np.array(twins, np.int64).reshape(-1, 2))


def find_wrong_labels(cfg: Config, data: Dataset) -> tuple[np.ndarray, dict[str, list[str]]]:
    """Find the wrong labels in a run's training set.

    Args:
        cfg: the run's config.
        data: the training set.

    Returns the corrected labels, int64 [N], with -1 for a sample without a class, and the findings: text ->
    examples.
    """
    embeddings = _embed(cfg, data)
    noise = label_noise(embeddings, data.labels, data.num_classes)
    names = data.class_names or [str(number) for number in range(data.num_classes)]
    examples = [
        f"{data.name(sample)}: labelled {names[data.labels[sample]]}, "
        f"{f'is probably {names[to]}' if to >= 0 else 'is not'} (score {score:.1f})"
        for sample, to, score in zip(noise.samples.tolist(), noise.classes.tolist(), noise.scores.tolist())
    ]
    twins = [f"{names[one]} = {names[other]}" for one, other in noise.twins.tolist()]
    share = len(examples) / len(data)
    found = {
        f"{len(examples):,} labels ({share:.2%}) are probably wrong": examples,
        f"{len(twins):,} classes may be the same as another": twins,
    }
    labels = data.labels.copy()
    labels[noise.samples] = noise.classes
    return labels, {text: lines for text, lines in found.items() if lines}


def _embed(cfg: Config, data: Dataset) -> np.ndarray:
    """Compute all samples' embeddings with a checkpoint's network.

    Returns float32 [N, D], with zeros for a corrupt sample.
    """
    start(cfg.Global)
    from plsc.training.embed import embed
    from plsc.training.load_weights import load_network

    backbone = load_network(open_checkpoint(cfg.Global), cfg)
    corrupt = []

    def read(start: int, stop: int) -> np.ndarray:
        shape = data.preprocessing.shape
        samples = np.zeros((stop - start, *shape), np.uint8)
        for index in range(start, stop):
            try:
                samples[index - start] = make_sample(data, index, EVALUATION, shape)
            except CorruptImageError:
                corrupt.append(index)
        return samples

    batch = cfg.DataLoader.Train.batch_size
    embeddings = embed(backbone, read, len(data), data.preprocessing, batch)
    embeddings[corrupt] = 0
    return embeddings
