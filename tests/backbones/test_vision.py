"""Networks of paddle.vision.models: one of each family is cut, pooled and embedded; what is refused; and one
trained by config."""

import numpy as np
import paddle
import pytest

from plsc import Entry
from plsc.apps.export import export
from plsc.backbones.vision import names
from plsc.data.preprocessing import Preprocessing
from plsc.errors import UserError
from plsc.utils.registry import BACKBONES
from tests.helpers.launch import ROOT, launch

pytestmark = pytest.mark.slow

FAMILIES = {"resnet18": {}, "vgg11": {}, "mobilenet_v2": {"scale": 0.25}, "densenet121": {}, "alexnet": {}}
FAMILIES |= {"squeezenet1_1": {}, "googlenet": {}, "shufflenet_v2_x0_25": {}, "mobilenet_v3_small": {}}

needs_squeezenet = pytest.mark.skipif(
    "squeezenet1_1" not in names(), reason="Paddle 2.6 makes no SqueezeNet without a classifier"
)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name in names()])
def test_a_family_is_cut_pooled_and_embedded(name):
    paddle.seed(1)
    net = BACKBONES.build(
        f"vision:{name}", embedding_size=24, image_shape=(1, 64, 64), options=FAMILIES[name]
    )
    out = net(paddle.rand([2, 1, 64, 64]))
    assert out.shape == [2, 24]
    out.square().sum().backward()
    still = [key for key, p in net.named_parameters() if not p.stop_gradient and p.grad is None]
    assert not still, f"no gradient reaches {still}"
    assert any(p.grad is not None for p in net.network.parameters())


def test_the_embedding_is_that_of_the_networks_own_pooled_numbers():
    paddle.seed(2)
    net = BACKBONES.build("vision:resnet18", embedding_size=8, image_shape=(3, 32, 32))
    net.eval()
    images = paddle.rand([2, 3, 32, 32])
    _, linear, norm = net.embed
    assert np.array_equal(net(images).numpy(), norm(linear(net.network(images).flatten(1))).numpy())


@needs_squeezenet
def test_one_whose_own_pooling_cannot_be_exported_is_exported(tmp_path):
    net = BACKBONES.build("vision:squeezenet1_1", embedding_size=8, image_shape=(3, 48, 48))
    prepared = Preprocessing.of_images((3, 48, 48))
    found = export(net, tmp_path / "x", preprocessing=prepared, formats=["paddle"])
    assert len(found["checks"]) == 2, "compared with the network at batch 1 and 8"


@pytest.mark.parametrize(
    "name,options,message",
    [
        ("resnet51", {}, "no network of this name, did you mean 'resnet50'?"),
        ("zzz", {}, "(one of resnet18, resnet34"),
        ("alexnet", {"image_shape": (3, 32, 32)}, "images of 32 x 32: they are too small"),
        ("resnet18", {"image_shape": (4, 64, 64)}, "takes images of 1 or 3 channels, [C, H, W] (got [4, 64, 64])"),
        ("mobilenet_v2", {"options": {"scal": 2}}, "unexpected keyword argument 'scal'"),
        ("resnet18", {"options": {"num_classes": 5}}, "num_classes is not for you to set"),
    ],
)  # fmt: skip
def test_what_is_refused(name, options, message):
    with pytest.raises(UserError) as raised:
        BACKBONES.build(f"vision:{name}", **options)
    assert message in str(raised.value)


@needs_squeezenet
def test_one_is_trained_on_two_ranks_and_evaluated_by_its_config(tmp_path):
    """SqueezeNet, whose last convolution would have weights of no numbers."""
    run = {
        "Global.max_steps": 2,
        "Global.output_dir": str(tmp_path / "run"),
        "Model.name": "vision:squeezenet1_1",
        "Model.embedding_size": 16,
        "DataLoader.Train.batch_size": 8,
        "DataLoader.Eval.dataset.num_pairs": 60,
    }
    launch(ROOT / "tools/train.py", 2, tmp_path, "-o", *(f"{key}={value}" for key, value in run.items()))
    assert Entry(str(tmp_path / "run")).evaluate()["accuracy"] > 0


def test_every_network_made_by_a_function_has_a_name():
    assert {"resnet50", "vgg16", "inception_v3", "wide_resnet50_2"} <= {*names()} and len(names()) > 30
