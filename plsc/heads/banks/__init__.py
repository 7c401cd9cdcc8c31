"""Store the class centres of a shard with the state of their optimizer, and update them.

A shard is the range of classes whose centres one rank stores. Each letter below stands for a count. The
letters appear in shapes, such as [K, D], and at the end of names. For example, `index_K` is an array with the
shape [K].

    S  classes in the shard
    K  classes that are selected for the step (K = S without sampling)
    D  embedding size
    b  rows in a block (the rows that the head processes at a time)

A bank represents a row for each of the S classes. `bank.select(index)` returns the K rows of one step as a
`Selection`. The selection gives access to the values of these rows, and stores their gradients. It updates
the rows with the bank's optimizer, which is called its rule (plsc/heads/optimizer.py).

- `DeviceBank` stores the rows in the memory of the device that computes.
- `HostBank` stores the rows in host memory, where more rows fit.
- `OffloadedBank` (offloaded.py) stores rows in a file on the disk, or in host memory as bfloat16. It stores
  only the rows that were updated or loaded from a checkpoint. It draws the initial value of every other row
  whenever this row is read.

`HostBank` and `OffloadedBank` copy the selected rows to the device, and these rows' gradients back to
the host. A row's initial value depends only on the seed and the row. Runs on any number of ranks
therefore start from the same centres.
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
    """Build the bank that the section Head of the config describes, and draw the initial centres.

    Args:
        kind: "device", "host" or "disk".
        dtype: "float32" or "bfloat16". With the kind "device", it must be "float32".
        folder: folder for the bank's file: Head.bank_folder, or Global.output_dir if that is null. Only the
            kind "disk" uses it.
        shard: this rank's classes.
        width: row length.
        std: the initial centres' standard deviation.
        seed: seed for the initial centres and for the rounding to bfloat16.
        options: `bias` and `rule`, which are passed to `Bank`.

    Raises UserError if the bank needs the compiled kernels, and they are missing.
    """
    if kind == "device":
        bank = DeviceBank(shard, width, **options)
    elif kind == "host" and dtype == "float32":
        bank = HostBank(shard, width, **options)
    elif compiled() is None:
        raise UserError(
            f"{kind} with Head.bank_dtype={dtype} needs the compiled kernels; install plsc "
            "where there is a C++ compiler, or set Head.bank=host and Head.bank_dtype=float32",
            key="Head.bank",
        )
    else:
        in_file = folder if kind == "disk" else None
        return OffloadedBank(shard, width, dtype=dtype, folder=in_file, std=std, seed=seed, **options)
    for first, centres in initial_blocks(seed, shard.start, shard.stop, width, std):
        bank.load_rows(first, {"centres": centres})
    return bank
