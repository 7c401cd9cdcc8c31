"""Networks of paddle.vision.models as backbones: `Model: {name: "vision:resnet50"}`.

    images [B, 1 or 3, H, W] -> the network without its classifier -> mean over the places [B, C] -> embeddings [B, D]

The embedding is dropout, a linear layer and BatchNorm. Grey images go in as three equal channels.
Single-device code; it knows no ranks.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import Any

import paddle
from paddle import nn
from paddle.vision import models

from plsc.backbones.layers import Dropout
from plsc.errors import UserError
from plsc.utils.ranges import Share
from plsc.utils.registry import did_you_mean

# VGG pools to 7 x 7 places, which would weigh them unevenly; Paddle's export fails on SqueezeNet's. DenseNet
# cannot do without its own.
_POOL_OTHERWISE = ("vgg", "squeezenet")


def names() -> list[str]:
    """List the networks of paddle.vision.models that can be named: those made by a function, without a
    classifier."""
    made = [name for name in models.__all__ if inspect.isfunction(getattr(models, name))]
    # Paddle 2.6 makes no convolution to 0 classes.
    lacking = "squeezenet" if paddle.__version__.startswith("2.") else "-"
    return [name for name in made if not name.startswith(lacking)]


@functools.cache
def vision_class(name: str) -> type[Vision]:
    """Make the class of the backbone "vision:name". UserError if paddle.vision.models has no such network."""
    if name not in names():
        hint = did_you_mean(name, names()) or f" (one of {', '.join(names())})"
        raise UserError(f"backbone 'vision:{name}': paddle.vision.models has no network of this name{hint}")
    return type(f"vision_{name}", (Vision,), {"network_name": name})


class Vision(nn.Layer):
    """Computes embeddings by a network of paddle.vision.models.

    Args:
        embedding_size: D.
        image_shape: (channels, H, W) of the images, 1 or 3 channels; UserError where the network needs larger ones.
        options: keyword arguments of the network's own, such as `{scale: 0.5}` of mobilenet_v2.
        dropout: share of the pooled numbers that is dropped in training.
    """

    network_name: str

    def __init__(
        self,
        embedding_size: int = 128,
        image_shape: tuple[int, int, int] = (3, 112, 112),
        options: dict[str, Any] | None = None,
        dropout: Share = 0.0,
    ):
        super().__init__()
        self._name = f"vision:{self.network_name}"
        if len(image_shape) != 3 or image_shape[0] not in (1, 3):
            raise UserError(
                f"Model.name: {self._name} takes images of 1 or 3 channels, [C, H, W] (got {list(image_shape)})"
            )
        self.network = self._make(options or {})
        self.embed = nn.Sequential(
            Dropout(dropout),
            nn.Linear(self._probe(image_shape), embedding_size, bias_attr=False),
            nn.BatchNorm1D(embedding_size),
        )

    def _make(self, options: dict[str, Any]) -> nn.Layer:
        """Make the network without its classifier."""
        for key in options.keys() & {"num_classes", "pretrained", "with_pool"}:
            raise UserError(
                f"Model.options: {key} is not for you to set here; the network ends before its classifier"
            )
        try:
            own = {"with_pool": False} if self.network_name.startswith(_POOL_OTHERWISE) else {}
            network = getattr(models, self.network_name)(num_classes=0, **own, **options)
        except (TypeError, ValueError, AssertionError) as error:
            raise UserError(f"Model.options: {self._name} does not take {options}: {error}") from error
        layers = dict(network.named_sublayers(include_self=True))
        for name, layer in layers.items():
            # SqueezeNet's last convolution, to 0 classes: it is not run, and ranks do not send each other a
            # tensor of nothing.
            if any(0 in parameter.shape for parameter in layer.parameters(include_sublayers=False)):
                parent, _, attribute = name.rpartition(".")
                setattr(layers[parent], attribute, nn.Identity())
        return network

    def _probe(self, image_shape: tuple[int, int, int]) -> int:
        """Count the channels that the network ends with. UserError for images that its layers make nothing
        of."""
        too_small = []

        def look(layer: nn.Layer, _: Any, out: Any) -> None:
            if isinstance(out, paddle.Tensor) and 0 in out.shape:
                too_small.append(layer)

        hooks = [layer.register_forward_post_hook(look) for layer in self.network.sublayers()]
        self.network.eval()
        pooled_BC = None
        with paddle.no_grad(), contextlib.suppress(ValueError):  # where Paddle 2.6 pools less than its kernel
            pooled_BC = self._pooled(paddle.zeros([1, *image_shape]))
        for hook in hooks:
            hook.remove()
        if too_small or pooled_BC is None:
            raise UserError(
                f"Model.name: {self._name} makes nothing of images of {image_shape[1]} x {image_shape[2]}: they are too small for its "
                "layers; raise the data's size"
            )
        self.network.train()
        return pooled_BC.shape[1]

    def _pooled(self, images_BCHW: paddle.Tensor) -> paddle.Tensor:
        """Compute the mean over the places of the network's last maps, [B, C]."""
        if images_BCHW.shape[1] == 1:
            images_BCHW = paddle.concat([images_BCHW] * 3, axis=1)
        out = self.network(images_BCHW)
        maps = (
            out[0] if isinstance(out, (list, tuple)) else out
        )  # GoogLeNet's has two further outputs, empty here
        return maps if maps.ndim == 2 else maps.mean([2, 3])

    def forward(self, images_BCHW: paddle.Tensor) -> paddle.Tensor:
        return self.embed(self._pooled(images_BCHW))
