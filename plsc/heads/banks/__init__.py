"""Hold a shard's class centres with their optimizer state, and update them.

    S classes in this rank's shard   K of them selected for the step (all: K = S)
    D embedding size   b rows of a class block

`bank.select(index)` returns the rows of one step as a `Selection`: it holds their values, memory for their
gradients, and their update by one rule (plsc/heads/optimizer.py). The bank holds the tables alone.
`DeviceBank` keeps the rows on the device that computes, `HostBank` in host memory, where more of them fit,
`OffloadedBank` (offloaded.py) on the disk or as bfloat16; the selected rows are then copied to the device,
and their gradients back. A row's initial value depends on (seed, row) alone, so any number of ranks starts
from the same centres.
"""

import os
from typing import Any

from plsc.errors import UserError
from plsc.heads.banks.bank import Bank, initial_blocks
from plsc.heads.banks.device import DeviceBank
from plsc.heads.banks.host import HostBank
from plsc.heads.banks.offloaded import OffloadedBank
from plsc.heads.sampling import ClassShard
from plsc.native import compiled


def build_bank(
    kind: str,
    dtype: str,
    folder: str | os.PathLike,
    shard: ClassShard,
    width: int,
    *,
    std: float,
    seed: int,
    **options: Any,
) -> Bank:
    """Build the bank that the keys of the config's Head ask for, and draw its centres.

    Args:
        kind: "device", "host" or "disk".
        dtype: "float32", or "bfloat16" unless the rows are on the device.
        folder: where a bank on the disk has its file.
        shard, width: those of `Bank`.
        std: standard deviation of the initial centres.
        seed: of the initial centres, and of the rounding to bfloat16.
        options: `bias` and `rule` of `Bank`.

    Raises UserError if the bank needs the compiled kernels and there are none.
    """
    if kind == "device":
        bank = DeviceBank(shard, width, **options)
    elif kind == "host" and dtype == "float32":
        bank = HostBank(shard, width, **options)
    elif compiled() is None:
        raise UserError(
            f"{kind} with {dtype} needs the compiled kernels; install plsc where there is a C++ "
            "compiler, or take Head.bank=host and Head.bank_dtype=float32",
            key="Head.bank",
        )
    else:
        in_file = folder if kind == "disk" else None
        return OffloadedBank(shard, width, dtype=dtype, folder=in_file, std=std, seed=seed, **options)
    for first, centres in initial_blocks(seed, shard.start, shard.stop, width, std):
        bank.load_rows(first, {"centres": centres})
    return bank
