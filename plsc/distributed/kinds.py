"""Describe the kinds of devices that Paddle computes on: wheel, variable of the visible cards, settings.
Imports no Paddle.

A device is "auto", or a kind and perhaps the number of a card: "cpu", "gpu", "gpu:1", "npu". A kind that is
not in the table is a plug-in of that name, with the settings that plug-ins share.

    kind_of("gpu:1")                  # "gpu"
    set_environment("npu")            # before Paddle is imported
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

AUTO = "auto"
CPU = "cpu"
GPU = "gpu"
XPU = "xpu"
PATTERN = r"auto|cpu|(?!auto|cpu)[a-z][a-z0-9_]*(:\d+)?"  # of Global.device
AS_KIND = (
    "PLSC_AS_KIND"  # in the environment: a kind whose way the CPU goes, to record what a step asks of it
)
CHOICE = "PLSC_DEVICE"  # in the environment of Paddle's launcher: the device that its ranks are asked for

# Operators that would give strided views give copies instead: a plug-in has no kernel `contiguous`.
_NO_VIEWS = {"FLAGS_use_stride_kernel": "0"}
_late: set[str] = set()  # settings that were made when Paddle had been imported already


@dataclass(frozen=True)
class Kind:
    """A kind of device."""

    wheel: str
    visible: str
    """Variable of the environment with the cards that a process may use."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of the environment, read when Paddle is imported or its plug-in starts."""


# The settings are those that PaddleX 3 makes for each kind.
KINDS = {
    CPU: Kind("paddlepaddle", ""),
    GPU: Kind("paddlepaddle-gpu", "CUDA_VISIBLE_DEVICES"),
    XPU: Kind(
        "paddlepaddle-xpu",
        "XPU_VISIBLE_DEVICES",
        {**_NO_VIEWS, "BKCL_FORCE_SYNC": "1", "BKCL_TIMEOUT": "1800"},
    ),
    "npu": Kind(
        "paddlepaddle and paddle-custom-npu",
        "ASCEND_RT_VISIBLE_DEVICES",
        {
            **_NO_VIEWS,
            "FLAGS_npu_jit_compile": "0",
            "FLAGS_allocator_strategy": "auto_growth",
            "CUSTOM_DEVICE_BLACK_LIST": "pad3d,pad3d_grad,set_value,set_value_with_tensor",
            "FLAGS_npu_scale_aclnn": "True",
            "FLAGS_npu_split_aclnn": "True",
        },
    ),
    "mlu": Kind("paddlepaddle and paddle-custom-mlu", "MLU_VISIBLE_DEVICES", _NO_VIEWS),
    "gcu": Kind("paddlepaddle and paddle-custom-gcu", "GCU_VISIBLE_DEVICES", _NO_VIEWS),
    "sdaa": Kind("paddlepaddle and paddle-sdaa", "SDAA_VISIBLE_DEVICES", _NO_VIEWS),
    "intel_hpu": Kind("paddlepaddle and paddle-intel-hpu", "INTEL_HPU_VISIBLE_DEVICES", _NO_VIEWS),
    "metax_gpu": Kind("paddlepaddle and paddle-metax-gpu", "METAX_GPU_VISIBLE_DEVICES", _NO_VIEWS),
    "iluvatar_gpu": Kind("paddlepaddle and paddle-iluvatar-gpu", "ILUVATAR_GPU_VISIBLE_DEVICES", _NO_VIEWS),
}


def kind_of(device: str) -> str:
    """Return the kind of a device: "gpu" of "gpu:1"."""
    return device.partition(":")[0]


def describe(kind: str) -> Kind:
    """Return what is known of a kind; of one that is not in the table what plug-ins share."""
    return KINDS.get(kind) or Kind(f"paddlepaddle and a plug-in for {kind}", label_variable(kind), _NO_VIEWS)


def label_variable(kind: str) -> str:
    """Return the variable in which Paddle's launcher looks for the labels of the cards that it gives to the
    ranks."""
    return "CUDA_VISIBLE_DEVICES" if kind == GPU else f"{kind.upper()}_VISIBLE_DEVICES"


def installed() -> str:
    """Return the kind that Paddle will compute on besides the CPU, by the files of its plug-in or wheel; ""
    if none is found.

    Paddle itself must not be asked: the settings have to be made before it is imported.
    """
    paddle = importlib.util.find_spec("paddle")
    beside = Path(paddle.origin).parents[1] / "paddle_custom_device" if paddle and paddle.origin else ""
    for library in sorted(Path(os.environ.get("CUSTOM_DEVICE_ROOT") or beside).glob("libpaddle-*.so")):
        name = library.stem.removeprefix("libpaddle-").removeprefix("custom-").replace("-", "_")
        return f"custom_{name}" if name in (CPU, GPU) else name
    with contextlib.suppress(metadata.PackageNotFoundError):
        return XPU if metadata.version("paddlepaddle-xpu") else ""
    return ""


def set_environment(device: str) -> list[str]:
    """Make the settings of a device's kind, unless the user has made them; return a line for the log about
    them.

    Call it before Paddle is imported. "auto" has those of the kind that is installed. "cpu" has none, and
    forgets the card that Paddle's launcher gave this rank, for which Paddle's import would look.
    """
    kind = installed() if device == AUTO else kind_of(device)
    if kind == CPU:
        for name in [name for name in os.environ if name.startswith("FLAGS_selected_")]:
            del os.environ[name]
    settings = describe(kind).settings if kind else {}
    for name, value in settings.items():
        if name not in os.environ and "paddle" in sys.modules:
            _late.add(name)
        os.environ.setdefault(name, value)
    if not settings:
        return []
    shown = " ".join(
        f"{name}={os.environ[name]}" + (" (as set by you)" if os.environ[name] != value else "")
        for name, value in settings.items()
    )
    return [f"settings of {kind}: {shown}"]


def not_in_force(kind: str) -> dict[str, str]:
    """Return those settings of a kind that Paddle cannot know: not made, or made after it was imported."""
    return {
        name: value
        for name, value in describe(kind).settings.items()
        if name in _late or name not in os.environ
    }
