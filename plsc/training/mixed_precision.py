"""Run a network's forward pass in 16 bits, as `Global.amp` asks: by Paddle's autocast on devices, by oneDNN
on a CPU.

    with autocast(AmpCfg(dtype="bfloat16")):
        embeddings = backbone(images)

Parameters, their gradients and statistics are float32 either way.
"""

from __future__ import annotations

import contextlib

import paddle

from plsc import native
from plsc.backbones.layers import in_bfloat16
from plsc.config.run import AmpCfg
from plsc.distributed.device import asynchronous, on_device
from plsc.errors import UserError
from plsc.native import onednn
from plsc.utils.logging import warn_on_rank_0


def autocast(amp: AmpCfg | None) -> contextlib.AbstractContextManager[None]:
    """Compute forward passes inside the block as `amp` says; None, or a CPU that cannot: in float32."""
    if amp is None:
        return contextlib.nullcontext()
    if on_device():
        return paddle.amp.auto_cast(level="O1", dtype=amp.dtype)
    return contextlib.nullcontext() if _why_float32(amp.dtype) else in_bfloat16()


def check_amp(amp: AmpCfg | None) -> None:
    """Refuse float16 on a CPU by UserError, and warn where a CPU computes in float32 all the same."""
    if amp is None or on_device():
        return
    if amp.dtype == "float16" and not asynchronous():
        raise UserError(
            "float16 is for GPUs, a CPU trains in bfloat16 or float32; set bfloat16 or Global.amp to null",
            key="Global.amp.dtype",
        )
    if why := _why_float32(amp.dtype):
        warn_on_rank_0(f"Global.amp: the backbone computes in float32, as {why}")


def _why_float32(dtype: str) -> str:
    """Say why a CPU computes networks in float32 though `dtype` was asked for; "" if it does not."""
    if native.library() is None:
        return "there are no compiled kernels (PLSC_KERNELS=0, or not built)"
    if dtype != "bfloat16":
        return f"oneDNN does not train in {dtype}"
    return "" if onednn.has_bfloat16() else "this CPU has no instructions for bfloat16 that oneDNN uses"
