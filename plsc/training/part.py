"""Define a `Part`: what a user adds to a training, and what EMA and the loss scale are. docs/extend.md shows
one.

class GradientNorm(Part):
    name = "gradient_norm"

    def before_update(self, run):
        squares = [p.grad.square().sum() for p in run.backbone.parameters() if p.grad is not None]
        self.numbers = {"gradient_norm": paddle.add_n(squares).sqrt()}
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle

from plsc import distributed
from plsc.data.loader import Batch
from plsc.errors import UserError


class Part:
    """An addition to a training. Every rank makes one, all ranks call it alike; every method may be left out.

    `run` is the Trainer.

    Attributes: `name`, of its state in a checkpoint and of its loss in metrics.jsonl; `numbers`, by name what
    the next line of the log and row of metrics.jsonl shall have: read on every rank, only when a row is due.
    """

    name: str
    numbers: Mapping[str, Any] = {}

    def start(self, run: Any) -> None:
        """Prepare before the first step of this process."""

    def loss(self, batch: Batch, emb_BD: paddle.Tensor) -> paddle.Tensor | None:
        """Compute a loss to add to the head's: a scalar, the mean over the samples of all ranks, the same on
        every rank.

        Its gradient on this rank's embeddings is multiplied by the number of ranks, as the head's is;
        `plsc.distributed.global_mean` does both. It reads no value of the device. A step with a gradient that
        is not finite is left out; the value itself is not looked at. None: nothing is added.

        Args:
            emb_BD: embeddings of the batch, float32, with their gradient to come.
        """
        return None

    def before_update(self, run: Any) -> None:
        """Take in a step that is not left out, while the gradients are as they were computed: not yet
        clipped."""

    def update(self, run: Any) -> None:
        """Take in a step that was not left out, after the update of the weights."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a run that is resumed must have again: plain values, and under "arrays" arrays by name.
        Every rank calls it, and rank 0's is written: see `arrays_on_rank_0`."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` has returned; {} where the checkpoint has nothing of this part."""


def arrays_on_rank_0(tensors: Mapping[str, paddle.Tensor]) -> dict[str, np.ndarray]:
    """Copy tensors that are the same on every rank to the host, on rank 0 alone, which writes them. {} on the
    other ranks."""
    return {name: tensor.numpy() for name, tensor in tensors.items()} if distributed.rank() == 0 else {}


def loss_of(part: Part, batch: Batch, emb_BD: paddle.Tensor) -> paddle.Tensor | None:
    """Compute the loss of a part; UserError if it is neither a scalar nor None."""
    loss = part.loss(batch, emb_BD)
    if loss is None or (isinstance(loss, paddle.Tensor) and loss.size == 1):
        return loss
    raise UserError(
        f"{type(part).__name__}.loss gave {type(loss).__name__} {[*getattr(loss, 'shape', [])]}; give a "
        "tensor of one number, such as plsc.distributed.global_mean makes, or None",
        key="Parts",
    )


def state_of(owner: Any) -> dict[str, Any]:
    """Return what a checkpoint has of a part, or of another owner; UserError for what it cannot have."""
    state = owner.state_dict()
    try:
        json.dumps({key: value for key, value in state.items() if key != "arrays"}, allow_nan=False)
        [array.dtype for array in state.get("arrays", {}).values()]  # what has no dtype is no array
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(
            f"{type(owner).__name__}.state_dict: {error}; give a dict of plain values, and under 'arrays' "
            "arrays by name",
            key="Parts",
        ) from error
    return state
