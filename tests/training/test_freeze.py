"""What is frozen, and what is refused before the first step. tests/test_resume.py has a resumed run."""

import numpy as np
import pytest
from paddle import nn

from plsc.backbones.iresnet import IResNet18
from plsc.config.optimizer import MomentumOptimizerCfg
from plsc.training.freeze import freeze
from tests.helpers.refusals import refusal
from tests.helpers.small_networks import SmallFaceViT
from tests.helpers.tiny_runs import arrays, checkpoint, make_trainer, train


class Net(nn.Layer):
    """A matrix and a bias, a batch norm, and a norm without parameters."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1D(4)
        self.bare = nn.BatchNorm1D(4, weight_attr=False, bias_attr=False)
        self.last = nn.Linear(4, 2, bias_attr=False)


def frozen(net):
    return [
        name
        for name, p in net.named_parameters()
        if p.stop_gradient and not name.endswith(("_mean", "_variance"))
    ]


@pytest.mark.parametrize("pattern", ["fist", "norm._mean"])
def test_a_pattern_that_fits_no_parameter_is_refused(pattern):
    said = refusal(freeze, MomentumOptimizerCfg(freeze=["last", pattern]), Net())
    line = f"Optimizer.freeze.1: {pattern} fits none of the names of the backbone's 5 parameters ("
    assert said.startswith(line)


def test_a_norm_whose_parameters_are_all_frozen_stands_still():
    net = Net()
    assert freeze(MomentumOptimizerCfg(freeze=["norm.weight"]), net) == []
    assert frozen(net) == ["norm.weight"]
    net = Net()
    for _ in range(2):  # a network of the user's may be trained twice
        assert freeze(MomentumOptimizerCfg(freeze=["norm", "^last"]), net) == [net.norm]
    assert frozen(net) == ["norm.weight", "norm.bias", "last.weight"]


def test_freeze_norms_is_for_all_norms():
    net = Net()
    cfg = MomentumOptimizerCfg(freeze_norms=True)
    assert freeze(cfg, net) == [net.norm, net.bare]
    face = IResNet18(8, (1, 16, 16))
    still = freeze(cfg, face)
    assert face.features in still  # its gain never had a gradient, now its bias has none either
    assert not [name for name, p in face.named_parameters() if "bn" in name and not p.stop_gradient]
    vit = SmallFaceViT(8, (1, 18, 18))
    assert len(freeze(cfg, vit)) == 2 * 2 + 1 + 2
    assert "Linear has no norm layer; remove the key" in refusal(freeze, cfg, nn.Linear(2, 2))


# ---- whole runs

FREEZE = "Optimizer.freeze=['^stages.[02]']"


def test_no_step_copies_frozen_weights(tmp_path):
    trainer = make_trainer(tmp_path, FREEZE)
    names = {tensor.name: name for name, tensor in trainer.backbone.state_dict().items()}
    copied = [names[tensor.name] for tensor in trainer.network._statistics]
    assert sorted(copied) == sorted(name for name in names.values() if name.endswith(("_mean", "_variance")))


@pytest.mark.parametrize("key", [FREEZE, "Optimizer.freeze_norms=true"])
def test_what_is_frozen_keeps_its_bits(tmp_path, key):
    short = ["Global.max_steps=4", "DataLoader.Eval.dataset=null"]
    before = make_trainer(tmp_path, *short).backbone.state_dict()
    before = {name: value.numpy() for name, value in before.items()}
    train(tmp_path, key, *short)
    found = arrays(checkpoint(tmp_path, 4))
    is_norm = {name.rpartition(".")[0] for name in before if name.endswith("._mean")}
    for name, value in before.items():
        frozen = (
            name.startswith(("stages.0", "stages.2")) if key == FREEZE else name.rpartition(".")[0] in is_norm
        )
        assert np.array_equal(found[f"backbone: {name}"], value) == frozen, name
        assert (f"optimizer: {name}:velocity_0" in found) == (
            not frozen and not name.endswith(("_mean", "_variance"))
        )


def test_a_checkpoint_with_other_frozen_parameters_is_refused(tmp_path):
    short = ["Global.max_steps=4", "DataLoader.Eval.dataset=null"]
    train(tmp_path, FREEZE, *short)
    for overrides, difference in (
        ([], "freeze "),
        ([FREEZE, "Optimizer.freeze_norms=true"], "freeze_norms "),
        ([FREEZE, "Optimizer.name=AdamW"], "optimizer Momentum, this run has AdamW"),
    ):
        other = make_trainer(tmp_path / "other", *overrides, *short)
        said = refusal(other.resume, checkpoint(tmp_path, 4))
        assert f"was made with {difference}" in said and ": resume with the same" in said
