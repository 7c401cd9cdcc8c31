"""Run a network's forward pass in 16 bits if `Global.amp` is set, scale float16 gradients, and find
non-finite values.

    with autocast("bfloat16"):
        embeddings = backbone(images)

Devices use Paddle's autocast, and CPUs use oneDNN. The parameters, their gradients and the statistics are
float32 in both cases.
"""

import contextlib
import math
from collections.abc import Iterable
from typing import Any

import paddle

from plsc import native
from plsc.backbones.layers import in_bfloat16
from plsc.distributed import paddle_internals
from plsc.distributed.device import on_device, takes_device_path
from plsc.errors import UserError
from plsc.native import onednn
from plsc.native.heads.rows import sum_of_squares
from plsc.training.part import Part
from plsc.utils.logging import warn_on_rank_0

INITIAL = 65536.0
LOWEST = 1.0  # lowest scale: a gradient that overflows without scaling needs another remedy
GROWTH_STEPS = 2000


def autocast(amp: str | None) -> contextlib.AbstractContextManager[None]:
    """Compute forward passes inside the block in the type `amp`.

    The type is float32 if `amp` is None, or if a CPU cannot compute in `amp`.
    """
    if amp is None:
        return contextlib.nullcontext()
    if on_device():
        return paddle.amp.auto_cast(level="O1", dtype=amp)
    return contextlib.nullcontext() if _why_float32(amp) else in_bfloat16()


def check_amp(amp: str | None) -> None:
    """Check Global.amp against the device.

    Raises UserError for float16 on a CPU. Logs a warning if a CPU computes in float32 in spite of `amp`.
    """
    if amp is None or on_device():
        return
    if amp == "float16" and not takes_device_path():
        raise UserError(
            "float16 is for GPUs, a CPU trains in bfloat16 or float32; set bfloat16 or Global.amp to null",
            key="Global.amp",
        )
    if why := _why_float32(amp):
        warn_on_rank_0(f"Global.amp: the backbone computes in float32, because {why}")


def _why_float32(dtype: str) -> str:
    """Return why a CPU computes networks in float32 instead of `dtype`, or "" if it computes in `dtype`."""
    if native.library() is None:
        return "there are no compiled kernels (PLSC_KERNELS=0, or not built)"
    if dtype != "bfloat16":
        return f"oneDNN does not train in {dtype}"
    return "" if onednn.has_bfloat16() else "this CPU has no instructions for bfloat16 that oneDNN uses"


class LossScale(Part):
    """Scales the backbone's float16 gradients by a power of two, so that small gradients do not become 0.

    float16 has no number between 0 and 6e-8. The backward pass starts with the embeddings' gradient times the
    scale. Afterwards the parameters' gradients are divided by the scale. If they overflow, all ranks skip the
    step, and the scale is halved. After 2000 steps without an overflow the scale is doubled.

    torch.cuda.amp.GradScaler and paddle.amp.GradScaler have the same constants (Micikevicius et al., "Mixed
    Precision Training", 2018, section 3.2). Their scale multiplies the loss. Here that would scale
    the class centres' gradients, too, which are float32 and which the head updates. bfloat16 has float32's
    range and needs no scale.

    Attributes:
        scale: the scale.
        good_steps: how many steps ago the scale last changed.
        overflows: how many steps an overflow made the run skip.
    """

    name = "loss_scale"

    def __init__(self):
        self.scale = INITIAL
        self.good_steps = 0
        self.overflows = 0

    def update(self, run: Any) -> None:
        """Count a step with finite gradients, and double the scale after 2000 such steps in a row."""
        self.good_steps += 1
        if self.good_steps == GROWTH_STEPS:
            self.scale *= 2.0
            self.good_steps = 0

    def halve(self) -> bool:
        """Halve the scale after a step whose scaled gradients overflowed.

        Returns False, and changes nothing, if the scale is already at its lowest.
        """
        if self.scale / 2.0 < LOWEST:
            return False
        self.scale /= 2.0
        self.good_steps = 0
        self.overflows += 1
        return True

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers for the log: the scale, and how many steps were skipped."""
        return {"loss_scale": self.scale, "overflows": self.overflows}

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the attributes. The checkpoint from a run without a loss scale does not change them."""
        vars(self).update(state)


def nonfinite(tensors: Iterable[paddle.Tensor]) -> paddle.Tensor:
    """Return a bool [1] on the device: whether any value is non-finite.

    A CPU first sums the squares. If that is finite, all values are.
    """
    tensors = [tensor for tensor in tensors if 0 not in tensor.shape]  # `tensor.size` takes 20 times as long
    if (
        not takes_device_path()
        and native.library()
        and all(tensor.dtype == paddle.float32 and tensor.is_contiguous() for tensor in tensors)
        and math.isfinite(sum(map(sum_of_squares, tensors)))
    ):
        return paddle.zeros([1], "bool")
    return unscale(tensors, 1.0)


@paddle.no_grad()
def unscale(gradients: Iterable[paddle.Tensor], scale: float) -> paddle.Tensor:
    """Divide tensors by `scale` in place, with one launch per dtype.

    Args:
        gradients: the tensors.
        scale: divisor, a power of two.

    Returns a bool [1] on the device: whether any value is non-finite.
    """
    groups: dict[object, list[paddle.Tensor]] = {}
    for gradient in gradients:
        groups.setdefault(gradient.dtype, []).append(gradient)
    found = []
    for dtype, group in groups.items():
        scale_dtype = "float64" if dtype == paddle.float64 else "float32"
        found.append(paddle_internals.unscale(group, paddle.full([1], scale, scale_dtype)))
    return paddle.concat(found).any(keepdim=True) if found else paddle.zeros([1], "bool")
