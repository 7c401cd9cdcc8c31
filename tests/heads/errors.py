"""Train a head for some steps beside the dense float64 reference: their worst relative differences.

head_errors("arcface", 53, [5, 8])          on 2 ranks with 5 and 8 samples
"""

import numpy as np
import paddle

from plsc import distributed
from plsc.heads.banks.bank import initial_rows
from plsc.heads.build import make_head
from plsc.heads.margins import ArcFace, CosFace
from plsc.heads.optimizer import LARS, AdamW, Momentum, Rule
from plsc.heads.sampling import ClassShard, draw_classes, merge_classes
from plsc.heads.self_check import relative
from plsc.utils.sharding import split
from tests.heads import reference

D = 16  # of every head here
MARGINS = {
    "softmax": (None, None, 1.0),
    "arcface": (ArcFace(0.5), (reference.arcface, 0.5), 64.0),
    "cosface": (CosFace(0.35), (reference.cosface, 0.35), 64.0),
}


class Own(Rule):
    """Momentum by Paddle's operators, as a user writes it."""

    moments = ("velocity",)

    def __init__(self, momentum: float = 0.9):
        self.momentum = momentum

    def update_rows(self, name, value, moments, grad, update):
        (velocity,) = moments
        velocity.scale_(self.momentum).add_(grad)
        value.subtract_(update.lr * velocity)


OPTIMIZERS = {
    "Momentum": (Momentum(0.9, 5e-4), reference.DenseMomentum(0.9, 5e-4)),
    "Nesterov": (Momentum(0.9, 5e-4, nesterov=True), reference.DenseMomentum(0.9, 5e-4, nesterov=True)),
    "AdamW": (AdamW(0.9, 0.999, 1e-8, 0.1), reference.DenseAdamW(0.9, 0.999, 1e-8, 0.1)),
    "LARS": (LARS(0.9, 5e-4, 0.02, 1e-9), reference.DenseLARS(0.9, 5e-4, 0.02, 1e-9)),
    "Own": (Own(), reference.DenseMomentum(0.9)),
}


def different_bytes(got: np.ndarray, want: np.ndarray) -> float:
    """Count the bytes that differ."""
    assert got.shape == want.shape and got.dtype == want.dtype, (got.shape, want.shape)
    return float(np.count_nonzero(got.view(np.uint8) != want.view(np.uint8)))


class Worst(dict):
    """Name -> the largest number noted under it. NaN counts as infinite."""

    def note(self, name: str, error: float) -> None:
        self[name] = max(self.get(name, 0.0), float(error) if np.isfinite(error) else np.inf)


def labels_for(kind: str, num_samples: int, num_classes: int, rng) -> np.ndarray:
    """Draw labels.

    "any" is uniform. "one rank" puts all into the last shard with classes. "gap" puts none into the first.
    """
    shards = [s for s in split(num_classes, distributed.world_size()) if s[1] > s[0]]
    low, high = {"any": (0, num_classes), "one rank": shards[-1], "gap": (shards[1:] or shards)[0]}[kind]
    if kind == "gap":
        high = num_classes
    return rng.integers(low, high, num_samples)


def head_errors(
    name: str,
    num_classes: int,
    counts: list[int],
    *,
    labels: str = "any",
    steps: int = 10,
    lr: float = 0.01,
    optimizer: str = "Momentum",
    **options,
) -> Worst:
    """Train a head for some steps beside the dense float64 reference restricted to the sampled classes.

    Args:
        counts: each rank's samples.
        labels: see `labels_for`.
        optimizer: one from `OPTIMIZERS`.
        options: passed to make_head.

    Returns: the worst relative errors of this rank's part of losses, gradients and parameters, and how many
    samples' classes were not among the sampled ones.
    """
    margin, dense_margin, scale = MARGINS[name]
    options = {"scale": scale, "init_std": 0.5, "seed": 3, **options}
    rule, dense_optimizer = OPTIMIZERS[optimizer]
    head = make_head(num_classes, D, margin, rule=rule, **options)
    bias = np.zeros(num_classes) if head.bank.bias else None
    centres = initial_rows(3, 0, num_classes, D, options["init_std"])
    dense = reference.DenseHead(centres, bias, dense_margin, scale, dense_optimizer, rule.moments)
    rng = np.random.default_rng(num_classes + len(counts))
    worst = Worst()
    for number in range(steps):
        x = rng.standard_normal((sum(counts), D)).astype(np.float32)
        label = labels_for(labels, sum(counts), num_classes, rng)
        dw, db, taken = _compare_step(worst, head, dense, x, label, counts, number)
        before = _rows_left_out(head, taken)
        head.update(lr, number)
        dense.step(dw, db, lr)
        for key, rows in _rows_left_out(head, taken).items():
            worst.note("bytes of rows that were not sampled", different_bytes(rows, before[key]))
    rows, state = slice(head.shard.start, head.shard.stop), head.bank.state()
    for key, want in dense.state().items():
        worst.note(f"updated {key}", relative(state[key], want[rows]))
    return worst


def choose_classes(positives, shard, rate, seed, step) -> np.ndarray:
    """Choose the classes of a shard that take part in a step."""
    return merge_classes(draw_classes(shard, rate, seed, step), positives)


def taken_of(selection) -> np.ndarray:
    """Number the rows of this rank that take part in the step."""
    return np.arange(selection.count) if selection.index_K is None else selection.index_K


def _rows_left_out(head, taken) -> dict[str, np.ndarray]:
    """Copy the rows of this rank that take no part in the step."""
    if head.spec.sample_rate == 1:
        return {}
    out = np.ones(head.shard.size, bool)
    out[taken] = False
    return {name: np.array(rows[:])[out] for name, rows in head.bank.state().items()}


def _compare_step(worst: Worst, head, dense, x, label, counts, number: int):
    start = sum(counts[: distributed.rank()])
    own = slice(start, start + counts[distributed.rank()])
    emb = paddle.to_tensor(x[own], stop_gradient=False)
    out = head(emb, paddle.to_tensor(label[own]), number)
    out.loss.backward()
    mine = taken_of(out.selection)
    taken = mine + head.shard.start
    positives = np.intersect1d(label, np.arange(head.shard.start, head.shard.stop))
    worst.note("positives that are missing", len(np.setdiff1d(positives, taken)))
    dense.taken = np.arange(head.shard.num_classes)
    if head.spec.sample_rate < 1:
        counts_of_taken = distributed.gather_counts(len(taken))
        dense.taken = distributed._c_allgather(paddle.to_tensor(taken), counts_of_taken).numpy()
    whole = ClassShard(head.shard.num_classes, 0, head.shard.num_classes)
    of_one_rank = choose_classes(np.unique(label), whole, head.spec.sample_rate, head.spec.seed, number)
    worst.note("classes that one rank would not have sampled", len(np.setxor1d(dense.taken, of_one_rank)))
    losses, dx, dw, db = dense.loss_and_gradients(x, label)
    worst.note("loss", relative(out.loss.item(), losses.mean()))
    worst.note("losses", relative(out.losses_B.numpy(), losses[own]))
    worst.note("top-1", np.count_nonzero(out.correct_B.numpy() != dense.correct(x, label)[own]))
    worst.note("accuracy", relative(out.accuracy.item() + 1, dense.correct(x, label).mean() + 1))
    worst.note("embedding gradient", relative(emb.grad.numpy() / distributed.world_size(), dx[own]))
    if not len(taken):
        return dw, db, mine
    at, grads = np.searchsorted(dense.taken, taken), out.selection.gradients()
    # in units of the whole array's largest gradient: a shard with few classes may have almost none itself
    for name, whole in (("centres", dw), ("bias", db))[: len(grads)]:
        error = np.abs(grads[name].numpy() - whole[at]).max() / max(np.abs(whole).max(), 1e-12)
        worst.note("bias gradient" if name == "bias" else "centre gradient", float(error))
    return dw, db, mine
