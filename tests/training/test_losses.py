"""A loss beside the head's: its gradient, its rows, bad steps, resuming."""

import numpy as np
import paddle
import pytest

from plsc import distributed
from plsc.training.part import Part
from tests.helpers.bounds import assert_within, rounded
from tests.helpers.tiny_runs import NO_PAIRS, linear, make_trainer, rows, train

LINEAR = [NO_PAIRS, "Optimizer.weight_decay=0"]
LENGTH = "Parts=[tests.training.test_losses:Length]"


class Length(Part):
    """The mean square of the embeddings' numbers times the sample's label. It is NaN in the step `bad`."""

    name = "length"

    def __init__(self, bad=None):
        self.bad = bad

    def loss(self, batch, emb_BD):
        assert emb_BD.shape[0] == len(batch.images) == len(batch.labels)
        weight_B = paddle.to_tensor(batch.labels.astype(np.float32))
        loss_B = weight_B * emb_BD.square().mean(axis=1)
        return distributed.global_mean(
            loss_B * float("nan") if batch.step == self.bad else loss_B, batch.counts
        )


def run_on_ranks(folder, resume=None, net=None):
    """Three steps whose results are the same except for rounding, on any number of ranks
    (tests/distributed/test_train.py), with checkpoints of the second and the third."""
    keys = [f"DataLoader.Train.batch_size={12 // distributed.world_size()}", "Global.max_steps=3"]
    keys += ["Checkpoint.every_steps=2", *LINEAR, LENGTH]
    train(folder, *keys, resume=resume, backbone=net or linear())


@pytest.mark.parametrize("kernels", ["1", "0"])
def test_its_gradient_is_added_to_the_heads_and_its_value_is_in_the_rows(tmp_path, monkeypatch, kernels):
    """With and without micro-batches, where the host waits for the device and where not."""
    monkeypatch.setenv("PLSC_KERNELS", kernels)
    ends = []
    for name, batch in {"whole": 12, "parts": 4}.items():
        keys = [f"DataLoader.Train.batch_size={batch}", "DataLoader.Train.global_batch=12"]
        keys += ["Global.max_steps=1", *LINEAR, LENGTH]
        trainer = train(tmp_path / name, *keys, backbone=linear())
        ends.append({key: value.numpy() for key, value in trainer.backbone.state_dict().items()})
    trainer = make_trainer(tmp_path, *LINEAR, backbone=linear())
    images, labels, *_ = next(trainer.loader.from_step(0))
    label_B = paddle.to_tensor(labels)

    def step():
        trainer.backbone.clear_gradients()
        trainer.head.clear_gradients()
        emb_BD = trainer.network.forward(images, 0)
        extra = (label_B.astype("float32") * emb_BD.square().mean(axis=1)).mean()
        (trainer.head(emb_BD, label_B).loss + extra).backward()
        trainer.network.backward(emb_BD.grad)
        parameters = dict(trainer.backbone.named_parameters())
        return extra.item(), {name: p.numpy() - 0.05 * p.grad.numpy() for name, p in parameters.items()}

    want, bound = rounded(trainer.backbone, step)
    for name, end in zip(("whole", "parts"), ends):
        assert_within([rows(tmp_path / name)[0]["loss/length"], end], want, bound, paths=2)


@pytest.mark.parametrize("kernels,views", [("1", True), ("0", True), ("0", False)])
def test_a_step_that_it_spoils_changes_nothing_and_names_it(
    tmp_path, monkeypatch, capsys, request, kernels, views
):
    monkeypatch.setenv("PLSC_KERNELS", kernels)
    if not views:
        request.getfixturevalue("without_views")
    train(
        tmp_path,
        NO_PAIRS,
        "Global.max_steps=4",
        "Parts=[{name: 'tests.training.test_losses:Length', bad: 2}]",
    )
    assert [row.get("skipped", 0) for row in rows(tmp_path)] == [0, 0, 1, 1]
    assert (
        "step 3: the head's loss, or a gradient with respect to the embeddings or the class centres, is "
        "not finite (" in capsys.readouterr().out
    )
