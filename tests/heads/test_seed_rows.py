"""Rows of docs/labbook.md about the head on one process that no other test shows."""

import numpy as np
import paddle
import pytest

from plsc.config import ConfigError, load
from plsc.heads import softmax as softmax_module
from plsc.heads import step as step_module
from plsc.heads.build import make_head
from plsc.heads.margins import ArcFace, CosFace
from plsc.heads.sampling import DrawAhead
from plsc.utils.sharding import split
from tests.helpers.bounds import assert_within, cosines

D = 16


def batch(count=6, num_classes=20, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, D)).astype(np.float32)
    return paddle.to_tensor(x, stop_gradient=False), paddle.to_tensor(rng.integers(0, num_classes, count))


# ---- seed 2


def test_row_2_1_initial_centres():
    head = make_head(4000, 64)
    assert head.bank.state()["centres"].std() == pytest.approx((2 / 4064) ** 0.5, rel=1e-2)
    assert not make_head(10, D, bias=True).bank.state()["bias"].any()
    assert make_head(4000, 64, init_std=0.3).bank.state()["centres"].std() == pytest.approx(0.3, rel=1e-2)
    for num_classes in (1, 2, 15, 1003):
        for ranks in range(1, 17):
            sizes = [stop - start for start, stop in split(num_classes, ranks)]
            assert sum(sizes) == num_classes


def test_row_2_9_a_sure_sample_costs_nothing():
    head = make_head(2, 2)
    centres = np.array([[1000, 0], [0, 0]], np.float32)
    head.bank.load_rows(0, {"centres": centres, "momentum": np.zeros_like(centres)})
    assert head(paddle.to_tensor([[1.0, 0.0]]), paddle.to_tensor([0])).losses_B.numpy().tolist() == [0.0]


# ---- seed 3


def test_row_3_2_a_rate_just_below_one_samples_and_one_above_is_refused():
    head = make_head(2000, D, CosFace(), sample_rate=0.999)
    assert 1998 <= head(*batch(), 0).selection.count < 2000
    for rate in (1.5, 0, -0.1):
        with pytest.raises(ConfigError, match=r"Head.sample_rate: must be "):
            load(None, [f"Head.sample_rate={rate}"])


def test_row_3_3_the_bank_is_two_arrays_and_grows_with_the_shard():
    head = make_head(500, D, ArcFace())
    state = head.bank.state()
    assert (
        set(state) == {"centres", "momentum"}
        and sum(rows.nbytes for rows in state.values()) == 2 * 500 * D * 4
    )
    assert not state["momentum"].any() and state["centres"].std() == pytest.approx(0.01, rel=0.05)
    for num_classes in (7, 1000, 1001):
        sizes = [split(num_classes * n, 2 * n)[0] for n in (1, 2, 4)]
        assert len(set(sizes)) == 1


def test_row_3_5_sampling_leaves_the_callers_labels_alone():
    emb, label = batch()
    before = label.numpy().copy()
    make_head(20, D, CosFace(), sample_rate=0.3)(emb, label, 0).loss.backward()
    assert np.array_equal(label.numpy(), before)


@pytest.mark.parametrize("rate", [0.7, 0.3, 0.01])
def test_row_3_6_a_remapped_label_is_the_old_one(rate):
    head = make_head(20, D, CosFace(), sample_rate=rate)
    emb, label = batch()
    step = step_module.HeadStep(head.spec, head.memory, emb, label.numpy(), 5, [len(label)])
    place = step._select_classes()
    assert np.array_equal(step.selection.index_K[place.column_P], label.numpy()[place.sample_P])


def test_row_3_8_one_head_state_whatever_is_sampled():
    head = make_head(200, D, CosFace(), sample_rate=0.1)
    seen = set()
    for number in range(100):
        out = head(*batch(seed=number), number)
        out.loss.backward()
        gradients = tuple(out.selection.gradients())
        head.update(0.1)
        state = {name: rows.shape for name, rows in head.bank.state().items()}
        seen.add((tuple(state.items()), gradients))
    assert seen == {((("centres", (200, D)), ("momentum", (200, D))), ("centres",))}


def test_row_3_9_logits_are_cosines_of_any_embedding():
    """The head normalises both sides itself, so an embedding that nobody normalised has logits in [-1, 1]
    too."""
    head = make_head(20, D, CosFace(0.0), init_std=3.0)
    emb, label = batch()
    logits = [
        head.inspect(x, label).shard_logit.numpy()
        for x in (emb, emb * 100, emb / emb.norm(axis=1, keepdim=True))
    ]
    unit = lambda rows: rows / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    want = unit(emb.numpy()) @ unit(head.bank.state()["centres"]).T
    for found in logits:
        assert_within(found, want, cosines(D))


def test_row_3_12_the_loss_has_no_cap():
    """InsightFace's clamp of the probability at 1e-30 caps a sample's loss at 69.08."""
    head = make_head(2, 2)
    centres = np.array([[500, 0], [0, 0]], np.float32)
    head.bank.load_rows(0, {"centres": centres, "momentum": np.zeros_like(centres)})
    emb = paddle.to_tensor([[1.0, 0.0]], stop_gradient=False)
    loss = head(emb, paddle.to_tensor([1])).loss
    loss.backward()
    assert loss.item() == 500 and emb.grad.numpy().tolist() == [[500, 0]]


def test_row_3_15_forward_and_backward_in_our_calls():
    """forward_backward(label, features, optimizer) -> (x_grad, loss) is head(), loss.backward() and
    emb.grad."""
    head = make_head(20, D, ArcFace(), scale=64.0)
    before = head.bank.state()["centres"].copy()
    emb, label = batch()
    out = head(emb, label)
    out.loss.backward()
    assert emb.grad.shape == emb.shape and out.loss.shape == []
    assert out.selection.gradients()["centres"].shape == [20, D]
    assert np.array_equal(head.bank.state()["centres"], before)  # nothing moves before head.update
    head.update(0.1)
    assert not np.array_equal(head.bank.state()["centres"], before)


def test_row_3_16_without_sampling_the_rows_are_used_in_place():
    head = make_head(20, D, CosFace(), sample_rate=1.0)
    selection = head(*batch()).selection
    rows = selection.rows("centres", 0, 20)
    rows.zero_()
    assert selection.count == 20 and not head.bank.state()["centres"].any()


def test_row_3_19_when_the_draw_happens_cannot_change_a_number(monkeypatch):
    """plsc has no side stream: a draw depends on (seed, step), so one made beforehand in a thread gives the
    same bytes."""

    def train():
        head = make_head(200, D, CosFace(), sample_rate=0.1, seed=7)
        for number in range(5):
            head(*batch(seed=number, num_classes=200), number).loss.backward()
            head.update(0.1)
        return head.bank.state()["centres"].tobytes()

    ahead = train()

    class DrawInTheStep(DrawAhead):
        def take(self, step):
            self._ahead = None
            return super().take(step)

    monkeypatch.setattr(softmax_module, "DrawAhead", DrawInTheStep)
    assert train() == ahead
