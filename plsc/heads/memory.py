"""Compute the bytes that a head takes. The plan of a run and the check before a bank is made use them."""

from plsc.distributed.device import takes_device_path
from plsc.heads.config import HeadCfg


def default_budget() -> int:
    """Return the default number of bytes for logits and temporaries of a step.

    A GPU gains more from a large budget than a CPU.
    """
    return 4096 << 20 if takes_device_path() else 256 << 20


def rows_bytes(head: HeadCfg, arrays: int, classes: int, embedding_size: int) -> int:
    """Return the number of bytes that the bank needs for the rows of some classes.

    Args:
        head: config with the bank's dtype and the numbers per class.
        arrays: number of arrays with the shape of the centres: 1 for the centres alone, 2 with momentum.
        classes: number of rows in each array.
        embedding_size: embedding size D.
    """
    each = 2 if head.bank_dtype == "bfloat16" else 4
    return arrays * each * classes * head.row_size(embedding_size)
