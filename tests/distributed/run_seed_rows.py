"""Rows of docs/labbook.md about ranks, on any number of ranks. Each row is a function that asserts it on this
rank.

test_seed_rows.py runs this on 1, 2 and 4 ranks. N samples on all ranks, B on this one. C classes, S in this
shard. D embedding size.
"""

from unittest.mock import patch

import numpy as np
import paddle
import paddle.distributed as dist

from plsc import distributed
from plsc.heads.backends import LOWEST
from plsc.heads.banks.bank import initial_rows
from plsc.heads.build import make_head
from plsc.heads.margins import ArcFace, CosFace
from plsc.heads.step import HeadStep
from tests.heads import reference
from tests.helpers.bounds import EPS, assert_within, perturbed

B, C, D = 6, 23, 16


class Case:
    """A head, the batch of this rank, and the same dense: logits [N, C], log-probabilities, losses [N]."""

    def __init__(self, margin=None, dense_margin=None, scale=1.0, num_classes=C, **options):
        self.world_size, self.rank = distributed.world_size(), distributed.rank()
        rng = np.random.default_rng(0)
        num_samples = B * self.world_size
        self.own = slice(B * self.rank, B * (self.rank + 1))
        self.x = rng.standard_normal((num_samples, D)).astype(np.float32)
        self.label = rng.integers(0, num_classes, num_samples)
        self.emb = paddle.to_tensor(self.x[self.own], stop_gradient=False)
        self.label_B = paddle.to_tensor(self.label[self.own])
        self.head = make_head(num_classes, D, margin, scale=scale, init_std=0.5, seed=3, **options)
        self.rows = slice(self.head.shard.start, self.head.shard.stop)
        self.dense = lambda centres: reference.DenseHead(centres, None, dense_margin, scale)
        self.centres = initial_rows(3, 0, num_classes, D, 0.5)
        want, bound = perturbed(self.compute, self.x, self.centres)
        (self.logits, self.losses, self.loss), (self.of_logits, self.of_losses, self.of_loss) = want, bound
        inside = (self.label >= self.rows.start) & (self.label < self.rows.stop)
        self.local = np.where(inside, self.label - self.rows.start, -1)
        self.one_hot = (self.local[:, None] == np.arange(self.head.shard.size)).astype(np.float32)

    def compute(self, x, centres):
        logits = self.dense(centres).logits(x, self.label)[0]
        losses = np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(x)), self.label]
        return logits, losses, losses.mean()

    def forward(self):
        """-> the step after its forward pass."""
        step = HeadStep(self.head.spec, self.head.memory, self.emb, self.label, 0, [B] * self.world_size)
        step.forward()
        return step

    def info(self):
        return self.head.inspect(self.emb, self.label_B)


def row_2_1():
    """W and b are this rank's own. No collective in a step carries anything as large, and the ranks hold
    different rows."""
    case, carried = Case(bias=True, num_classes=1003), []

    def counting(original):
        def collective(*args, **kwargs):
            carried.extend(x.shape for x in args if isinstance(x, paddle.Tensor))
            return original(*args, **kwargs)

        return collective

    names = ("all_reduce", "all_gather", "broadcast")
    with patch.multiple(dist, **{name: counting(getattr(dist, name)) for name in names}):
        case.head(case.emb, case.label_B).loss.backward()
        case.head.update(0.1)
    assert bool(carried) == (case.world_size > 1)
    assert not any(max(shape) >= case.head.shard.size for shape in carried), carried
    centres = distributed.gather_objects(case.head.bank.state()["centres"])
    assert len({rows.tobytes() for rows in centres}) == case.world_size
    assert sum(map(len, centres)) == 1003


def row_2_3():
    case = Case()
    labels = distributed._c_allgather(case.label_B, [B] * case.world_size)
    assert labels.numpy().tolist() == case.label.tolist() and labels.stop_gradient
    assert labels.dtype == paddle.int64


def row_2_4():
    case = Case()
    info = case.head.inspect(case.emb.reshape([B, D, 1, 1]), case.label_B)
    parts = distributed.gather_objects(info.shard_logit.numpy())
    assert_within(np.concatenate(parts, axis=1), case.logits, case.of_logits)


def row_2_5():
    case = Case()
    local = distributed.gather_objects(case.info().shard_label.numpy())
    assert local[case.rank].tolist() == case.local.tolist()
    assert ((np.stack(local) >= 0).sum(axis=0) == 1).all()


def row_2_6():
    """This shard's maximum survives the all_reduce. Logits 10,000 higher leave the loss as it is."""
    case = Case()
    step = case.forward()
    others = np.where(np.arange(C) == case.label[:, None], -np.inf, case.logits)
    most = case.of_logits.max()
    assert_within(step._reduce_maxima(*step.backend.forward(None))[0].numpy(), others.max(axis=1), most)
    assert_within(step.backend.forward(None)[0].numpy(), others[:, case.rows].max(axis=1), most)
    losses = []
    for shift in (0.0, 1e4):
        moved = Case(bias=True)
        state = moved.head.bank.state()
        moved.head.bank.load_rows(0, {**state, "bias": state["bias"] + np.float32(shift)})
        losses.append(moved.head(moved.emb, moved.label_B).loss.item())
    # Near 10,000, the bias and the sum are each rounded by half an EPS, for the target's logit and for the
    # others'.
    assert_within(losses[1], losses[0], 2 * EPS * 1e4 + 2 * case.of_loss)


def row_2_7():
    case = Case()
    prob = np.concatenate(distributed.gather_objects(case.info().shard_prob.numpy()), axis=1)
    # The difference logit - log(sum) and the sum over C are rounded. The logits' own errors cancel.
    off = EPS * (C + np.abs(case.logits - np.logaddexp.reduce(case.logits, axis=1, keepdims=True)).max())
    assert_within(prob.astype(np.float64).sum(axis=1), np.ones(len(prob)), off)
    assert (prob <= 1 + off).all()


def row_2_8():
    """The head's one-hot never exists, but the logits that the sum over the others excludes are where it
    is 1."""
    case = Case()
    step = HeadStep(
        case.head.spec, case.head.memory, case.emb, case.label, None, [B] * case.world_size
    )  # by Paddle's ops
    with paddle.no_grad():
        step.forward()
        left_out = step.backend.logits().numpy() < LOWEST / 2
    assert np.array_equal(left_out, case.one_hot == 1)
    assert not left_out[case.local == -1].any()


def row_2_9():
    """The head's place of the min trick: each sample's own value where its class is, exactly 0 elsewhere."""
    case = Case()
    picked = case.forward().targets.cosine.numpy()
    assert_within(picked, (case.logits[:, case.rows] * case.one_hot).sum(axis=1), case.of_logits.max())
    assert (picked[case.local == -1] == 0).all()


def row_2_10():
    case = Case()
    info = case.info()
    shard_loss = -(info.shard_prob.numpy() * case.one_hot).sum(axis=1, keepdims=True)
    shard_loss = np.log(-shard_loss, out=np.zeros_like(shard_loss), where=shard_loss < 0)
    mine = distributed._c_reducescatter(paddle.to_tensor(-shard_loss), [B] * case.world_size)
    assert mine.shape == [B, 1]
    out = case.head(case.emb, case.label_B)
    for found in (mine.flatten(), out.losses_B):
        assert_within(found.numpy(), case.losses[case.own], case.of_losses[case.own])


def row_2_11():
    case = Case()
    out = case.head(case.emb, case.label_B)
    means = distributed.gather_objects(out.losses_B.mean().item())
    for found in (np.mean(means), out.loss.item()):
        assert_within(found, case.loss, case.of_loss)


def row_2_12():
    case = Case()
    info, size = case.info(), case.head.shard.size
    assert info.shard_logit.shape == info.shard_prob.shape == [len(case.x), size]
    assert info.shard_label.shape == [len(case.x)] and info.shard_dim == size


def row_2_15():
    """All labels on rank 0: gradients are the dense ones, on the ranks without a positive too."""
    case = Case()
    label = case.label % len(distributed.gather_objects(case.head.shard.size))
    out = case.head(case.emb, paddle.to_tensor(label[case.own]))
    out.loss.backward()
    assert label.max() < distributed.gather_objects(case.head.shard.size)[0]

    def compute(x, centres):
        losses, dx, dw, _ = case.dense(centres).loss_and_gradients(x, label)
        return losses.mean(), case.world_size * dx[case.own], dw[case.rows]

    found = out.loss.item(), case.emb.grad.numpy(), out.selection.gradients()["centres"].numpy()
    assert_within(found, *perturbed(compute, case.x, case.centres))


def row_3_10():
    """Only the entries for own classes feel the margin. Other shards' samples have rows that are scale times
    the cosine."""
    case = Case(ArcFace(0.5), (reference.arcface, 0.5), 64.0)
    plain = Case(CosFace(0.0), (reference.cosface, 0.0), 64.0)
    with_margin, without = (one.info().shard_logit.numpy() for one in (case, plain))
    assert_within(without, plain.logits[:, case.rows], plain.of_logits[:, case.rows])
    assert np.array_equal(with_margin[case.local == -1], without[case.local == -1])
    assert np.array_equal(with_margin != without, case.one_hot == 1)


def row_3_12():
    case = Case(ArcFace(0.5), (reference.arcface, 0.5), 64.0)
    loss = case.head(case.emb, case.label_B).loss.numpy()
    assert len({other.tobytes() for other in distributed.gather_objects(loss)}) == 1
    assert_within(float(loss), case.loss, case.of_loss)


def row_3_14():
    """After data parallel's average a linear backbone has the gradient of one process with the global
    batch."""
    paddle.seed(1)
    layer = paddle.nn.Linear(4, D)
    model, average_gradients = distributed.data_parallel(layer)
    case = Case(ArcFace(0.5), (reference.arcface, 0.5), 64.0)
    pictures = np.random.default_rng(2).standard_normal((len(case.x), 4)).astype(np.float32)
    case.head(model(paddle.to_tensor(pictures[case.own])), case.label_B).loss.backward()
    average_gradients()

    def compute(pictures, weight, bias, centres):
        _, dx, _, _ = case.dense(centres).loss_and_gradients(pictures @ weight + bias, case.label)
        return pictures.T @ dx, dx.sum(axis=0)

    parameters = [parameter.numpy() for parameter in layer.parameters()]
    found = [parameter.grad.numpy() for parameter in layer.parameters()]
    assert_within(found, *perturbed(compute, pictures, *parameters, case.centres))


ROWS = {name[4:].replace("_", "."): row for name, row in list(globals().items()) if name.startswith("row_")}

if __name__ == "__main__":
    distributed.init("cpu", threads=1)
    for number, row in ROWS.items():
        row()
        print(f"row {number} ok", flush=True)
