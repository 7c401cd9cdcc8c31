"""List the GPUs that `plsc plan` knows on paper: the numbers of NVIDIA's data sheets.

    DEVICES["a100"].flops["bfloat16"]        # 312e12 operations/s, without sparsity

Nothing here was measured. What programs reach of these numbers is said in cluster.py.
"""

from __future__ import annotations

from typing import NamedTuple

GB = 1e9
_TERA = 1e12
_PCIE_3 = 16 * GB  # bytes/s of 16 lanes in one direction
_PCIE_4 = 32 * GB
_PCIE_5 = 64 * GB


class Device(NamedTuple):
    """A GPU as its data sheet describes it."""

    name: str
    memory: int
    """Bytes; the data sheets' GB are 2^30."""
    bandwidth: float
    """Of the memory, bytes/s."""
    flops: dict[str, float]
    """Operations a second by the dtype of products, dense; a multiply-accumulate is two."""
    nvlink: float
    """Bytes/s to the other GPUs of the machine in one direction; 0: they are reached over PCIe."""
    pcie: float
    """Bytes/s to the machine's memory in one direction."""
    source: str


def _device(
    name: str,
    memory_gib: int,
    bandwidth_gb: float,
    float32: float,
    float16: float,
    nvlink_gb: float,
    pcie: float,
    source: str,
    tf32: float = 0.0,
) -> Device:
    """Build a device from the units of data sheets: teraflops, GB/s. With TensorFloat-32 it has bfloat16,
    too."""
    flops = {"float32": float32 * _TERA, "float16": float16 * _TERA}
    if tf32:
        flops |= {"tf32": tf32 * _TERA, "bfloat16": float16 * _TERA}
    return Device(
        name, memory_gib * 2**30, bandwidth_gb * GB, flops, nvlink_gb * GB, pcie, f"NVIDIA, {source}"
    )


_V100 = "Tesla V100 GPU Accelerator data sheet, 2018: V100 SXM2"
_A100 = "A100 Tensor Core GPU data sheet, 2021"
_H100 = "H100 Tensor Core GPU data sheet, 2023"
_H200 = "H200 Tensor Core GPU data sheet, 2024"

_TABLE = (
    _device("v100-16gb", 16, 900, 15.7, 125, 150, _PCIE_3, _V100),
    _device("v100", 32, 900, 15.7, 125, 150, _PCIE_3, _V100),
    _device("a100-40gb", 40, 1555, 19.5, 312, 300, _PCIE_4, f"{_A100}: A100 40GB SXM", tf32=156),
    _device("a100", 80, 2039, 19.5, 312, 300, _PCIE_4, f"{_A100}: A100 80GB SXM", tf32=156),
    _device("a100-pcie", 80, 1935, 19.5, 312, 0, _PCIE_4, f"{_A100}: A100 80GB PCIe", tf32=156),
    _device("h100", 80, 3350, 67, 989, 450, _PCIE_5, f"{_H100}: H100 SXM", tf32=494),
    _device("h200", 141, 4800, 67, 989, 450, _PCIE_5, f"{_H200}: H200 SXM", tf32=494),
)
DEVICES = {device.name: device for device in _TABLE}
