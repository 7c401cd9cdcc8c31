"""End a run whose weights or class centres are not finite, by the same line on every rank.

No later step can repair such a number. Try it: `pytest tests/training/test_broken_weights.py`.
"""

from plsc import distributed
from plsc.errors import UserError

AS_THEY_WERE = (
    "the checkpoints were not changed; lower LRScheduler.learning_rate, lengthen its warm-up, set "
    "Optimizer.clip_norm, or look for a division by 0 in the network; if this error returns at once, "
    "start again with Global.overwrite=true, which deletes the run"
)


def refuse_not_finite(when: str, name: str) -> None:
    """Raise the same UserError on every rank if any rank names what is not finite. Every rank calls it.

    Args:
        when: step to report in the error.
        name: what is not finite on this rank, or "".
    """
    for rank, what in enumerate(distributed.gather_objects(name)):
        if what:
            raise UserError(f"{when}: {what}, on rank {rank}, is not finite; {AS_THEY_WERE}")
