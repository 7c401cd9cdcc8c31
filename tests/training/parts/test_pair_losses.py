"""Losses on pairs: value and gradient against plain loops in float64 and another library's numbers, on 1 and
3 ranks; in a training."""

import math

import numpy as np
import paddle
import pytest

from plsc import distributed
from plsc.data.loader import Batch
from plsc.training.parts.pair_losses import Circle, MultiSimilarity, SupCon, Triplet
from plsc.utils.sharding import split
from tests.helpers.bounds import assert_within, perturbed
from tests.helpers.launch import ROOT, launch
from tests.helpers.tiny_runs import assert_same_arrays, checkpoint, rows, train

LABELS = np.array([0, 0, 1, 1, 2, 2, 3, 3, 3, 4])  # the last one is alone: it is in others' pairs only


def embeddings():
    draw = np.random.default_rng(7)
    centres = draw.standard_normal((5, 8))
    return (centres[LABELS] + draw.standard_normal((10, 8))).astype(np.float32)


def triplet(same, other, margin=0.2):
    return max(0, margin + (2 - 2 * min(same)) - (2 - 2 * max(other)))


def supcon(same, other, temperature=0.1):
    total = sum(math.exp(cosine / temperature) for cosine in (*same, *other))
    return -sum(math.log(math.exp(cosine / temperature) / total) for cosine in same) / len(same)


def circle(same, other, at_same, at_other, margin=0.25, scale=256.0):
    pulled = sum(
        math.exp(-scale * max(0, 1 + margin - at) * (cosine - 1 + margin))
        for cosine, at in zip(same, at_same)
    )
    pushed = sum(
        math.exp(scale * max(0, at + margin) * (cosine - margin)) for cosine, at in zip(other, at_other)
    )
    return math.log(1 + pulled * pushed)


def multi_similarity(same, other, alpha=2.0, beta=50.0, base=0.5, epsilon=0.1):
    hard_same = [cosine for cosine in same if cosine - epsilon < max(other)]
    hard_other = [cosine for cosine in other if cosine + epsilon > min(same)]
    pulled = sum(math.exp(-alpha * (cosine - base)) for cosine in hard_same)
    pushed = sum(math.exp(beta * (cosine - base)) for cosine in hard_other)
    return math.log(1 + pulled) / alpha + math.log(1 + pushed) / beta


def cosines(emb_ND):
    unit = emb_ND / np.linalg.norm(emb_ND, axis=1, keepdims=True)
    return unit @ unit.T


def mean_of(reference, emb_ND, at_ND, labels=LABELS):
    """The mean over the samples with pairs of both kinds. at_ND: where Circle's factors are taken, which have
    no gradient."""
    cosine, at = cosines(emb_ND), cosines(at_ND)
    losses = []
    for i, label in enumerate(labels):
        same = [j for j in range(len(labels)) if labels[j] == label and j != i]
        other = [j for j in range(len(labels)) if labels[j] != label]
        if same and other:
            places = (at[i][same], at[i][other]) if reference is circle else ()
            losses.append(reference(cosine[i][same], cosine[i][other], *places))
    return sum(losses) / len(losses)


def wanted(reference):
    """Loss and gradient [N, D] in float64 by central differences, and how far rounding may take float32."""

    def compute(emb_ND):
        gradient = np.empty_like(emb_ND)
        for place in np.ndindex(emb_ND.shape):
            step = np.zeros_like(emb_ND)
            step[place] = 1e-5
            up, down = (mean_of(reference, emb_ND + sign * step, emb_ND) for sign in (1, -1))
            gradient[place] = (up - down) / 2e-5
        return mean_of(reference, emb_ND, emb_ND), gradient

    return perturbed(compute, embeddings(), terms=16)


CASES = {
    "triplet": (Triplet, triplet),
    "supcon": (SupCon, supcon),
    "circle": (Circle, circle),
    "multi_similarity": (MultiSimilarity, multi_similarity),
}


def of_rank(part):
    """This rank's samples, [start, stop), and the loss and the gradient that the part gives there."""
    shares = split(len(LABELS), distributed.world_size())
    start, stop = shares[distributed.rank()]
    emb_BD = paddle.to_tensor(embeddings()[start:stop], stop_gradient=False)
    batch = Batch(None, LABELS[start:stop], None, 0, [stop - start for start, stop in shares])
    loss = part.loss(batch, emb_BD)
    loss.backward()
    return slice(start, stop), float(loss), emb_BD.grad.numpy()


def compare(name):
    part, reference = CASES[name]
    (loss, gradient), (loss_bound, gradient_bound) = wanted(reference)
    rows, got, got_gradient = of_rank(part())
    ranks = distributed.world_size()
    assert_within(got, loss, loss_bound)
    assert_within(got_gradient, ranks * gradient[rows], ranks * gradient_bound[rows])


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_the_papers(name):
    compare(name)


# By pytorch-metric-learning 2.9.0 in float64, with its reducer that takes the mean over the samples; its mean
# of multi-similarity is over all ten, of which one has no pairs.
@pytest.mark.parametrize(
    ("part", "value", "norm"),
    [
        (Triplet(), 0.1784518076061111, 0.23251721396577502),
        (SupCon(), 0.914586330925583, 0.7801943118419942),
        (Circle(scale=64.0), 22.887166335620066, 9.032317939137092),
        (Circle(), 90.46777127401246, 35.916317054516796),
        (MultiSimilarity(), 0.18537039892328164 * 10 / 9, 0.07012542451438446 * 10 / 9),
    ],
)
def test_another_library_gives_the_same(part, value, norm):
    _, loss, gradient = of_rank(part)
    assert abs(loss / value - 1) < 1e-5 and abs(np.linalg.norm(gradient.astype(np.float64)) / norm - 1) < 1e-5


def test_ranks_compare_their_samples_with_all_others(tmp_path):
    launch(ROOT / "tests/distributed/run_pair_losses.py", 3, tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_samples_without_pairs_add_nothing(name):
    """All of one class, or all of different ones; also none at all that takes part."""
    for labels in (np.zeros(3, np.int64), np.arange(3)):
        emb_BD = paddle.to_tensor(embeddings()[:3], stop_gradient=False)
        loss = CASES[name][0]().loss(Batch(None, labels, None, 0, [3]), emb_BD)
        loss.backward()
        assert float(loss) == 0 and not emb_BD.grad.numpy().any()


def test_it_takes_part_in_a_training_and_resumes_exactly(tmp_path):
    part = "Parts=[{name: triplet, weight: 2.0, margin: 0.3}]"
    train(tmp_path / "whole", part, "Checkpoint.keep=9")
    found = rows(tmp_path / "whole")
    assert all(row["loss/triplet"] >= 0 for row in found) and any(row["loss/triplet"] > 0 for row in found)
    train(tmp_path / "cut", part, resume=checkpoint(tmp_path / "whole", 4))
    assert rows(tmp_path / "cut") == found[4:]
    assert_same_arrays(checkpoint(tmp_path / "cut"), checkpoint(tmp_path / "whole"))
