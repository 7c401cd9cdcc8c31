"""Run a network's forward pass in 16 bits, as `Global.amp` asks: by Paddle's autocast on devices, by oneDNN
on a CPU; scale float16's gradients, and find what is not finite in any.

    with autocast("bfloat16"):
        embeddings = backbone(images)

Parameters, their gradients and statistics are float32 either way.
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
LOWEST = 1.0  # a gradient that overflows without scaling is none of float16's small numbers
GROWTH_STEPS = 2000


def autocast(amp: str | None) -> contextlib.AbstractContextManager[None]:
    """Compute forward passes inside the block as `amp` says; None, or a CPU that cannot: in float32."""
    if amp is None:
        return contextlib.nullcontext()
    if on_device():
        return paddle.amp.auto_cast(level="O1", dtype=amp)
    return contextlib.nullcontext() if _why_float32(amp) else in_bfloat16()


def check_amp(amp: str | None) -> None:
    """Refuse float16 on a CPU by UserError, and warn where a CPU computes in float32 all the same."""
    if amp is None or on_device():
        return
    if amp == "float16" and not takes_device_path():
        raise UserError(
            "float16 is for GPUs, a CPU trains in bfloat16 or float32; set bfloat16 or Global.amp to null",
            key="Global.amp",
        )
    if why := _why_float32(amp):
        warn_on_rank_0(f"Global.amp: the backbone computes in float32, as {why}")


def _why_float32(dtype: str) -> str:
    """Say why a CPU computes networks in float32 though `dtype` was asked for; "" if it does not."""
    if native.library() is None:
        return "there are no compiled kernels (PLSC_KERNELS=0, or not built)"
    if dtype != "bfloat16":
        return f"oneDNN does not train in {dtype}"
    return "" if onednn.has_bfloat16() else "this CPU has no instructions for bfloat16 that oneDNN uses"


class LossScale(Part):
    """Scales the backbone's gradients in float16, by a power of two, so that the small ones do not become 0.

    float16 has no number between 0 and 6e-8. The backward pass starts with the embeddings' gradient times a
    scale, and the parameters' gradients are divided by it again. Where they overflow, the step is left out on
    all ranks and the scale halved; after 2000 steps without it is doubled. These are the constants of
    torch.cuda.amp.GradScaler and paddle.amp.GradScaler (Micikevicius et al., "Mixed Precision Training",
    2018, section 3.2), whose scale multiplies the loss: here it would reach the gradients of the class
    centres, which are float32 and updated by the head. bfloat16 has float32's range and needs no scale.

    Attributes: `scale`; `good_steps`, those since the scale was changed; `overflows`, steps of the run that
    were left out.
    """

    name = "loss_scale"

    def __init__(self):
        self.scale = INITIAL
        self.good_steps = 0
        self.overflows = 0

    def update(self, run: Any) -> None:
        """Count a step whose gradients were finite, and double the scale after the 2000th in a row."""
        self.good_steps += 1
        if self.good_steps == GROWTH_STEPS:
            self.scale *= 2.0
            self.good_steps = 0

    def halve(self) -> bool:
        """Halve the scale, after a step in which the scaled gradients overflowed; False: it is at its
        lowest."""
        if self.scale / 2.0 < LOWEST:
            return False
        self.scale /= 2.0
        self.good_steps = 0
        self.overflows += 1
        return True

    @property
    def numbers(self) -> dict[str, float]:
        """For the log: the scale, and the steps that were left out."""
        return {"loss_scale": self.scale, "overflows": self.overflows}

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the attributes; a checkpoint of a run without a scale leaves them as they are."""
        vars(self).update(state)


def nonfinite(tensors: Iterable[paddle.Tensor]) -> paddle.Tensor:
    """Say on the device whether a number is not finite, bool [1]. A CPU reads the sum of squares alone, while
    that is finite."""
    tensors = [tensor for tensor in tensors if tensor.size]
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
    """Divide tensors by `scale`, a power of two, in place -> whether a number is not finite, bool [1] on the
    device. One launch for each dtype."""
    groups: dict[object, list[paddle.Tensor]] = {}
    for gradient in gradients:
        groups.setdefault(gradient.dtype, []).append(gradient)
    found = []
    for dtype, group in groups.items():
        scale_dtype = "float64" if dtype == paddle.float64 else "float32"
        found.append(paddle_internals.unscale(group, paddle.full([1], scale, scale_dtype)))
    return paddle.concat(found).any(keepdim=True) if found else paddle.zeros([1], "bool")
