"""Compute the bytes that a head takes, for a plan of a run and for the check before its bank is made."""

from plsc.distributed.device import takes_device_path
from plsc.heads.config import HeadCfg


def default_budget() -> int:
    """Return the bytes for logits and temporaries of a step if the config names none.

    A GPU gains more from a large budget than a CPU.
    """
    return 4096 << 20 if takes_device_path() else 256 << 20


def rows_bytes(head: HeadCfg, arrays: int, classes: int, embedding_size: int) -> int:
    """Return the bytes of the rows of some classes, as the bank stores them.

    Args:
        head: gives the bank's dtype, and the numbers per class.
        arrays: arrays of the shape of the centres: 1 for the centres alone, 2 with momentum.
        classes: rows of each array.
        embedding_size: D.
    """
    each = 2 if head.bank_dtype == "bfloat16" else 4
    return arrays * each * classes * head.row_size(embedding_size)
