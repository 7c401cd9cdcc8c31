"""Compute the bytes that a head takes. A run's plan and the check before a bank is made use them."""

from plsc.distributed.device import takes_device_path
from plsc.heads.config import HeadCfg


def default_budget() -> int:
    """Return the default bytes for a step's logits and temporaries.

    A GPU gains more from a large budget than a CPU.
    """
    return 4096 << 20 if takes_device_path() else 256 << 20


def rows_bytes(head: HeadCfg, arrays: int, classes: int, embedding_size: int) -> int:
    """Return the bytes that the bank needs for some classes' rows.

    Args:
        head: config with the bank's dtype and the numbers per class.
        arrays: how many arrays are shaped like the centres: 1 for the centres alone, 2 with momentum.
        classes: rows in each array.
        embedding_size: embedding size D.
    """
    each = 2 if head.bank_dtype == "bfloat16" else 4
    return arrays * each * classes * head.row_size(embedding_size)
