"""Decide what follows after a start has ended: a restart, from which checkpoint, or the end of the run."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import NamedTuple, Protocol

from plsc.distributed import guard

_PAUSE = 1.0  # seconds before a restart
_PAUSE_FULL = 60.0  # before the first restart on a full disk, twice that before the second, ...


class Verdict(NamedTuple):
    """line: what to say. code: the exit code of plsc run; None: start again, after `pause` seconds."""

    line: str
    code: int | None = None
    pause: float = 0.0


class Failed(Protocol):
    """Who failed and why: a Failure of the postmortem, or a Cause in a report."""

    text: str
    user: bool
    rank: int | None


def describe_saved(name: str, step: int | None) -> Verdict:
    """Describe the end of a run that has saved on the signal `name`, at this step."""
    line = f"INFO stopped on {name} at step {step}; resume with the same command"
    return Verdict(line, guard.exit_code(signal.Signals[name]))


def describe_unsaved(name: str, failed: Failed, step: int | None) -> Verdict:
    """Describe the end of a run that has failed on the signal `name`; step: of the newest checkpoint."""
    if failed.rank is None:
        line = f"INFO stopped on {name} before the training began; nothing is lost"
        return Verdict(line, guard.exit_code(signal.Signals[name]))
    since = "" if step is None else f"; the same command resumes from step {step}"
    return Verdict(f"ERROR not saved on {name}: {failed.text}{since}", 2 if failed.user else 1)


class History:
    """The starts of one call of plsc run.

    Args:
        max_failures: give up after so many in a row without a new checkpoint.
        stamp: step -> what tells a checkpoint from another of the same step.
    """

    def __init__(self, max_failures: int, stamp: Callable[[int | None], object]):
        self.step: int | None = None  # to go on from; None: from the beginning
        self._max_failures = max_failures
        self._stamp = stamp
        self._others: object = (
            None  # the stamp of a former run's checkpoint, from which a new run must not go on
        )
        self._last: object = None  # the stamp of the last new checkpoint
        self._failures = 0
        self._restarts = 0

    def begin(self, newest: int | None, resumes: bool, keeps: bool) -> None:
        """Choose where the first start begins.

        Args:
            newest: step of the newest checkpoint.
            resumes: go on from it, since it is of an unfinished run.
            keeps: the config says itself that the run goes on from it.
        """
        self._last = self._stamp(newest)
        self.step = newest if resumes else None
        # A start that fails early leaves the checkpoints of a former run.
        self._others = None if resumes or keeps else self._stamp(newest)

    def go_on_from(self, newest: int | None) -> None:
        """Have the next start go on from the newest checkpoint, of this step, unless a former run left it."""
        self.step = None if self._is_of_former(newest) else newest

    def _is_of_former(self, newest: int | None) -> bool:
        return self._others is not None and self._others == self._stamp(newest)

    def after_failure(
        self,
        text: str,
        newest: int | None,
        *,
        user: bool = False,
        full: bool = False,
        logs: str,
    ) -> Verdict:
        """Decide after a failure.

        Args:
            text: who failed and why. user: it is a mistake of the user. full: a disk is full.
            newest: step of the newest checkpoint. logs: where the logs are.
        """
        if user:
            return Verdict(f"ERROR {text}; not restarted, the logs are in {logs}", 2)
        if self._is_of_former(newest):
            newest = None
        stamp = self._stamp(newest)
        progress = stamp not in (None, self._last)  # a run that went back makes its progress at lower steps
        self._failures = 0 if progress else self._failures + 1
        self._last = stamp if progress else self._last
        if self._failures >= self._max_failures:
            count = f"{self._failures} failure{'s' if self._failures > 1 else ''} without a new checkpoint"
            return Verdict(f"ERROR {text}; giving up after {count}, the logs are in {logs}", 1)
        self._restarts += 1
        self.step = newest
        where = f"step {newest}" if newest is not None else "the beginning"
        pause = _PAUSE_FULL * max(1, self._failures) if full else _PAUSE
        return Verdict(f"WARNING {text}; restart {self._restarts} from {where}", pause=pause)
