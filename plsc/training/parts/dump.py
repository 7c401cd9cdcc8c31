"""Find why a step was skipped, and write its batch to disk for a person to look at.

Try it: `pytest tests/training/parts/test_divergence.py`; what a user sees is in docs/resume.md.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle

from plsc import distributed
from plsc.heads.softmax import SoftmaxHead
from plsc.training.finite import blocks_of, finite_arrays, kind_of
from plsc.training.step import TakenStep
from plsc.training.verdict import backbone_gradients, gradients_of
from plsc.utils.atomic_write import replace_file
from plsc.utils.logging import get_logger

DUMPS = 20  # batches that one process writes; a run that skips now and then for weeks must not fill the disk


class Cause(NamedTuple):
    """The cause of a skipped step. text: the same on every rank. here: what went wrong on this rank; None:
    nothing did."""

    text: str
    here: str | None


def find_cause(
    step: TakenStep,
    backbone: paddle.nn.Layer,
    head: SoftmaxHead,
    name: Callable[[int], str],
    own_backward: Callable[[], None],
) -> Cause:
    """Find the first value of a step that was not finite, and its rank. Every rank calls it, while the
    gradients of that step are there, and the weights that it began with.

    Args:
        backbone: the bare layer. Its gradients may be overwritten.
        name: index of a sample -> its name for people.
        own_backward: computes the backbone's gradients once more, of this rank's samples alone.
    """
    shared = _bad_extra(step) or _last_bad(gradients_of(backbone, head, step.emb_BD))
    own = _cause_here(step, backbone, head, name)
    if math.isfinite(step.out.loss.item()) and not _bad_extra(step):  # the same numbers on every rank
        # Data parallel has spread a NaN to all ranks: only the gradients before their mean tell whose it was.
        own_backward()  # by all ranks, since a layer may call collectives
        bad = _last_bad({f"gradient of {key}": grad for key, grad in backbone_gradients(backbone).items()})
        own = own or ((3, bad) if bad else None)
    causes = distributed.gather_objects(own)
    # A bad embedding may make every rank's losses bad, by what a margin remembers: only the earliest place
    # counts.
    first = min((cause[0] for cause in causes if cause), default=None)
    bad_ranks = [rank for rank, cause in enumerate(causes) if cause and cause[0] == first]
    if not bad_ranks:
        # Gradients may all be finite where their loss is not, as with a scale of 1e38.
        text = f"{shared or 'the loss is not finite'} in the sum over the ranks"
        return Cause(text, text)
    text = f"{causes[bad_ranks[0]][1]} on rank {bad_ranks[0]}"
    return Cause(text, own[1] if distributed.rank() in bad_ranks else None)


def _cause_here(
    step: TakenStep,
    backbone: paddle.nn.Layer,
    head: SoftmaxHead,
    name: Callable[[int], str],
) -> tuple[int, str] | None:
    """Find the earliest thing that went wrong on this rank before the backbone's backward pass.

    Its place in the order of a step, and a text as "embedding of 7 is NaN". None: nothing.
    """
    for parameter, tensor in backbone.named_parameters():
        if not tensor.stop_gradient and (kind := kind_of(tensor)):
            return 0, f"weight {parameter} is {kind}"
    for row_array, array in head.bank.state().items():
        if not finite_arrays([array]):
            kind = "NaN" if any(np.isnan(block).any() for block in blocks_of(array)) else "inf"
            return 0, f"weight head.{row_array} is {kind}"
    if step.batch.images.dtype.kind == "f":  # whole numbers are finite
        for row, index in enumerate(step.batch.indices.tolist()):
            if kind := kind_of(paddle.to_tensor(step.batch.images[row])):
                return 1, f"input of {name(index)} is {kind}"
    for place, what, values in ((1, "embedding", step.emb_BD), (2, "loss", step.out.losses_B)):
        for row, index in enumerate(step.batch.indices.tolist()):
            if kind := kind_of(values[row]):
                return place, f"{what} of {name(index)} is {kind}"
    if not math.isfinite(step.out.loss.item()):
        return None  # another rank's loss is not finite
    if bad := _bad_extra(step):  # a mean over the ranks: the gradient tells whose samples made it so
        return (3, bad) if kind_of(step.emb_BD.grad) else None
    gradients = gradients_of(backbone, head, step.emb_BD)
    if bad := _last_bad({key: grad for key, grad in gradients.items() if not _is_shared(key, head)}):
        return 3, bad
    return None


def _bad_extra(step: TakenStep) -> str | None:
    """Describe the first loss beside the head's that is not finite, by its key in metrics.jsonl; the same on
    every rank."""
    for title, loss in step.losses.items():
        if kind := kind_of(loss):
            return f"loss/{title} is {kind}"
    return None


def _is_shared(key: str, head: SoftmaxHead) -> bool:
    """Say whether a gradient is summed over the ranks: such a one does not show whose samples are to
    blame."""
    own_rows = key.startswith("gradient of head.") and head.spec.sharded
    return not (key == "gradient of the embeddings" or own_rows)


def _last_bad(tensors: dict[str, paddle.Tensor]) -> str | None:
    """Describe the last tensor in the order of the forward pass that is not finite: the backward pass
    computes it first."""
    for name, tensor in reversed(tensors.items()):
        if kind := kind_of(tensor):
            return f"{name} is {kind}"
    return None


class DumpWriter:
    """Writes the batches of skipped steps of this rank: step-XXXXXXXX-rankR.json for people, .npz with
    images, labels and indices.

    Args:
        name: index of a sample -> its name for people.
    """

    def __init__(self, folder: str | Path, name: Callable[[int], str]):
        self.folder = Path(folder)
        self._name = name
        self._written = 0

    def write(self, step: TakenStep, what: str) -> None:
        """Write the batch of a step, in which `what` was wrong; nothing after the first DUMPS. A full disk is
        logged, and no error."""
        if self._written == DUMPS:
            return
        self._written += 1
        packed = io.BytesIO()
        np.savez(packed, images=step.batch.images, labels=step.batch.labels, indices=step.batch.indices)
        text = json.dumps(self._describe(step, what), indent=1, allow_nan=False)
        path = self.folder / f"step-{step.number:08d}-rank{distributed.rank()}.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(path.with_suffix(".npz"), packed.getvalue())
            replace_file(path, text.encode())
        except OSError as error:  # a full disk is no reason to end the run either
            get_logger().error(f"{path}: the batch is not written ({error}); training goes on")

    def _describe(self, step: TakenStep, what: str) -> dict[str, Any]:
        samples = step.batch.images.astype(np.float32)
        losses = step.out.losses_B.numpy().astype(float)
        with np.errstate(over="ignore", invalid="ignore"):
            values = {key: _number(float(getattr(samples, key)())) for key in ("min", "max", "mean", "std")}
            norms = np.linalg.norm(step.emb_BD.numpy().reshape(len(step.batch.labels), -1), axis=1).astype(
                float
            )
        rows = zip(
            step.batch.indices.tolist(), step.batch.labels.tolist(), map(_number, losses), map(_number, norms)
        )
        return {
            "step": step.number,
            "rank": distributed.rank(),
            "what": what,
            "learning_rate": step.learning_rate,
            "loss": _number(step.out.loss.item()),
            **{f"loss/{title}": _number(loss.item()) for title, loss in step.losses.items()},
            "values": values,
            "samples": [
                {
                    "name": self._name(index),
                    "index": index,
                    "label": label,
                    "loss": loss,
                    "embedding_norm": norm,
                }
                for index, label, loss, norm in rows
            ],
        }


def _number(value: float) -> float | str:
    """Turn a number that is not finite into text: JSON has no NaN."""
    return value if math.isfinite(value) else str(value)
