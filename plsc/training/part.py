"""Define a `Part`, which is an addition to a training. EMA and the loss scale are parts, and users can write
their own. docs/extend.md shows one. Try it: list a class such as this one in the config's section Parts.

class GradientNorm(Part):
    name = "gradient_norm"

    def before_update(self, run):
        squares = [p.grad.square().sum() for p in run.backbone.parameters() if p.grad is not None]
        self.numbers = {"gradient_norm": paddle.add_n(squares).sqrt()}
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import paddle

from plsc import distributed
from plsc.data.loader import Batch
from plsc.errors import UserError

# The keys of a row in metrics.jsonl that no part may set, and the other arguments of Progress.update.
_OF_ROWS = frozenset(
    [
        *("step", "epoch", "eval", "loss", "accuracy", "lr", "images_per_second", "data_wait", "skipped"),
        *("self", "images", "waited", "means", "taken"),
    ]
)


class Part:
    """An addition to a training. Every rank makes one, and all ranks call its methods in the same order.

    Every method is optional. The argument `run` is the Trainer.

    Attributes:
        name: the part's name in checkpoints and metrics.jsonl, for its state and its loss.
        numbers: numbers by name, for the next log line and row in metrics.jsonl. They may be tensors. Every
            rank converts them to floats, but only when a row is due. If the row has such a name already, the
            part's name and a slash precede it.
    """

    name: str
    numbers: Mapping[str, Any] = {}

    def start(self, run: Any) -> None:
        """Prepare for this process's first step."""

    def loss(self, batch: Batch, emb_BD: paddle.Tensor) -> paddle.Tensor | None:
        """Compute a loss to add to the head's loss.

        The loss is a scalar: the mean over all ranks' samples, the same on every rank. Its gradient
        with respect to this rank's embeddings must be multiplied by the world size, as the head's is.
        `plsc.distributed.global_mean` does both. The method must not read values from the device, because
        that would make the host wait.

        A step with a non-finite gradient is skipped. The loss's value is not checked.

        Args:
            batch: this rank's samples and labels.
            emb_BD: the batch's embeddings, float32, whose gradient is computed later.

        Returns the loss, or None to add nothing.
        """
        return None

    def before_update(self, run: Any) -> None:
        """Process a step before the weights are updated. The gradients are not clipped yet.

        It is not called for a skipped step.
        """

    def update(self, run: Any) -> None:
        """Process a step after the weights were updated. It is not called for a skipped step."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs: plain values, and arrays by name under "arrays".

        Every rank calls it. Only rank 0's state is written, see `arrays_on_rank_0`.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned. `state` is {} if the checkpoint has no state for this part."""


def arrays_on_rank_0(tensors: Mapping[str, paddle.Tensor]) -> dict[str, np.ndarray]:
    """Copy tensors to the host on rank 0, which writes them. Return {} on the other ranks.

    The tensors must be the same on every rank.
    """
    return {name: tensor.numpy() for name, tensor in tensors.items()} if distributed.rank() == 0 else {}


def loss_of(part: Part, batch: Batch, emb_BD: paddle.Tensor) -> paddle.Tensor | None:
    """Compute a part's loss. Raises UserError if it is neither a scalar with a gradient nor 0 nor None."""
    loss = part.loss(batch, emb_BD)
    if loss is None or (isinstance(loss, paddle.Tensor) and loss.size == 1):
        if loss is not None and loss.stop_gradient and not emb_BD.stop_gradient and loss:
            raise UserError(
                f"{type(part).__name__}.loss gave a number without a gradient, so it would not be trained; "
                "compute it from emb_BD by Paddle's operators, or return None to add nothing",
                key="Parts",
            )
        return loss
    raise UserError(
        f"{type(part).__name__}.loss gave {type(loss).__name__} {[*getattr(loss, 'shape', [])]}; return a "
        "tensor with one number, such as plsc.distributed.global_mean makes, or None",
        key="Parts",
    )


def numbers_of(parts: Sequence[Part]) -> dict[str, Any]:
    """Return the numbers of all parts by name. None of them replaces another number of the row."""
    numbers: dict[str, Any] = {}
    for part in parts:
        for name, value in part.numbers.items():
            taken = name in numbers or name in _OF_ROWS or name.startswith("loss/")
            numbers[f"{part.name}/{name}" if taken else name] = value
    return numbers


def state_of(owner: Any) -> dict[str, Any]:
    """Return a part's or another object's state, for a checkpoint.

    Raises UserError if the state has anything other than plain values and arrays.
    """
    state = owner.state_dict()
    try:
        json.dumps({key: value for key, value in state.items() if key != "arrays"}, allow_nan=False)
        [array.dtype for array in state.get("arrays", {}).values()]  # a value without a dtype is not an array
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(
            f"{type(owner).__name__}.state_dict: {error}; return a dict of plain values, with "
            "arrays by name under 'arrays'",
            key="Parts",
        ) from error
    return state
