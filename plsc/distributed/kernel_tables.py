"""Read which operators a kind of device has kernels for, by its vendor's sources: kernel_tables.txt. Imports
no Paddle.

    listed("npu").source            # "2024-10-18, PaddleCustomDevice 77090b64, backends/npu"
    listed("npu").lacks("searchsorted", "float32")      # True

A card's own list is `plsc.distributed.accelerator.registered`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from plsc.distributed.kinds import XPU, describe

_FILE = Path(__file__).with_suffix(".txt")
_EVERY_PLUGIN = "*"  # the kernels that Paddle itself brings for any plug-in
ANY = "any"  # of dtypes
BLACK_LIST = "CUSTOM_DEVICE_BLACK_LIST"
# Operators of later versions of Paddle, and those that earlier ones run for the same call.
EARLIER = {
    "div_scale": "scale",
    "index_elementwise_get": "gather_nd",
    "linear": "matmul",
    "linear_grad": "matmul_grad",
    "shape64": "shape",
}


@dataclass(frozen=True)
class KernelTable:
    """The kernels of a kind of device. source: date and origin. kernels: operator -> dtypes."""

    source: str
    kernels: Mapping[str, Collection[str]]

    def lacks(self, operator: str, dtype: str) -> bool:
        """Say whether an operator has no kernel for this dtype."""
        return not {dtype, ANY}.intersection(self.kernels.get(operator, ()))


def listed(kind: str) -> KernelTable | None:
    """Return the kernels of a kind in its vendor's sources, without those that its settings turn off; None:
    no table."""
    tables = _read()
    if kind == _EVERY_PLUGIN or kind not in tables:
        return None
    shared = {} if kind == XPU else tables[_EVERY_PLUGIN].kernels
    off = describe(kind).settings.get(BLACK_LIST, "").split(",")
    own = tables[kind].kernels
    kernels = {name: [*own.get(name, ()), *shared.get(name, ())] for name in own.keys() | shared.keys()}
    later = {name: kernels[earlier] for name, earlier in EARLIER.items() if earlier in kernels}
    kernels = {name: dtypes for name, dtypes in {**later, **kernels}.items() if name not in off}
    return KernelTable(tables[kind].source, kernels)


def kinds_listed() -> tuple[str, ...]:
    """Return the kinds with a table."""
    return tuple(kind for kind in _read() if kind != _EVERY_PLUGIN)


def _read() -> dict[str, KernelTable]:
    tables = {}
    for line in _FILE.read_text().splitlines():
        if line.startswith("["):
            kind, _, source = line[1:].partition("] ")
            kernels = {}
            tables[kind] = KernelTable(source, kernels)
        elif line and not line.startswith("#"):
            dtypes, _, names = line.partition(": ")
            kernels.update({name: dtypes.split() for name in names.split()})
    return tables
