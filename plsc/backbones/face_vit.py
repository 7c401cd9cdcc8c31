"""FaceViT: a vision transformer that computes the embedding from all patches, in three sizes.

    images [B, channels, H, W] float32, normalised -> embeddings [B, D] float32, not normalised

Patches with 9 x 9 pixels become tokens, and transformer blocks mix them. Two linear layers with batch norms
then compute the embedding from all tokens, concatenated. There is no class token. In training some patches
are hidden. Sources: Dosovitskiy et al., "An Image is Worth 16x16 Words" (2020), and An et al., "Partial FC"
(2021), section 4. The layers have the same names as in InsightFace's arcface_torch (vit_t, vit_s, vit_b) and
PLSC 2.4 (FaceViT_*_patch9_112).
"""

import paddle
from paddle import nn

from plsc.backbones.layers import Conv2D, Dropout, by_cpu_kernels, enter, leave, random_scores
from plsc.backbones.layers.transformer import LayerNorm, Linear, add_branch, add_positions, attention
from plsc.backbones.ranges import Share
from plsc.errors import UserError

HEADS = 8
_start = nn.initializer.Normal(0.0, 0.02)


def _linear(inputs: int, outputs: int, bias: bool = True, limited: bool = False) -> Linear:
    bias_attr = nn.initializer.Constant(0.0) if bias else False
    return Linear(inputs, outputs, weight_attr=_start, bias_attr=bias_attr, limited=limited)


class _Attention(nn.Layer):
    """Softmax attention with 8 heads over tokens [B, N, W]."""

    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.width = width
        self.qkv = _linear(width, 3 * width, bias=False)
        self.proj = _linear(width, width)
        self.dropout = Dropout(dropout)

    def forward(self, x):
        return self.dropout(self.proj(attention(self.qkv(x), HEADS)))


class _Mlp(nn.Layer):
    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.fc1 = _linear(width, 4 * width, limited=True)
        self.fc2 = _linear(4 * width, width)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)

    def forward(self, x):
        return self.dropout2(self.fc2(self.dropout1(self.fc1(x))))


class _Block(nn.Layer):
    def __init__(self, width: int, dropout: float, drop_path: float):
        super().__init__()
        self.norm1 = LayerNorm(width)
        self.attn = _Attention(width, dropout)
        self.norm2 = LayerNorm(width)
        self.mlp = _Mlp(width, dropout)
        # Each image keeps or loses a whole branch. There is one layer per branch, since a layer has one mask.
        self.drop_path1 = Dropout(drop_path, axis=0)
        self.drop_path2 = Dropout(drop_path, axis=0)

    def forward(self, x):
        x = add_branch(x, self.attn(self.norm1(x)), self.drop_path1)
        return add_branch(x, self.mlp(self.norm2(x)), self.drop_path2)


class _Patches(nn.Layer):
    """Converts [B, channels, H, W] to patches [B, N, width]. Rows and columns that fill no patch are
    ignored."""

    def __init__(self, channels: int, side: int, width: int):
        super().__init__()
        bound = (channels * side**2) ** -0.5
        start = nn.initializer.Uniform(-bound, bound)
        self.proj = Conv2D(channels, width, side, side, weight_attr=start, bias_attr=start)

    def forward(self, x):
        x = self.proj(enter(x))
        return x.flatten(1, 2) if by_cpu_kernels(x) else x.flatten(2).transpose([0, 2, 1])


class FaceViT(nn.Layer):
    """Base class for the three sizes.

    Args:
        embedding_size: D.
        image_shape: the images' (channels, H, W). UserError if they have fewer than two patches.
        dropout: share of numbers that are dropped in training, among the tokens and in the blocks.
        drop_path: probability that the last block skips an image in training (stochastic depth). It is 0 for
            the first block and grows evenly in between.
        mask_ratio: share of patches that the blocks do not see in training. A learned token replaces them
            after the last block.
    """

    width: int  # a token's size
    depth: int  # block count
    side = 9  # a patch's side, in pixels
    recomputed = ("blocks",)

    def __init__(
        self,
        embedding_size: int = 512,
        image_shape: tuple[int, int, int] = (3, 112, 112),
        dropout: Share = 0.0,
        drop_path: Share = 0.1,
        mask_ratio: Share = 0.1,
    ):
        super().__init__()
        channels, height, width = image_shape
        count = (height // self.side) * (width // self.side)
        if count < 2:
            raise UserError(
                f"FaceViT needs images of at least two patches of {self.side} x {self.side} "
                f"pixels (got {height} x {width})",
                key="Model.name",
            )
        self.kept = max(1, int(count * (1 - mask_ratio))) if mask_ratio else count
        self.patch_embed = _Patches(channels, self.side, self.width)
        self.pos_embed = self.create_parameter([1, count, self.width], default_initializer=_start)
        if self.kept < count:
            self.mask_token = self.create_parameter([1, 1, self.width], default_initializer=_start)
        self.dropout = Dropout(dropout)
        rates = [drop_path * number / (self.depth - 1) for number in range(self.depth)]
        self.blocks = nn.LayerList([_Block(self.width, dropout, rate) for rate in rates])
        self.norm = LayerNorm(self.width)
        self.feature = nn.Sequential(
            _linear(self.width * count, self.width, bias=False),
            nn.BatchNorm1D(self.width, epsilon=2e-5),
            _linear(self.width, embedding_size, bias=False),
            nn.BatchNorm1D(embedding_size, epsilon=2e-5),
        )

    def forward(self, images_BCHW: paddle.Tensor) -> paddle.Tensor:
        x = self.dropout(add_positions(self.patch_embed(images_BCHW), self.pos_embed))
        hides = self.training and self.kept < self.pos_embed.shape[1]
        if hides:
            order_BN = random_scores(self, *x.shape[:2]).argsort(1)
            x = _pick(x, order_BN[:, : self.kept])
        for block in self.blocks:
            x = block(x)
        x = leave(self.norm(x))
        if hides:
            hidden = self.mask_token.expand([x.shape[0], order_BN.shape[1] - self.kept, self.width])
            x = _pick(paddle.concat([x, hidden], 1), order_BN.argsort(1))
        return self.feature(x.flatten(1))


def _pick(tokens_BNW: paddle.Tensor, which_BM: paddle.Tensor) -> paddle.Tensor:
    """Return the tokens that `which_BM` numbers in each image, [B, M, W]."""
    images, count, width = tokens_BNW.shape
    # gather copies whole rows, which is faster than take_along_axis.
    rows = which_BM + count * paddle.arange(images).unsqueeze(1)
    return tokens_BNW.reshape([-1, width]).gather(rows.flatten()).reshape([images, -1, width])


class FaceViT_tiny(FaceViT):
    """FaceViT with 12 blocks and tokens with 256 numbers."""

    width, depth = 256, 12


class FaceViT_small(FaceViT):
    """FaceViT with 12 blocks and tokens with 512 numbers."""

    width, depth = 512, 12


class FaceViT_base(FaceViT):
    """FaceViT with 24 blocks and tokens with 512 numbers."""

    width, depth = 512, 24
