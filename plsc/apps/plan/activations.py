"""Count what a backbone keeps of a forward pass for the backward pass, and what the network of another run
takes: `plsc plan --seconds 0`.

kept_bytes(IResNet50(), (3, 112, 112))       # of an image
"""

from __future__ import annotations

from collections.abc import Sequence

import paddle

from plsc.backbones.config import ModelCfg
from plsc.backbones.count import count
from plsc.config import Config
from plsc.distributed.recompute import recomputing
from plsc.distributed.sync_batch_norm import synchronise
from plsc.training.groups import freeze, parameters_of, settings_of
from plsc.training.mixed_precision import autocast_on_cpu, dtype_on_cpu
from plsc.training.network import layers_to_recompute
from plsc.training.resume import build_backbone
from plsc.utils import measure

_IMAGES = 2  # training-mode BatchNorm takes two
# Outputs of its largest layer that a network without gradients has at once: input, output and a shortcut.
_PASSING = 3


def kept_bytes(
    backbone: paddle.nn.Layer, shape: tuple[int, ...], recomputed: Sequence[paddle.nn.Layer] = ()
) -> int:
    """Return the bytes of an image that autograd keeps in training, each tensor once and no parameter.

    Of layers that are recomputed it keeps the inputs, and all of the largest one while that is computed
    again.
    """
    own = {tensor.data_ptr() for tensor in [*backbone.parameters(), *backbone.buffers()]}
    inputs: dict[paddle.nn.Layer, tuple] = {}
    hooks = [layer.register_forward_pre_hook(inputs.__setitem__) for layer in recomputed]
    backbone.train()
    with recomputing(recomputed):
        kept = _kept(backbone, (paddle.randn([_IMAGES, *shape]),), own)
    for hook in hooks:
        hook.remove()
    kept.update({x.data_ptr(): x for tensors in inputs.values() for x in tensors})
    largest = max((_bytes(_kept(layer, inputs[layer], own)) for layer in recomputed), default=0)
    return (_bytes(kept) + largest) // _IMAGES


def _kept(layer: paddle.nn.Layer, inputs: tuple, own: set[int]) -> dict[int, paddle.Tensor]:
    """Run a layer -> the tensors that autograd keeps, by their place in memory."""
    kept: dict[int, paddle.Tensor] = {}  # the tensors too, so that no place is used twice

    def keep(tensor: paddle.Tensor | None) -> paddle.Tensor | None:
        if tensor is not None and tensor.data_ptr() not in own:
            kept[tensor.data_ptr()] = tensor
        return tensor

    with paddle.autograd.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(*inputs)
    return kept


def _bytes(kept: dict[int, paddle.Tensor]) -> int:
    return sum(tensor.size * tensor.element_size() for tensor in kept.values())


def counted(cfg: Config, shape: tuple[int, ...], passing: tuple[ModelCfg, bool] | None = None) -> dict:
    """Count what `plsc plan` needs of a backbone, in the form of calibration.calibrate's result, without
    times.

    "base" is this process as it is, Paddle imported; "dtype" is that of the activations; "made" is what it
    would keep without recomputation, "tensors" are the trained ones, "macs" of an image, "attention" says
    whether the network has it. "passing" is the result of `count_passing`, None without a network of another
    run.
    """
    base = measure.resident_bytes()
    backbone, sizes = build(cfg, shape)
    recomputed = layers_to_recompute(cfg.Model.recompute, backbone)
    amp = cfg.Global.amp
    with autocast_on_cpu(amp):
        kept = kept_bytes(backbone, shape, recomputed)
        made = kept_bytes(backbone, shape) if recomputed else kept
    weights = 4 * (2 * sizes["parameters"] + sizes["frozen"])
    # A gradient is computed apart, and then added to that of the micro-batch before, or to zeros.
    largest = max((4 * p.size for p in backbone.parameters() if not p.stop_gradient), default=0)
    peak = kept + weights + largest
    return {
        "base": base,
        "head": {},
        "backbone": [[1, None, peak]],
        "kept": kept,
        "dtype": dtype_on_cpu(amp),
        "made": made,
        "passing": count_passing(build_passing(passing[0], shape), shape, passing[1]) if passing else None,
        **_forward_of(backbone, shape),
        **sizes,
    }


def build_passing(cfg: ModelCfg, shape: tuple[int, ...]) -> paddle.nn.Layer:
    """Build a network like that of another run for samples of a shape, with other weights."""
    return cfg.build(embedding_size=cfg.embedding_size, image_shape=shape)


def count_passing(network: paddle.nn.Layer, shape: tuple[int, ...], embeds: bool) -> dict:
    """Count what a network of another run takes: the "numbers" of its weights, bytes that it "holds" of an
    image while it embeds it, 0 where it does not, and "made", "tensors", "macs", "attention" as of `counted`.
    Leaves the network in evaluation mode."""
    made = kept_bytes(network, shape)
    network.eval()
    return {
        "numbers": sum(parameter.size for parameter in parameters_of(network).values()),
        "held": _PASSING * _largest_output(network, shape) if embeds else 0,
        "made": made,
        **_forward_of(network, shape),
    }


@paddle.no_grad()
def _largest_output(network: paddle.nn.Layer, shape: tuple[int, ...]) -> int:
    """Return the bytes of an image in the largest output of a layer."""
    sizes: list[int] = []
    hooks = [
        layer.register_forward_post_hook(lambda *call: sizes.append(4 * call[-1].size))
        for layer in network.sublayers(include_self=True)
    ]
    network(paddle.zeros([1, *shape]))
    for hook in hooks:
        hook.remove()
    return max(sizes)


def _forward_of(network: paddle.nn.Layer, shape: tuple[int, ...]) -> dict:
    """Count what the time of a forward pass depends on."""
    return {
        "tensors": sum(not p.stop_gradient for p in network.parameters()),
        "macs": count(network, shape).macs,
        "attention": any(hasattr(layer, "products") for layer in network.sublayers()),
    }


def build(cfg: Config, shape: tuple[int, ...]) -> tuple[paddle.nn.Layer, dict[str, int]]:
    """Build the backbone of a config for samples of a shape, frozen and synchronised as in training.

    Returns it, and how many numbers its "parameters" have that are trained, and those that are "frozen".
    """
    backbone = build_backbone(cfg.Model, cfg.Global.seed, shape)
    if cfg.Model.sync_batchnorm:
        backbone = synchronise(backbone)
    whole = sum(p.size for p in backbone.parameters() if not p.stop_gradient)
    freeze(cfg.Optimizer, backbone, settings_of(cfg.Optimizer, backbone))
    trained = sum(p.size for p in backbone.parameters() if not p.stop_gradient)
    return backbone, {"parameters": trained, "frozen": whole - trained}
