"""Pack what a rank knows about a step into one row of numbers, and read all ranks' rows.

A step has one all_gather after its backward pass, and the host waits for the device only there
(`Trainer._summarise_step` lists the exceptions). All that the ranks must agree on is therefore in one row:

    [bad_before_step, bad_backbone, bad_loss, loss, accuracy, alike, waited, signal, replaced, label, ...]

The numbers are float64, which represents a float32, a flag, a count, and a label below 2**53 exactly.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import paddle

from plsc.distributed.device import to_device
from plsc.distributed.paddle_internals import flatten

_NUMBERS = 9  # how many numbers precede the labels


class StepSummary(NamedTuple):
    """What all ranks know about a step, the same on every rank.

    Attributes:
        bad_before_step: whether, on some rank, a parameter or a running statistic in the backbone was not
            finite before the step. The run then ends. Statistics that this step has changed do not count.
            ReLU and max-pooling turn a weight's NaN into numbers with the gradient 0, so the gradients do not
            show the NaN.
        bad_backbone: whether a gradient with respect to the backbone's parameters is not finite on some rank.
        bad_loss: whether, on some rank, the head's loss is not finite, or a gradient with respect to
            embeddings or centres. The embeddings' gradient is that of the sum of the head's loss and the
            parts' losses.
        loss: mean loss over all ranks' samples.
        accuracy: top-1 accuracy over all ranks' samples.
        alike: whether, on every rank, all samples have the same embedding. It is computed only in steps that
            are logged, and is otherwise False.
        waited: seconds that the slowest rank has waited for data since its loader was made.
        signal: number of the signal that asked any rank to stop, or 0.
        replaced: images in this epoch that could not be decoded, summed over the ranks.
        label_N: every rank's labels in the next step, int64, or None at an epoch's end.
    """

    bad_before_step: bool
    bad_backbone: bool
    bad_loss: bool
    loss: float
    accuracy: float
    alike: bool
    waited: float
    signal: int
    replaced: int
    label_N: np.ndarray | None

    @property
    def finite(self) -> bool:
        """Whether none of the three flags is set, so that the step can be taken."""
        return not (self.bad_before_step or self.bad_backbone or self.bad_loss)


class StepRow(NamedTuple):
    """What one rank knows about a step after its backward pass. `StepSummary` explains the fields.

    Attributes:
        bad_before_step, bad_backbone, bad_loss, alike: bool [1], on the device.
        loss, accuracy: one number each, on the device, the same on every rank.
        waited, signal, replaced: this rank's values, on the host.
        label_B: this rank's labels in the next step, int64 [B]. It is empty at an epoch's end.
    """

    bad_before_step: paddle.Tensor
    bad_backbone: paddle.Tensor
    bad_loss: paddle.Tensor
    loss: paddle.Tensor
    accuracy: paddle.Tensor
    alike: paddle.Tensor
    waited: float
    signal: int
    replaced: int
    label_B: np.ndarray

    @paddle.no_grad()
    def pack(self, most: int) -> paddle.Tensor:
        """Pack the row for an all_gather: float64 [1, 9 + most], on the device.

        most: largest number of samples on any rank in the next step. Zeros fill the row of a rank with fewer.
        """
        flags = (self.bad_before_step, self.bad_backbone, self.bad_loss)
        on_device = (*flags, self.loss, self.accuracy, self.alike)
        numbers = [flatten(tensor.detach().astype("float64")) for tensor in on_device]
        of_host = np.zeros(_NUMBERS - len(numbers) + most)
        of_host[:3] = self.waited, self.signal, self.replaced
        of_host[3 : 3 + len(self.label_B)] = self.label_B
        return paddle.concat([*numbers, to_device(of_host)]).unsqueeze(0)


def unpack(rows_WF: np.ndarray, counts: Sequence[int]) -> StepSummary:
    """Read all W ranks' rows.

    Args:
        rows_WF: the rows that `StepRow.pack` made, in rank order, float64 [W, 9 + most].
        counts: how many samples each rank has in the next step. It is empty at an epoch's end.
    """
    bad_before_step_W, bad_backbone_W, bad_loss_W, loss_W, accuracy_W, *of_host = rows_WF[:, :_NUMBERS].T
    alike_W, waited_W, signal_W, replaced_W = of_host
    label_N = None
    if counts:
        labels = [label_B[:count] for label_B, count in zip(rows_WF[:, _NUMBERS:], counts)]
        label_N = np.concatenate(labels).astype(np.int64)
    return StepSummary(
        bad_before_step=bad_before_step_W.any().item(),
        bad_backbone=bad_backbone_W.any().item(),
        bad_loss=bad_loss_W.any().item(),
        loss=loss_W[0].item(),
        accuracy=accuracy_W[0].item(),
        alike=alike_W.all().item(),
        waited=waited_W.max().item(),
        signal=int(signal_W.max()),
        replaced=int(replaced_W.sum()),
        label_N=label_N,
    )
