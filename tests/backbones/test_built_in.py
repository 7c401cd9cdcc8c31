"""Every built-in backbone is built, run and differentiated, and a small one of each family is exported."""

import inspect

import paddle
import pytest

from plsc.apps.export import export
from plsc.backbones.config import BACKBONES
from plsc.backbones.lenet import LeNet
from plsc.backbones.mobilefacenet import MobileFaceNet
from plsc.backbones.small_resnet import SmallResNet
from plsc.utils.preprocessing import Preprocessing
from tests.helpers.small_networks import SmallFaceViT, SmallIResNet, SmallResNet50
from tests.helpers.undrawn import undrawn

# The sizes of a family are the same code.
ONE_OF_EACH = {"FaceViT_tiny", "IResNet18", "LeNet", "MobileFaceNet", "ResNet50", "SmallResNet"}


@pytest.mark.parametrize(
    "name",
    [
        name if name in ONE_OF_EACH else pytest.param(name, marks=pytest.mark.slow)
        for name in BACKBONES.builtin
    ],
)
def test_a_built_in_backbone_is_built_run_and_differentiated(name):
    shape = inspect.signature(BACKBONES.get(name)).parameters["image_shape"].default
    if shape[0] == 3:
        shape = (3, 32, 32)
    with undrawn():
        backbone = BACKBONES.get(name)(embedding_size=24, image_shape=shape)
    embeddings = backbone(paddle.rand([3, *shape]))
    assert embeddings.flatten(1).shape == [3, 24] and str(embeddings.dtype).endswith("float32")
    embeddings.sum().backward()
    still = [key for key, p in backbone.named_parameters() if not p.stop_gradient and p.grad is None]
    assert not still, f"no gradient reaches {still}"


SMALL = {
    SmallFaceViT: {"image_shape": (3, 32, 32), "dropout": 0.5},
    SmallIResNet: {"image_shape": (3, 32, 32), "dropout": 0.5},
    LeNet: {"image_shape": (1, 28, 28)},
    MobileFaceNet: {"image_shape": (3, 32, 32), "dropout": 0.5, "scale": 1, "blocks": [1, 1, 1, 1]},
    SmallResNet50: {"image_shape": (3, 32, 32), "dropout": 0.5},
    SmallResNet: {"image_shape": (1, 32, 32), "dropout": 0.5},
}


@pytest.mark.parametrize("kind", SMALL)
def test_a_network_is_exported_without_its_dropout(kind, tmp_path):
    backbone = kind(embedding_size=24, **SMALL[kind])
    images = paddle.rand([3, *SMALL[kind]["image_shape"]])
    assert bool((backbone(images) != backbone(images)).any()) == ("dropout" in SMALL[kind])
    # export compares the file's embeddings with the network's, at batch 1 and 8, and raises if they differ
    preprocessing = Preprocessing(SMALL[kind]["image_shape"])
    found = export(backbone, tmp_path / "x", preprocessing=preprocessing, formats=["paddle"])
    assert found["embedding_size"] == 24 and len(found["checks"]) == 2
