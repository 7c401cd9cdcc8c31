"""Check collectives, heads and checkpoints of these ranks against simple numpy: the parts of `plsc selftest`.

Each part is a function -> {what was compared: its worst error on this rank}; every rank calls it. The tests
compare heads by the same `head_errors`, on more cases.

    head_errors("arcface", 53, [5, 8])          on 2 ranks with 5 and 8 samples
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable

import numpy as np
import paddle

from plsc import distributed
from plsc.checkpoint import store
from plsc.distributed import environment
from plsc.distributed.device import asynchronous
from plsc.heads import make_head, reference
from plsc.heads.banks.bank import initial_rows
from plsc.heads.margins import ArcFace, CosFace
from plsc.heads.optimizer import LARS, AdamW, Momentum
from plsc.heads.sampling import choose_classes
from plsc.heads.self_check import head_differences
from plsc.utils.sharding import ClassShard, split

D = 16  # of every head here
MARGINS = {
    "softmax": (None, None, 1.0),
    "arcface": (ArcFace(0.5), (reference.arcface, 0.5), 64.0),
    "cosface": (CosFace(0.35), (reference.cosface, 0.35), 64.0),
}
OPTIMIZERS = {
    "Momentum": (Momentum(0.9, 5e-4), reference.DenseMomentum(0.9, 5e-4)),
    "Nesterov": (Momentum(0.9, 5e-4, nesterov=True), reference.DenseMomentum(0.9, 5e-4, nesterov=True)),
    "AdamW": (AdamW(0.9, 0.999, 1e-8, 0.1), reference.DenseAdamW(0.9, 0.999, 1e-8, 0.1)),
    "LARS": (LARS(0.9, 5e-4, 0.02, 1e-9), reference.DenseLARS(0.9, 5e-4, 0.02, 1e-9)),
}


# -- comparing
# ----------------------------------------------------------------------------------------------------------------


def relative(got, want) -> float:
    """Return the largest difference, relative to the largest number of `want`."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, (got.shape, want.shape)
    return float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-12)) if got.size else 0.0


def different_bytes(got: np.ndarray, want: np.ndarray) -> float:
    """Count the bytes that differ."""
    assert got.shape == want.shape and got.dtype == want.dtype, (got.shape, want.shape)
    return float(np.count_nonzero(_bytes(got) != _bytes(want)))


def _bytes(x: np.ndarray) -> np.ndarray:
    return np.frombuffer(x.tobytes(), np.uint8)


class Worst(dict):
    """Name -> the largest number noted under it; NaN counts as infinite."""

    def note(self, name: str, error: float) -> None:
        self[name] = max(self.get(name, 0.0), float(error) if np.isfinite(error) else np.inf)


# -- the collectives
# ----------------------------------------------------------------------------------------------------------


def _uneven(least: int) -> tuple[list[int], slice]:
    """Return the number of samples of each rank, and the slice of this rank's."""
    counts = [least + 3 * rank for rank in range(distributed.world_size())]
    start = sum(counts[: distributed.rank()])
    return counts, slice(start, start + counts[distributed.rank()])


def check_all_reduce() -> Worst:
    world_size, rank = distributed.world_size(), distributed.rank()
    x = np.random.default_rng(0).standard_normal((world_size, 5)).astype(np.float32)
    worst = Worst()
    for op, want in (("sum", x.astype(np.float64).sum(axis=0)), ("max", x.max(axis=0))):
        worst.note(op, relative(distributed.all_reduce(paddle.to_tensor(x[rank]), op).numpy(), want))
    worst.note("broadcast", relative(distributed.broadcast(paddle.to_tensor(x[rank])).numpy(), x[0]))
    return worst


def check_gather() -> Worst:
    """Check gathering, forward and backward; each rank multiplies its copy by rank + 1."""
    counts, own = _uneven(2)
    x = np.random.default_rng(1).standard_normal((sum(counts), 3)).astype(np.float32)
    mine = paddle.to_tensor(x[own], stop_gradient=False)
    gathered = distributed._c_allgather(mine)
    (gathered * (distributed.rank() + 1.0)).sum().backward()
    worst = Worst()
    worst.note("bytes", different_bytes(gathered.numpy(), x))
    worst.note(
        "gradient", relative(mine.grad.numpy(), np.full(mine.shape, sum(range(1, len(counts) + 1)), float))
    )
    return worst


def check_reduce_scatter() -> Worst:
    counts, own = _uneven(1)
    x = np.random.default_rng(2).standard_normal((len(counts), sum(counts), 3)).astype(np.float32)
    mine = paddle.to_tensor(x[distributed.rank()], stop_gradient=False)
    scattered = distributed._c_reducescatter(mine, counts)
    (scattered * (distributed.rank() + 1.0)).sum().backward()
    weights = np.repeat(np.arange(1.0, len(counts) + 1), counts)[:, None]
    worst = Worst()
    worst.note("sum", relative(scattered.numpy(), x.astype(np.float64).sum(axis=0)[own]))
    worst.note("gradient", relative(mine.grad.numpy(), np.broadcast_to(weights, mine.shape)))
    return worst


def check_data_parallel() -> Worst:
    """Check that all ranks have rank 0's parameters and the average of the gradients."""
    world_size, rank = distributed.world_size(), distributed.rank()
    paddle.seed(rank)
    layer = distributed.data_parallel(paddle.nn.Linear(2, 1))
    weight = layer.parameters()[0]
    layer(paddle.ones([1, 2]) * (rank + 1.0)).sum().backward()
    worst = Worst()
    worst.note("average", relative(weight.grad.numpy(), np.full(weight.shape, (world_size + 1) / 2)))
    worst.note("parameters", relative(weight.numpy(), distributed.gather_objects(weight.numpy())[0]))
    return worst


# -- the heads
# ----------------------------------------------------------------------------------------------------------------


def labels_for(kind: str, num_samples: int, num_classes: int, rng) -> np.ndarray:
    """Draw labels.

    "any": uniform; "one rank": all in the last shard with classes; "gap": none in the first.
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
        counts: samples of each rank.
        labels: see `labels_for`. optimizer: of `OPTIMIZERS`.
        options: of make_head.

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
        dw, db = _compare_step(worst, head, dense, x, label, counts, number)
        before = _rows_left_out(head)
        head.step(lr, number)
        dense.step(dw, db, lr)
        for key, rows in _rows_left_out(head).items():
            worst.note("bytes of rows that were not sampled", different_bytes(rows, before[key]))
    rows, state = slice(head.shard.start, head.shard.stop), head.bank.state()
    for key, want in dense.state().items():
        worst.note(f"updated {key}", relative(state[key], want[rows]))
    return worst


def _rows_left_out(head) -> dict[str, np.ndarray]:
    """Copy the rows of this rank that take no part in the step."""
    if head.spec.sample_rate == 1:
        return {}
    out = np.ones(head.shard.size, bool)
    out[head.bank.index] = False
    return {name: np.array(rows[:])[out] for name, rows in head.bank.state().items()}


def _compare_step(worst: Worst, head, dense, x, label, counts, number: int):
    start = sum(counts[: distributed.rank()])
    own = slice(start, start + counts[distributed.rank()])
    emb = paddle.to_tensor(x[own], stop_gradient=False)
    out = head(emb, paddle.to_tensor(label[own]), number)
    out.loss.backward()
    taken = head.bank.index + head.shard.start
    positives = np.intersect1d(label, np.arange(head.shard.start, head.shard.stop))
    worst.note("positives that are missing", len(np.setdiff1d(positives, taken)))
    dense.taken = np.arange(head.shard.num_classes)
    if head.spec.sample_rate < 1:
        counts_of_taken = distributed.gather_counts(len(taken))
        dense.taken = distributed.gather_rows(paddle.to_tensor(taken), counts_of_taken).numpy()
    whole = ClassShard.whole(head.shard.num_classes)
    of_one_rank = choose_classes(np.unique(label), whole, head.spec.sample_rate, head.spec.seed, number)
    worst.note("classes that one rank would not have sampled", len(np.setxor1d(dense.taken, of_one_rank)))
    losses, dx, dw, db = dense.loss_and_gradients(x, label)
    worst.note("loss", relative(out.loss.item(), losses.mean()))
    worst.note("losses", relative(out.losses_B.numpy(), losses[own]))
    worst.note("top-1", np.count_nonzero(out.correct_B.numpy() != dense.correct(x, label)[own]))
    worst.note("accuracy", relative(out.accuracy.item() + 1, dense.correct(x, label).mean() + 1))
    worst.note("embedding gradient", relative(emb.grad.numpy() / distributed.world_size(), dx[own]))
    if not len(taken):
        return dw, db
    mine, grads = np.searchsorted(dense.taken, taken), head.bank.gradients()
    # in units of the whole array's largest gradient: a shard of few classes may have next to none of its own
    for name, whole in (("centres", dw), ("bias", db))[: len(grads)]:
        error = np.abs(grads[name].numpy()[: len(mine)] - whole[mine]).max() / max(np.abs(whole).max(), 1e-12)
        worst.note("bias gradient" if name == "bias" else "centre gradient", float(error))
    return dw, db


def check_head(name: str, **options) -> Worst:
    """Check a head with uneven batches; C not divisible by W, and below W; labels on one rank only."""
    counts, worst = _uneven(5)[0], Worst()
    for num_classes, labels in ((53, "any"), (11, "one rank"), (max(1, len(counts) - 1), "any")):
        case = head_errors(name, num_classes, counts, labels=labels, steps=3, **options)
        for key, error in case.items():
            worst.note(f"{key}, {num_classes} classes", error)
    return worst


def check_as_a_training() -> Worst:
    """Check what a training checks before its first step: differences in units of what rounding explains."""
    worst = Worst()
    for difference in head_differences(tf32=False):
        worst.note(difference.what, difference.excess)
    return worst


def check_every_class_sampled() -> Worst:
    """Compare Partial FC when every class is a positive with a head that does not sample: bit for bit but
    where sampled rows are selected on the device, with spare slots, so that products round otherwise."""
    counts, own = _uneven(30)
    ends = []
    for rate in (1.0, 0.9):
        head = make_head(29, D, ArcFace(0.3), scale=16.0, sample_rate=rate, rule=Momentum(0.9, 1e-3), seed=4)
        rng = np.random.default_rng(5)
        for step in range(3):
            x = rng.standard_normal((sum(counts), D)).astype(np.float32)[own]
            emb = paddle.to_tensor(x, stop_gradient=False)
            label = np.arange(sum(counts))[own] % 29
            out = head(emb, paddle.to_tensor(label), step)
            out.loss.backward()
            head.step(0.1, step)
        ends.append({"losses": out.losses_B.numpy(), "embedding gradient": emb.grad.numpy()})
        ends[-1].update({name: rows.copy() for name, rows in head.bank.state().items()})
    worst = Worst()
    for name, want in ends[0].items():
        compare = relative if asynchronous() else different_bytes
        worst.note(name, compare(ends[1][name], want))
    return worst


# -- checkpoints
# --------------------------------------------------------------------------------------------------------------


def check_reshard() -> Worst:
    """Save by these ranks; each reads the checkpoint whole, and split for 1 to 8 ranks.

    On several machines, which may share no folder for temporary files, each rank saves alone.
    """
    world_size, rank, num_classes = distributed.world_size(), distributed.rank(), 23
    whole = {"centres": initial_rows(1, 0, num_classes, D, 1.0), "momentum": initial_rows(2, 0, 23, D, 1.0)}
    alone = environment.machines_from_env() > 1
    makes_folder = alone or rank == 0
    folder = tempfile.mkdtemp(prefix="plsc-selftest-") if makes_folder else None
    folders = distributed.gather_objects(folder)
    folder = folders[rank if alone else 0]
    start, stop = (0, num_classes) if alone else split(num_classes, world_size)[rank]
    ranks = store.ONE_RANK if alone else store.Ranks(rank, world_size, distributed.gather_objects)
    arrays = {"weight": initial_rows(3, 0, 5, 4, 1.0)}
    try:
        content = store.Content(
            step=1,
            epoch=1,
            states={"backbone": {"arrays": arrays}},
            rows={name: rows[start:stop] for name, rows in whole.items()},
            shard=ClassShard(num_classes, start, stop),
            config_yaml="",
            preprocessing={},
        )
        path = store.save(folder, content, ranks)
        saved, worst = store.Checkpoint.open(path), Worst()
        worst.note("backbone bytes", different_bytes(saved.weights()["weight"], arrays["weight"]))
        for parts in range(1, 9):
            for low, high in split(num_classes, parts):
                for name, rows in saved.head(low, high).items():
                    worst.note(f"{name} bytes, {parts} ranks", different_bytes(rows, whole[name][low:high]))
        distributed.barrier()
    finally:
        if makes_folder:
            shutil.rmtree(folder)
    return worst


# float32 with a scale of 64 reaches 5e-6 on any processor; a wrong line gives 1e-2 and more.
HEAD_LIMIT = 5e-5
PARTS: dict[str, tuple[Callable[[], Worst], float]] = {
    "all_reduce, broadcast": (check_all_reduce, 1e-6),
    "_c_allgather": (check_gather, 1e-6),
    "_c_reducescatter": (check_reduce_scatter, 1e-6),
    "data parallel": (check_data_parallel, 1e-6),
    **{f"head dist_{name}": (lambda name=name: check_head(name), HEAD_LIMIT) for name in MARGINS},
    **{f"head {name}": (lambda name=name: check_head(name, sharded=False), HEAD_LIMIT) for name in MARGINS},
    "head dist_arcface, AdamW": (lambda: check_head("arcface", optimizer="AdamW", lr=1e-3), HEAD_LIMIT),
    "head dist_arcface, LARS": (lambda: check_head("arcface", optimizer="LARS"), HEAD_LIMIT),
    "Partial FC, a rate of 0.3": (lambda: check_head("arcface", sample_rate=0.3), HEAD_LIMIT),
    "head before a training": (check_as_a_training, 1.0),
    "Partial FC, every class": (check_every_class_sampled, 1e-5),
    "checkpoint resharded": (check_reshard, 0.0),
}
