"""Steps whose loss or gradients are no finite numbers: skipped by all ranks alike, named, and kept to be looked at.

A skipped step leaves no trace in what is trained: weights, momentum, BatchNorm's running statistics and a margin's memory stay bit
for bit what they were; only the step number goes on. Ranks agree by the sum of a 0/1 flag: Gloo's MAX and MIN drop a NaN.

Try it: `pytest tests/test_divergence.py`; what a user sees is in docs/resume.md.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import paddle
from paddle import _C_ops

from plsc import distributed, kernels, log
from plsc.atomic_write import replace_file
from plsc.errors import UserError
from plsc.half import float32_of
from plsc.heads.softmax import HeadOutput, SoftmaxHead
from plsc.heads.window import StoredRows
from plsc.kernels.rows import sum_of_squares
from plsc.timing import timer

DUMPS = 20  # batches that one process writes; a run that skips now and then for weeks must not fill the disk

LOW_RATE = 0.005  # below it a run does not diverge by its steps; of SGD with momentum, where 0.1 is usual

_BLOCK = 65_536  # rows of a bank that is not in memory, looked at together


class DivergedError(UserError):
    """Too many steps in a row had to be skipped. `what`: what was not finite in the last."""

    def __init__(self, text: str, what: str):
        super().__init__(text)
        self.what = what


def finite(tensors: Iterable[paddle.Tensor]) -> bool:
    """Whether every number is finite. One sum of squares over all of them; each tensor is looked at only where that sum is not
    finite, since squares of finite numbers may be too large."""
    tensors = [tensor for tensor in tensors if tensor.size]
    if not tensors:
        return True
    if kernels.library() and all(map(_for_kernels, tensors)):
        total = sum(map(sum_of_squares, tensors))
    else:
        total = paddle.add_n([_C_ops.squared_l2_norm(tensor).astype("float32") for tensor in tensors]).item()
    return math.isfinite(total) or not any(map(_kind, tensors))


def _for_kernels(tensor: paddle.Tensor) -> bool:
    return tensor.place.is_cpu_place() and tensor.dtype == paddle.float32 and tensor.is_contiguous()


def finite_arrays(arrays: Iterable[np.ndarray | StoredRows]) -> bool:
    """The same of numpy arrays, and of a bank's rows that are not in memory: those are read only if some may not be finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return all(
            np.isfinite(np.vdot(block, block)) or np.isfinite(block).all()
            for array in arrays
            if not getattr(array, "finite", False)
            for block in _blocks(array)
        )


def _blocks(array: np.ndarray | StoredRows) -> Iterator[np.ndarray]:
    if isinstance(array, np.ndarray):
        yield array
    else:
        yield from (float32_of(array[start : start + _BLOCK]) for start in range(0, len(array), _BLOCK))


class Divergence:
    """Takes the backward pass of each step, and undoes a step that must be skipped. Every rank makes one.

    Args:
        backbone: the bare layer, not its data parallel wrapper.
        folder: where the batches of skipped steps go.
        max_skipped: as many in a row end the run.
        name: index of a sample -> what a person would call it.

    Attributes: `skipped`, steps so far; `in_a_row`, of them the last ones; `rollbacks`, how often the run went back (rollback.py).
    """

    def __init__(
        self,
        backbone: paddle.nn.Layer,
        head: SoftmaxHead,
        folder: str | Path,
        max_skipped: int,
        name: Callable[[int], str],
    ):
        self.backbone, self.head, self.folder = backbone, head, Path(folder)
        self.max_skipped, self.name = max_skipped, name
        self.skipped = self.in_a_row = self.rollbacks = self._dumped = 0
        # What a forward pass changes: BatchNorm's running statistics, which have no gradient.
        self._statistics = [tensor for tensor in backbone.state_dict().values() if tensor.stop_gradient]

    def state(self) -> dict[str, int]:
        """What a checkpoint keeps."""
        return {"skipped": self.skipped, "in_a_row": self.in_a_row, "rollbacks": self.rollbacks}

    def load_state(self, state: dict) -> None:
        """Take over what `state` gave, from among other things of a checkpoint."""
        for name in self.state():
            setattr(self, name, state.get(name, 0))

    def remember(self) -> None:
        """Call it before the forward pass: keeps what that pass changes."""
        self._kept = [tensor.clone() for tensor in self._statistics]
        self._memory = self.head.margin.state() if self.head.margin else {}

    def backward(self, out: HeadOutput, emb_BD: paddle.Tensor) -> bool:
        """The backward pass; whether loss and gradients are finite on every rank. If not, call `skip`.

        One all_reduce of one number; none where the loss is not finite, which is the same number on every rank.
        """
        self._out, self._emb_BD, self._emb_grad_BD = out, emb_BD, None
        ok = math.isfinite(out.loss.item())
        if ok:
            emb_BD.register_hook(self._see_gradient)
            with timer.part("backward"):
                out.loss.backward()
            with timer.part("check"):
                ok = distributed.every(finite(self._gradients().values()))
        if ok:
            self.in_a_row = 0
            self._out = self._emb_BD = self._emb_grad_BD = None
        return ok

    def _see_gradient(self, grad_BD: paddle.Tensor) -> None:
        self._emb_grad_BD = grad_BD

    def _gradients(self) -> dict[str, paddle.Tensor]:
        """All gradients of the step on this rank, in the order of the forward pass; the backbone's are means over the ranks."""
        found = {f"gradient of {name}": grad for name, grad in self._backbone_gradients().items()}
        if self._emb_grad_BD is not None:
            found["gradient of the embeddings"] = self._emb_grad_BD
        if self.head.bank.selected:  # else they are those of an earlier step
            for name, grad in self.head.bank.gradients().items():
                found[f"gradient of head.{name}"] = grad
        return found

    def _backbone_gradients(self) -> dict[str, paddle.Tensor]:
        return {name: p.grad for name, p in self.backbone.named_parameters() if p.grad is not None}

    def skip(
        self,
        step: int,
        learning_rate: float,
        images: np.ndarray,
        labels: np.ndarray,
        indices: np.ndarray,
        again: Callable[[], paddle.Tensor],
    ) -> None:
        """Undo the step number `step` (from 1) and say why. Every rank calls it.

        Args:
            images, labels, indices: this rank's batch, as the loader gave it.
            again: runs the forward pass of the bare backbone once more, with the same random numbers -> emb [B, D].

        Raises: DivergedError, on every rank, at the `max_skipped`th step in a row.
        """
        shared = _last_bad(self._gradients())
        own = self._culprit(indices, again)
        for tensor, kept in zip(self._statistics, self._kept):
            paddle.assign(kept, output=tensor)
        if self.head.margin:
            self.head.margin.load_state(self._memory)
        self.skipped, self.in_a_row = self.skipped + 1, self.in_a_row + 1
        everyones = distributed.gather_objects(own)
        # A bad embedding may make every rank's losses bad, by what a margin remembers: only the earliest place counts.
        first = min((found[0] for found in everyones if found), default=None)
        bad = [rank for rank, found in enumerate(everyones) if found and found[0] == first]
        what = f"{everyones[bad[0]][1]} on rank {bad[0]}" if bad else f"{shared} in the sum over the ranks"
        rate = f"learning rate {learning_rate:.4g}"
        if distributed.rank() == 0:
            log.get_logger().warning(
                f"step {step}: {what} ({rate}); step skipped ({self.in_a_row} of {self.max_skipped} in a row)"
            )
        if distributed.rank() in bad or not bad:
            self._dump(step, learning_rate, own[1] if bad else what, images, labels, indices)
        self._out = self._emb_BD = self._emb_grad_BD = None
        if self.in_a_row >= self.max_skipped:
            raise DivergedError(
                f"{what} at step {step} ({rate}), step {self.in_a_row} in a row that had to be skipped; the checkpoints are as "
                f"they were, the batches in {self.folder}: {self._remedy(step, learning_rate)}",
                what,
            )

    def _remedy(self, step: int, learning_rate: float) -> str:
        if self.in_a_row < step and learning_rate >= LOW_RATE:
            return "lower LRScheduler.learning_rate, lengthen its warm-up, or set Optimizer.clip_norm"
        why = "no step has been finite yet" if self.in_a_row >= step else "the learning rate is low"
        return (
            f"{why}, so a lower learning rate will hardly help; look in the network for a division by 0, a log or a root of 0, "
            "and in the images of those batches"
        )

    def _culprit(self, indices: np.ndarray, again: Callable[[], paddle.Tensor]) -> tuple[int, str] | None:
        """What went wrong on this rank, nearest to the cause: how early in a step that is, and "gradient of stages.0.0.weight is
        NaN"; None: nothing."""
        for name, tensor in self.backbone.named_parameters():
            if not tensor.stop_gradient and (kind := _kind(tensor)):
                return 0, f"weight {name} is {kind}"
        for name, array in self.head.bank.state().items():
            if not finite_arrays([array]):
                return (
                    0,
                    f"weight head.{name} is {'NaN' if any(np.isnan(block).any() for block in _blocks(array)) else 'inf'}",
                )
        for place, values in enumerate((self._emb_BD, self._out.losses_B), start=1):
            for row, index in enumerate(indices.tolist()):
                if kind := _kind(values[row]):
                    return place, f"{('embedding', 'loss')[place - 1]} of {self.name(index)} is {kind}"
        if self._emb_grad_BD is None:
            return None  # another rank's loss is not finite
        own = {name: grad for name, grad in self._gradients().items() if not self._is_shared(name)}
        if found := _last_bad(own):
            return 3, found
        # Data parallel has spread a NaN to all ranks: only the gradients before their mean tell whose it was.
        for parameter in self.backbone.parameters():
            parameter.clear_gradient()
        again().backward(self._emb_grad_BD)
        found = _last_bad({f"gradient of {name}": grad for name, grad in self._backbone_gradients().items()})
        return (3, found) if found else None

    def _is_shared(self, name: str) -> bool:
        of_head = name.startswith("gradient of head.")
        return not (name == "gradient of the embeddings" or (of_head and self.head.sharded))

    def _dump(self, step, learning_rate, what, images, labels, indices) -> None:
        """The batch of this rank: step-XXXXXXXX-rankR.json for people, .npz with images, labels and indices."""
        if self._dumped == DUMPS:
            return
        self._dumped += 1
        pixels, losses = images.astype(np.float32), self._out.losses_B.numpy().astype(float)
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.linalg.norm(self._emb_BD.numpy().reshape(len(labels), -1), axis=1).astype(float)
        found = {
            "step": step,
            "rank": distributed.rank(),
            "what": what,
            "learning_rate": learning_rate,
            "loss": _number(self._out.loss.item()),
            "pixels": {key: float(getattr(pixels, key)()) for key in ("min", "max", "mean", "std")},
            "samples": [
                {
                    "name": self.name(index),
                    "index": index,
                    "label": label,
                    "loss": loss,
                    "embedding_norm": norm,
                }
                for index, label, loss, norm in zip(
                    indices.tolist(), labels.tolist(), map(_number, losses), map(_number, norms)
                )
            ],
        }
        packed = io.BytesIO()
        np.savez(packed, images=images, labels=labels, indices=indices)
        path = self.folder / f"step-{step:08d}-rank{distributed.rank()}.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(path.with_suffix(".npz"), packed.getvalue())
            replace_file(path, json.dumps(found, indent=1, allow_nan=False).encode())
        except OSError as error:  # a full disk is no reason to end the run either
            log.get_logger().error(f"{path}: the batch is not written ({error}); training goes on")


def _kind(tensor: paddle.Tensor) -> str | None:
    if paddle.isnan(tensor).any().item():
        return "NaN"
    return "inf" if paddle.isinf(tensor).any().item() else None


def _last_bad(tensors: dict[str, paddle.Tensor]) -> str | None:
    """The last tensor in the order of the forward pass that is not finite: the backward pass comes to it first."""
    for name, tensor in reversed(tensors.items()):
        if kind := _kind(tensor):
            return f"{name} is {kind}"
    return None


def _number(value: float) -> float | str:
    """JSON knows no NaN."""
    return value if math.isfinite(value) else str(value)
