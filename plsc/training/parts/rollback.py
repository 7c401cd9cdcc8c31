"""Go back to an older checkpoint where too many steps in a row had to be skipped (Global.rollbacks).

The checkpoint is the newest whole one from before the last good step: at least that step is repeated, at a
lower rate, so the run does not reach the same weights again. Later checkpoints contain the number of
rollbacks, so a resumed run has the same rates; one that is killed before the next checkpoint diverges and
goes back once more, in the same way.

Try it: `pytest tests/training/parts/test_rollback.py`; what a user sees is in docs/resume.md.
"""

from __future__ import annotations

from pathlib import Path

from plsc import distributed
from plsc.checkpoint import store
from plsc.errors import UserError

FACTOR = 0.5  # of the learning rate, for each rollback


def go_back(root: Path, last_good: int) -> Path | None:
    """Find the newest whole checkpoint before the step `last_good`, and set the newer ones aside; None, and
    nothing is changed, if there is none. Every rank calls it. UserError if rank 0 cannot.
    """

    def find() -> Path | None:
        try:
            path = store.find(root, rename=True, before=last_good)
            if path:
                store.set_aside_after(path)
        except (UserError, OSError) as error:
            raise UserError(f"{root}: no way back to an earlier checkpoint: {error}") from error
        return path

    return distributed.run_on_rank_0(find)  # it reads every byte
