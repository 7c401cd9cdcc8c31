"""The head's benchmark: the dense head has the loss of ours."""

import numpy as np
import pytest

from benchmarks import head
from plsc.config import load
from tests.heads.reference import DenseHead, arcface
from tests.helpers.bounds import assert_within, perturbed

pytestmark = pytest.mark.slow


def test_the_dense_head_has_the_loss_of_ours():
    cfg = load(
        None, ["Model.embedding_size=16", "Head.scale=16.0"]
    )  # at 64 Paddle's own loss cuts logits off
    trial = head.Trial(cfg, 50, 8)
    dense = head.Dense(50, 16, trial, scale=16.0)
    dense.centres.set_value(np.array(trial.head.bank.state()["centres"]))
    centres, label = trial.head.bank.state()["centres"], trial.label.numpy()

    def loss(emb, centres):
        reference = DenseHead(centres, None, (arcface, 0.5), cfg.Head.scale)
        return reference.loss_and_gradients(emb, label)[0].mean()

    want, bound = perturbed(loss, trial.emb.numpy(), centres)
    assert_within(trial.head(trial.emb, trial.label).loss.item(), want, bound)
    assert_within(dense.loss().item(), want, bound)
    before = dense.loss().item()
    dense.step()
    assert dense.loss().item() < before and not trial.emb.grad.numpy().any()
