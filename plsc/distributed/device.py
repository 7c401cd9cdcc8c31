"""Decide where a run computes, and how exactly: the device, TensorFloat-32, and algorithms that repeat their bits.

`distributed.init` calls it; it calls no collective. Try it:

    decide("auto", [why_no_gpu()])       # "cpu" or "gpu"
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import paddle

from plsc.errors import UserError
from plsc.utils.logging import warn

# Flags of Paddle's GPU builds; builds for CPUs have none of them.
DETERMINISTIC = {
    "FLAGS_cudnn_deterministic": True,  # convolutions and pooling by algorithms without atomic additions
    "FLAGS_embedding_deterministic": 1,  # likewise the gradients of paddle.nn.Embedding
}


def why_no_gpu() -> str:
    """Say why this rank has no GPU; "" if it has one."""
    if not paddle.is_compiled_with_cuda():
        return "this Paddle is built for CPUs (install paddlepaddle-gpu)"
    count = paddle.device.cuda.device_count()
    place = int(os.environ.get("FLAGS_selected_gpus", "0").split(",")[0])
    if place < count:
        return ""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = f" with CUDA_VISIBLE_DEVICES={shown}" if shown is not None else ""
    if count == 0:
        return f"Paddle is built for GPUs, but sees none{hidden} (try nvidia-smi)"
    return (
        f"there are {count} visible GPU{'s' * (count > 1)}{hidden}, and this rank would take number {place}"
    )


def decide(device: str, lacks: Sequence[str]) -> str:
    """Choose "cpu" or "gpu" for all ranks alike.

    Args:
        device: "cpu", "gpu" or "auto": the GPUs if there are some.
        lacks: why a rank has no GPU, "" if it has one, by rank.

    Raises UserError, the same on all ranks, if only some have one, or if "gpu" was asked for and one has none.
    """
    without = [rank for rank, why in enumerate(lacks) if why]
    if device == "cpu" or (device == "auto" and len(without) == len(lacks)):
        return "cpu"
    if not without:
        return "gpu"
    whose = "" if len(lacks) == 1 else f"rank {without[0]}: "
    others = f" (likewise {len(without) - 1} more of {len(lacks)} ranks)" if len(without) > 1 else ""
    raise UserError(
        f"Global.device: {device}, but {whose}{lacks[without[0]]}{others}; give each rank a GPU, or set "
        "Global.device=cpu"
    )


def set_precision(tf32: bool, deterministic: bool) -> None:
    """Set for GPUs whether float32 products are computed in TensorFloat-32, and whether algorithms are deterministic.

    Call it before the first computation on a GPU. A CPU has neither: it computes in float32, and repeats its bits
    with the same threads.
    """
    core = paddle.base.core
    core.set_cublas_switch(tf32)
    core.set_cudnn_switch(tf32)
    if not deterministic:
        return
    # cuBLAS reads it when it starts. Without a workspace of its own for each stream it may change algorithms.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    known = set(core.globals().keys())
    paddle.set_flags({name: value for name, value in DETERMINISTIC.items() if name in known})
    if missing := [name for name in DETERMINISTIC if name not in known]:
        warn(
            f"Global.deterministic: this Paddle has no {', '.join(missing)}; what they make deterministic is as it is"
        )
