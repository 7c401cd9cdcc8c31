"""FaceViT: every number against plain NumPy, hidden patches, its initial weights, names and sizes, and what
it refuses."""

import numpy as np
import paddle

from plsc.backbones.face_vit import FaceViT_tiny
from tests.backbones.numpy_layers import assert_same, batch_norm, scatter
from tests.helpers.refusals import refusal
from tests.helpers.small_networks import SmallFaceViT


def build(**options):
    paddle.seed(0)
    return SmallFaceViT(**{"embedding_size": 6, "image_shape": (3, 20, 29), **options})


def by_hand(state, images, patch=9):
    """[2, 3, H, W]: one image, one patch, one head at a time."""

    def linear(x, name):
        return x @ state[f"{name}.weight"] + state.get(f"{name}.bias", 0)

    def layer_norm(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * state[f"{name}.weight"] + state[f"{name}.bias"]

    def attention(x, name):
        query, key, value = np.split(linear(x, f"{name}.qkv"), 3, axis=1)
        heads = []
        for part in range(8):
            q, k, v = (y[:, part * 2 : part * 2 + 2] for y in (query, key, value))
            weights = np.exp(q @ k.T / np.sqrt(2))
            heads.append(weights / weights.sum(1, keepdims=True) @ v)
        return linear(np.concatenate(heads, axis=1), f"{name}.proj")

    kernel, rows = state["patch_embed.proj.weight"].reshape(16, -1), []
    for image in images:
        x = np.stack(
            [
                kernel @ image[:, top : top + patch, left : left + patch].reshape(-1)
                for top in range(0, image.shape[1] - patch + 1, patch)
                for left in range(0, image.shape[2] - patch + 1, patch)
            ]
        )
        x = x + state["patch_embed.proj.bias"] + state["pos_embed"][0]
        for number in range(2):
            x = x + attention(layer_norm(x, f"blocks.{number}.norm1"), f"blocks.{number}.attn")
            y = linear(layer_norm(x, f"blocks.{number}.norm2"), f"blocks.{number}.mlp.fc1").clip(0, 6)
            x = x + linear(y, f"blocks.{number}.mlp.fc2")
        rows.append(layer_norm(x, "norm").reshape(-1))
    x = batch_norm(linear(np.stack(rows), "feature.0"), state, "feature.1", 2e-5)
    return batch_norm(linear(x, "feature.2"), state, "feature.3", 2e-5)


def test_the_numbers_are_those_of_plain_numpy():
    net = build()
    state = scatter(net)
    images = np.random.default_rng(1).normal(size=(2, 3, 20, 29))
    assert_same(net, by_hand, state, images, terms=256)


def test_hidden_patches_change_nothing_and_the_token_stands_for_them():
    """Without blocks' mixing a kept patch keeps its place, and the others are the token."""
    net = build(mask_ratio=0.5, drop_path=0.0, image_shape=(3, 36, 36))
    assert net.kept == 8
    seen = {}
    net.blocks = paddle.nn.LayerList([])
    net.norm = paddle.nn.Identity()
    net.feature.register_forward_pre_hook(lambda layer, args: seen.update(flat=args[0].numpy()))
    images = paddle.randn([3, 3, 36, 36])
    net.eval()
    net(images)
    tokens = seen["flat"].reshape(3, 16, 16)
    net.train()
    net(images)
    hidden = (seen["flat"].reshape(3, 16, 16) == net.mask_token.numpy()).all(-1)
    assert (hidden.sum(1) == 8).all() and len(np.unique(hidden, axis=0)) == 3
    assert np.array_equal(seen["flat"].reshape(3, 16, 16)[~hidden], tokens[~hidden])


def test_branches_are_dropped_more_often_with_depth():
    net = build(drop_path=0.5)
    assert [block.drop_path2.p for block in net.blocks] == [0.0, 0.5]


def test_the_initial_weights_are_those_of_the_source():
    for name, parameter in build(image_shape=(3, 90, 90)).named_parameters():
        value = parameter.numpy()
        if name == "patch_embed.proj.weight":
            assert 0.9 < np.abs(value).max() * np.sqrt(3 * 81) <= 1.001
        elif value.ndim > 1:
            assert abs(value.std() / 0.02 - 1) < 5 / np.sqrt(value.size), name
        elif name.endswith("bias") and "patch" not in name:
            assert not value.any(), name


def test_the_trained_parameters_at_112_are_those_of_the_source():
    """arcface_torch's "vit_t" with 512 outputs."""
    assert sum(p.size for p in FaceViT_tiny().parameters() if not p.stop_gradient) == 19_137_792


def test_images_of_one_patch_are_refused():
    assert refusal(build, image_shape=(3, 17, 9)) == (
        "Model.name: FaceViT needs images of at least two patches of 9 x 9 pixels (got 17 x 9)"
    )
