"""Define the backbones in PyTorch, with the same layers under the same names.

    net = build("IResNet18", embedding_size=512, image_shape=(3, 112, 112))
    copy_weights(net, weights)  # the Paddle network's weights, by Paddle's names

This module imports torch, so it must be imported in a process without Paddle. There is no dropout, no hidden
patch and no skipped branch, since the networks that are compared do not use them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

DEPTHS = {
    "IResNet18": (2, 2, 2, 2),
    "IResNet34": (3, 4, 6, 3),
    "IResNet50": (3, 4, 14, 3),
    "IResNet100": (3, 13, 30, 3),
}
WIDTHS = {"FaceViT_tiny": 256, "FaceViT_small": 512}


class _IResNetBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.prelu = nn.PReLU(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, stride, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        shortcut = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
        self.downsample = nn.Sequential(*(shortcut if stride != 1 else []))

    def forward(self, x):
        out = self.prelu(self.bn2(self.conv1(self.bn1(x))))
        return self.bn3(self.conv2(out)) + self.downsample(x)


class IResNet(nn.Module):
    """plsc/backbones/iresnet.py."""

    def __init__(self, blocks: tuple[int, ...], embedding_size: int, image_shape: tuple[int, int, int]):
        super().__init__()
        channels, height, width = image_shape
        inputs = 64
        self.conv1 = nn.Conv2d(channels, inputs, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inputs)
        self.prelu = nn.PReLU(inputs)
        stages = []
        for depth, outputs in zip(blocks, (64, 128, 256, 512)):
            others = [_IResNetBlock(outputs, outputs, 1) for _ in range(depth - 1)]
            stages.append(nn.Sequential(_IResNetBlock(inputs, outputs, 2), *others))
            inputs = outputs
            height = (height + 1) // 2
            width = (width + 1) // 2
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.bn2 = nn.BatchNorm2d(inputs)
        self.fc = nn.Linear(inputs * height * width, embedding_size)
        self.features = nn.BatchNorm1d(embedding_size)
        self.features.weight.requires_grad = False

    def forward(self, x):
        x = self.prelu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.features(self.fc(self.bn2(x).flatten(1)))


def _small_conv(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs))


class _SmallResidual(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.first = _small_conv(width, width)
        self.second = _small_conv(width, width)

    def forward(self, x):
        return F.relu(x + self.second(F.relu(self.first(x))))


class SmallResNet(nn.Module):
    """plsc/backbones/small_resnet.py with its default widths and blocks."""

    def __init__(self, embedding_size: int, image_shape: tuple[int, int, int]):
        super().__init__()
        channels, height, width = image_shape
        stages = []
        for outputs, depth in zip((16, 32, 64), (0, 1, 1)):
            stages += [_small_conv(channels, outputs, stride=2), nn.ReLU()]
            stages += [_SmallResidual(outputs) for _ in range(depth)]
            channels = outputs
            height = (height + 1) // 2
            width = (width + 1) // 2
        self.stages = nn.Sequential(*stages)
        linear = nn.Linear(channels * height * width, embedding_size, bias=False)
        self.embed = nn.Sequential(nn.Flatten(), nn.Identity(), linear, nn.BatchNorm1d(embedding_size))

    def forward(self, x):
        return self.embed(self.stages(x))


class _Layers(nn.Module):
    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


class _Residual(_Layers):
    def forward(self, x):
        return x + self.layers(x)


def _conv(inputs, outputs, kernel=(1, 1), stride=1, padding=0, groups=1, active=True) -> _Layers:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    return _Layers(conv, nn.BatchNorm2d(outputs), *([nn.PReLU(outputs)] if active else []))


def _bottleneck(inputs: int, outputs: int, inside: int, stride: int) -> list[nn.Module]:
    depthwise = _conv(inside, inside, (3, 3), stride, 1, groups=inside)
    return [_conv(inputs, inside), depthwise, _conv(inside, outputs, active=False)]


def _residuals(width: int, inside: int, count: int) -> _Layers:
    return _Layers(*(_Residual(*_bottleneck(width, width, inside, 1)) for _ in range(count)))


class MobileFaceNet(nn.Module):
    """plsc/backbones/mobilefacenet.py with its default scale and blocks."""

    def __init__(self, embedding_size: int, image_shape: tuple[int, int, int]):
        super().__init__()
        channels, height, width = image_shape
        self.layers = nn.ModuleList(
            [
                _conv(channels, 128, (3, 3), 2, 1),
                _conv(128, 128, (3, 3), 1, 1, groups=64),
                _Layers(*_bottleneck(128, 128, 128, 2)),
                _residuals(128, 128, 4),
                _Layers(*_bottleneck(128, 256, 256, 2)),
                _residuals(256, 256, 6),
                _Layers(*_bottleneck(256, 256, 512, 2)),
                _residuals(256, 256, 2),
            ]
        )
        self.conv_sep = _conv(256, 512)
        self.features = _Layers(
            _conv(512, 512, (-(-height // 16), -(-width // 16)), groups=512, active=False),
            nn.Flatten(),
            nn.Linear(512, embedding_size, bias=False),
            nn.BatchNorm1d(embedding_size),
        )

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.features(self.conv_sep(x))


class _Attention(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        images, tokens, width = x.shape
        qkv = self.qkv(x).reshape(images, tokens, 3, 8, width // 8).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*qkv.unbind(0))
        return self.proj(mixed.transpose(1, 2).reshape(images, tokens, width))


class _Mlp(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.fc2(F.relu6(self.fc1(x)))


class _TransformerBlock(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = _Attention(width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = _Mlp(width)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class _Patches(nn.Module):
    def __init__(self, channels: int, width: int):
        super().__init__()
        self.proj = nn.Conv2d(channels, width, 9, 9)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class FaceViT(nn.Module):
    """plsc/backbones/face_vit.py with 9 x 9 patches, 12 blocks and no hidden patches."""

    def __init__(self, width: int, embedding_size: int, image_shape: tuple[int, int, int]):
        super().__init__()
        channels, height, length = image_shape
        count = (height // 9) * (length // 9)
        self.patch_embed = _Patches(channels, width)
        self.pos_embed = nn.Parameter(torch.zeros(1, count, width))
        self.blocks = nn.Sequential(*(_TransformerBlock(width) for _ in range(12)))
        self.norm = nn.LayerNorm(width)
        self.feature = nn.Sequential(
            nn.Linear(width * count, width, bias=False),
            nn.BatchNorm1d(width, eps=2e-5),
            nn.Linear(width, embedding_size, bias=False),
            nn.BatchNorm1d(embedding_size, eps=2e-5),
        )

    def forward(self, x):
        x = self.blocks(self.patch_embed(x) + self.pos_embed)
        return self.feature(self.norm(x).flatten(1))


def build(name: str, embedding_size: int, image_shape: tuple[int, int, int]) -> nn.Module:
    """Build a backbone's PyTorch version, in training mode."""
    if name in DEPTHS:
        return IResNet(DEPTHS[name], embedding_size, image_shape)
    if name in WIDTHS:
        return FaceViT(WIDTHS[name], embedding_size, image_shape)
    return {"SmallResNet": SmallResNet, "MobileFaceNet": MobileFaceNet}[name](embedding_size, image_shape)


def in_paddles_form(net: nn.Module, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return views of tensors, one for each parameter, by Paddle's names and in Paddle's layout.

    Paddle stores a linear layer's matrix transposed.
    """
    linear = {f"{name}.weight" for name, layer in net.named_modules() if isinstance(layer, nn.Linear)}
    prelu = {f"{name}.weight" for name, layer in net.named_modules() if isinstance(layer, nn.PReLU)}
    return {
        name.replace(".weight", "._weight") if name in prelu else name: tensor.t()
        if name in linear
        else tensor
        for name, tensor in tensors.items()
    }


def copy_weights(net: nn.Module, weights: Mapping[str, np.ndarray]) -> None:
    """Copy the Paddle network's weights. Both networks must have the same parameters."""
    parameters = in_paddles_form(net, dict(net.named_parameters()))
    assert parameters.keys() == weights.keys(), sorted(parameters.keys() ^ weights.keys())
    with torch.no_grad():
        for name, parameter in parameters.items():
            assert list(parameter.shape) == list(weights[name].shape), name
            parameter.copy_(torch.from_numpy(weights[name]))


def gradients(net: nn.Module) -> dict[str, np.ndarray]:
    """Return the gradients by Paddle's names and in Paddle's layout."""
    grads = {name: each.grad for name, each in net.named_parameters() if each.grad is not None}
    return {name: grad.numpy() for name, grad in in_paddles_form(net, grads).items()}
