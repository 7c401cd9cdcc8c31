"""Plain NumPy layers in float64, by a network's state dict: what the backbones are compared with."""

import numpy as np
import paddle
from numpy.lib.stride_tricks import sliding_window_view

from tests.helpers.bounds import assert_within, perturbed


def scatter(net, seed=0):
    """Give every parameter and running statistic a random value, so that none hides. Set evaluation mode."""
    random = np.random.default_rng(seed)
    for name, tensor in net.state_dict().items():
        value = random.normal(0, 0.2, tensor.shape)
        if name.endswith(("_variance", "bn.weight")) or (tensor.ndim == 1 and name.endswith("weight")):
            value = np.abs(value) + 0.5
        elif tensor.ndim > 1:
            value *= 5 / np.sqrt(np.prod(tensor.shape[1:]))
        tensor.set_value(value.astype(np.float32))
    net.eval()
    return {name: tensor.numpy().astype(np.float64) for name, tensor in net.state_dict().items()}


def convolve(x, weight, stride=1, padding=0):
    """Convolve [B, C, H, W] with [O, C / groups, h, w]. The two shapes determine the groups."""
    groups = x.shape[1] // weight.shape[1]
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = sliding_window_view(x, weight.shape[2:], axis=(2, 3))[:, :, ::stride, ::stride]
    parts = zip(np.split(windows, groups, 1), np.split(weight, groups, 0))
    return np.concatenate(
        [np.einsum("nchwij,ocij->nohw", part, w, optimize=True) for part, w in parts], axis=1
    )


def batch_norm(x, state, name, epsilon=1e-5):
    """Batch norm by its running statistics, for maps or vectors."""
    gain, bias, mean, variance = (
        state[f"{name}.{part}"].reshape(1, -1, *[1] * (x.ndim - 2))
        for part in ("weight", "bias", "_mean", "_variance")
    )
    return (x - mean) / np.sqrt(variance + epsilon) * gain + bias


def prelu(x, state, name):
    return np.where(x > 0, x, state[f"{name}._weight"].reshape(1, -1, 1, 1) * x)


def assert_same(net, reference, state, images, terms=4608):
    """Assert that `net` gives the numbers of `reference(state, images)`. terms: how many its longest sum
    has."""
    with paddle.no_grad():
        got = net(paddle.to_tensor(images.astype(np.float32))).numpy()
    want, bound = perturbed(reference, state, images, terms=terms)
    assert np.ptp(want) > 0.1
    assert_within(got, want, bound)
