"""Average a backbone's weights over the steps (Global.ema). Evaluation, export and prediction use the
average.

After update n (counted from 0) with that step's weights w:

    average <- d * average + (1 - d) * w        d = min(decay, n / (n + 9))

The first update copies the weights, so the initial weights have no influence. n / (n + 9) is the ramp of
TensorFlow's ExponentialMovingAverage, (1 + m) / (10 + m), with m = n - 1. Early in a training the weights
improve fast, and the average spans about the last tenth of the steps. From n = 9 decay / (1 - decay),
which is about 90,000 for decay 0.9999, d equals `decay`.

BatchNorm's running statistics are averaged like the parameters, as in timm's ModelEmaV2. An activation
depends on both, and the last steps' statistics do not match earlier steps' weights. A buffer with
whole numbers cannot be averaged, so the backbone's own is used.

Try it: `plsc train -c configs/ -o Global.ema=0.999`.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import paddle

from plsc.training.part import Part, arrays_on_rank_0
from plsc.utils.logging import warn_on_rank_0


class Ema(Part):
    """Averages a backbone's floating-point state, on the backbone's device. Every rank makes one.

    The averaged parameters are the same on every rank. The averaged statistics may differ between ranks, as
    the backbone's statistics do. Rank 0's are used.

    Args:
        backbone: the layer whose state is averaged.
        decay: how much of the average a step keeps, in [0, 1).

    Attributes:
        steps: updates so far.
    """

    name = "ema"

    def __init__(self, backbone: paddle.nn.Layer, decay: float):
        self.steps = 0
        self._backbone = backbone
        self._decay = decay
        self._average: dict[str, paddle.Tensor] = {}  # empty before the first update

    @paddle.no_grad()
    def update(self, run: Any) -> None:
        """Update the average with the weights after an optimizer step."""
        share = paddle.full([1], 1 - min(self._decay, self.steps / (self.steps + 9)), "float32")
        self.steps += 1
        for name, tensor in self._floats():
            average = self._average.get(name)
            if average is None:
                self._average[name] = tensor.clone()
            else:
                average.lerp_(tensor, share.astype(tensor.dtype))

    def _floats(self) -> list[tuple[str, paddle.Tensor]]:
        return [item for item in self._backbone.state_dict().items() if item[1].is_floating_point()]

    @contextlib.contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Give the backbone the averaged weights while the block runs, and restore its own bit for bit.

        The two are exchanged, so no third copy is needed. Before the first update nothing is exchanged.
        """
        pairs = [(tensor, self._average[name]) for name, tensor in self._floats() if name in self._average]
        _exchange(pairs)
        try:
            yield
        finally:
            _exchange(pairs[::-1])  # in reverse order, because two names may share one tensor

    def state_dict(self) -> dict[str, Any]:
        """Return the update count, and the backbone's state by name, with averages instead of weights.

        Before the first update there are no arrays.
        """
        if not self._average:
            return {"steps": self.steps}
        tensors = {**self._backbone.state_dict(), **self._average}
        return {"steps": self.steps, "arrays": arrays_on_rank_0(tensors)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not state:
            warn_on_rank_0("the checkpoint has no averaged weights: Global.ema begins with its weights")
        arrays = state.get("arrays", {})
        self.steps = state.get("steps", 0)
        self._average = {name: paddle.to_tensor(arrays[name]) for name, _ in self._floats() if arrays}


@paddle.no_grad()
def _exchange(pairs: list[tuple[paddle.Tensor, paddle.Tensor]]) -> None:
    for one, other in pairs:
        kept = one.clone()
        paddle.assign(other, output=one)
        paddle.assign(kept, output=other)
