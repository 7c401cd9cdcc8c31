"""Store a shard's class centres with their optimizer state, and update them.

    S classes in this rank's shard   K classes selected for the step (K = S without sampling)
    D embedding size   b rows in a class block

`bank.select(index)` returns one step's rows as a `Selection`. It holds their values, has memory for their
gradients, and updates them with the bank's rule (plsc/heads/optimizer.py). The bank stores only the arrays of
all S rows.

- `DeviceBank` keeps the rows on the device that computes.
- `HostBank` keeps them in host memory, where more rows fit.
- `OffloadedBank` (offloaded.py) keeps them on the disk, or in host memory as bfloat16.

`HostBank` and `OffloadedBank` copy the selected rows to the device, and their gradients back. A row's initial
value depends only on (seed, row), so runs on any number of ranks start from the same centres.
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
    """Build the bank that the config's Head describes, and draw its centres.

    Args:
        kind: "device", "host" or "disk".
        dtype: "float32" or "bfloat16". A bank on the device has float32.
        folder: folder for the file of a bank on the disk.
        shard: this rank's classes.
        width: how many numbers a row has.
        std: the initial centres' standard deviation.
        seed: seed for the initial centres and for the rounding to bfloat16.
        options: `bias` and `rule`, which are passed to `Bank`.

    Raises UserError if the bank needs the compiled kernels, but they are missing.
    """
    if kind == "device":
        bank = DeviceBank(shard, width, **options)
    elif kind == "host" and dtype == "float32":
        bank = HostBank(shard, width, **options)
    elif compiled() is None:
        raise UserError(
            f"Head.bank={kind} with Head.bank_dtype={dtype} needs the compiled kernels; install plsc "
            "where there is a C++ compiler, or set Head.bank=host and Head.bank_dtype=float32",
            key="Head.bank",
        )
    else:
        in_file = folder if kind == "disk" else None
        return OffloadedBank(shard, width, dtype=dtype, folder=in_file, std=std, seed=seed, **options)
    for first, centres in initial_blocks(seed, shard.start, shard.stop, width, std):
        bank.load_rows(first, {"centres": centres})
    return bank
