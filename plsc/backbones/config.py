"""The config's section Model."""

from pydantic import Field

from plsc.utils.registry import Registry
from plsc.utils.section import ClassSection

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


class ModelCfg(ClassSection):
    """The backbone, which computes embeddings from images. Further keys are its class's keyword arguments.
    The class's docstring explains them."""

    registry = BACKBONES
    supplied = ("image_shape",)

    name: str = "SmallResNet"
    """`SmallResNet` for small pictures, or `LeNet`. For faces: `MobileFaceNet`, `IResNet18`, `IResNet34`,
    `IResNet50`, `IResNet100`, `IResNet200`, `FaceViT_tiny`, `FaceViT_small`, `FaceViT_base`. From PLSC 0.x:
    `ResNet50`, `ResNet100`, `ResNet101`, `ResNet152`. docs/labbook.md compares them. Your own class is
    `package.module:Class`."""
    embedding_size: int = Field(128, ge=1, le=2**16)
    """The embedding's length D. The head's memory grows with D x classes. 512 is usual for millions of
    classes."""
    sync_batchnorm: bool = False
    """If true, batch normalisation in training uses mean and variance over all ranks' samples instead of
    each rank alone (paddle.nn.SyncBatchNorm). Try it if a rank has 32 samples or fewer. It costs one
    collective forward and one backward in each layer. It is refused on CPUs and was not run on a GPU.
    """
    recompute: bool | list[str] = False
    """Layers whose activations are computed again in the backward pass instead of kept in memory. `true`
    takes the blocks that the backbone declares (IResNet, ResNet, MobileFaceNet, FaceViT). A list names
    layers, such as `[layer1, layer2]`. The results are the same, the memory is less, and the time is about a
    third more (docs/training.md). On several ranks the gradients are then averaged after the backward pass.
    """
