"""Define the section Model."""

from pydantic import Field

from plsc.utils.registry import Registry
from plsc.utils.section import Plug

BACKBONES = Registry(
    "backbone",
    {
        **{f"IResNet{n}": f"plsc.backbones.iresnet:IResNet{n}" for n in (18, 34, 50, 100, 200)},
        **{f"ResNet{n}": f"plsc.backbones.resnet:ResNet{n}" for n in (50, 100, 101, 152)},
        **{f"FaceViT_{n}": f"plsc.backbones.face_vit:FaceViT_{n}" for n in ("tiny", "small", "base")},
        "LeNet": "plsc.backbones.lenet:LeNet",
        "MobileFaceNet": "plsc.backbones.mobilefacenet:MobileFaceNet",
        "SmallResNet": "plsc.backbones.small_resnet:SmallResNet",
    },
    bases=("paddle.nn:Layer",),
)


class ModelCfg(Plug):
    """The backbone: images in, embeddings out. Further keys are keyword arguments of its class; its docstring
    explains them."""

    registry = BACKBONES
    supplied = ("image_shape",)

    name: str = "SmallResNet"
    """`SmallResNet`, a residual network for small pictures; `LeNet`; for faces `MobileFaceNet`, `IResNet18`,
    `IResNet34`, `IResNet50`, `IResNet100`, `IResNet200`, `FaceViT_tiny`, `FaceViT_small`, `FaceViT_base`, and
    PLSC 0.x's `ResNet50`, `ResNet100`, `ResNet101`, `ResNet152` (docs/labbook.md compares them); or your own
    class as `package.module:Class`."""
    embedding_size: int = Field(128, ge=1, le=2**16)
    """Length D of the embedding. Memory of the head grows with D x classes; 512 is usual for millions of
    classes."""
    sync_batchnorm: bool = False
    """In training, batch normalisation takes mean and variance over the samples of all ranks, not of each
    rank alone, by paddle.nn.SyncBatchNorm. Try it when a rank has few samples, 32 or less. It costs a
    collective forward and one backward in each layer. Refused on CPUs. Not run on a GPU."""
    recompute: bool | list[str] = False
    """Which layers are computed again in the backward pass instead of kept in memory: `true`, the blocks that
    the backbone declares (IResNet, ResNet, MobileFaceNet, FaceViT); or a list of layers by name, `[layer1,
    layer2]`. The same results in less memory and about a third more time (docs/training.md). On several ranks
    the gradients are then averaged after the backward pass."""
