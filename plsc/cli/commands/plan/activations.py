"""Count what a backbone keeps of a forward pass for the backward pass: `plsc-plan --seconds 0`.

kept_bytes(IResNet50(), (3, 112, 112))       # of an image, in float32
"""

from __future__ import annotations

import paddle

from plsc.config import Config
from plsc.training.groups import freeze, settings_of

_IMAGES = 2  # training-mode BatchNorm takes two


def kept_bytes(backbone: paddle.nn.Layer, shape: tuple[int, ...]) -> int:
    """Return the bytes of an image that autograd keeps in training, each tensor once and no parameter."""
    own = {tensor.data_ptr() for tensor in [*backbone.parameters(), *backbone.buffers()]}
    kept: dict[int, paddle.Tensor] = {}  # the tensors too, so that no place is used twice

    def keep(tensor: paddle.Tensor) -> paddle.Tensor:
        kept[tensor.data_ptr()] = tensor
        return tensor

    images = paddle.randn([_IMAGES, *shape])
    backbone.train()
    with paddle.autograd.saved_tensors_hooks(keep, lambda tensor: tensor):
        backbone(images)
    sizes = [tensor.size * tensor.element_size() for place, tensor in kept.items() if place not in own]
    return sum(sizes) // _IMAGES


def counted(cfg: Config, shape: tuple[int, ...]) -> dict:
    """Count what `plsc-plan` needs of a backbone, in the form of calibration.calibrate's result, without times."""
    backbone, sizes = build(cfg, shape)
    kept = kept_bytes(backbone, shape)
    weights = 4 * (2 * sizes["parameters"] + sizes["frozen"])
    peaks = [[images, None, images * kept + weights] for images in (1, 2)]
    return {"base": 0, "head": {}, "backbone": peaks, **sizes}


def build(cfg: Config, shape: tuple[int, ...]) -> tuple[paddle.nn.Layer, dict[str, int]]:
    """Build the backbone of a config for samples of a shape, frozen as in training.

    Returns it, and how many numbers its "parameters" have that are trained, and those that are "frozen".
    """
    backbone = cfg.Model.build(embedding_size=cfg.Model.embedding_size, image_shape=shape)
    whole = sum(p.size for p in backbone.parameters() if not p.stop_gradient)
    freeze(cfg.Optimizer, backbone, settings_of(cfg.Optimizer, backbone))
    trained = sum(p.size for p in backbone.parameters() if not p.stop_gradient)
    return backbone, {"parameters": trained, "frozen": whole - trained}
