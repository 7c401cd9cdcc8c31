"""Every built-in backbone is built, run, differentiated and exported."""

import contextlib
import inspect

import paddle
import pytest

from plsc.apps.export import export
from plsc.backbones.config import BACKBONES
from plsc.utils.preprocessing import Preprocessing
from tests.helpers.undrawn import undrawn

# Backbones whose images may be small: the test is of each name, not of its speed.
SMALL_IMAGES = {"FaceViT", "IResNet", "MobileFaceNet", "ResNet"}
WITH_DROPOUT = {"FaceViT_tiny", "IResNet18", "MobileFaceNet", "ResNet50", "SmallResNet"}
# Sizes of one family are the same code: all are built, run and differentiated, and the first of these is
# exported.
EXPORTED_OF = {"FaceViT": "FaceViT_tiny", "IResNet": "IResNet18", "ResNet": "ResNet50"}


def family_of(name):
    return name.partition("_")[0].rstrip("0123456789")


def is_exported(name):
    return EXPORTED_OF.get(family_of(name), name) == name


@pytest.mark.parametrize(
    "name",
    [name if is_exported(name) else pytest.param(name, marks=pytest.mark.slow) for name in BACKBONES.builtin],
)
def test_a_built_in_backbone_is_built_run_and_exported(name, tmp_path):
    family, exported = family_of(name), is_exported(name)
    shape = inspect.signature(BACKBONES.get(name)).parameters["image_shape"].default
    if family in SMALL_IMAGES:
        shape = (shape[0], 32, 32)
    dropout = {"dropout": 0.5} if name in WITH_DROPOUT else {}
    with contextlib.nullcontext() if exported else undrawn():
        backbone = BACKBONES.get(name)(embedding_size=24, image_shape=shape, **dropout)
    images = paddle.rand([3, *shape])
    embeddings = backbone(images)
    assert embeddings.flatten(1).shape == [3, 24] and str(embeddings.dtype).endswith("float32")
    embeddings.sum().backward()
    still = [key for key, p in backbone.named_parameters() if not p.stop_gradient and p.grad is None]
    assert not still, f"no gradient reaches {still}"
    if not exported:
        return
    assert bool((backbone(images) != backbone(images)).any()) == bool(dropout)
    # export compares the file's embeddings with the network's, at batch 1 and 8, and raises if they differ
    found = export(backbone, tmp_path / "x", preprocessing=Preprocessing(shape), formats=["paddle"])
    assert found["embedding_size"] == 24 and len(found["checks"]) == 2
