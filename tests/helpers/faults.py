"""A network to which something happens at given steps on given ranks: signals, kills inside a save, full
disks, lack of memory.

plan: "rank:step:what[@place]", e.g. "1:3:SIGKILL", "0:5:supervisor SIGTERM", "0:4:SIGKILL@before rename",
"1:3:raise"

Each item happens once, in the plan's order, whatever is killed and started again in between. A file in
`marks` records it. Two successive items must not be for the same step on two ranks, which may reach it in
either order.
"""

import itertools
import os
import resource
import shutil
import signal
import time
from pathlib import Path

import paddle

import plsc.checkpoint.store
from plsc import distributed
from plsc.backbones.small_resnet import SmallResNet
from plsc.evaluation.sets import VerificationSet

# Where a place is: "before NAME [word in the first argument]", "after NAME ...".
PLACES = {
    "write_synced": plsc.checkpoint.store,  # of a file of a checkpoint
    "rename": Path,  # a checkpoint to its name, or an old one away
    "rmtree": shutil,
    "score": VerificationSet,  # rank 0's part of an evaluation
}


class FaultyNet(SmallResNet):
    """The network of tiny.yaml with a plan.

    Args:
        plan: steps count from 1 in each process. 0 is when the network is made.
        marks: folder with a file for each fault that has happened.
    """

    def __init__(
        self,
        plan: list[str],
        marks: str,
        image_shape: tuple[int, int, int],
        embedding_size: int,
        widths: list[int],
        blocks: list[int],
        dropout: float,
    ):
        super().__init__(embedding_size, image_shape, widths, blocks, dropout)
        assert not any(_race(*items) for items in itertools.pairwise(plan)), "two ranks, one step: see above"
        self.plan, self.marks, self.steps = plan, Path(marks), 0
        self._come_to_step()

    def forward(self, images):
        if self.training:
            self.steps += 1
            self._come_to_step()
        return super().forward(images)

    def _come_to_step(self) -> None:
        item = next((item for item in self.plan if not (self.marks / item).exists()), "-1:0:")
        rank, step, what = item.split(":")
        if (int(rank), int(step)) != (distributed.rank(), self.steps):
            return
        what, _, place = what.partition("@")
        if place:
            self._wait_for(place, what, self.marks / item)
        else:
            (self.marks / item).touch()
            act(what)

    def _wait_for(self, place: str, what: str, mark: Path) -> None:
        when, name, *words = place.split()
        owner, original = PLACES[name], getattr(PLACES[name], name)

        def patched(*args, **keywords):
            due = all(word in str(args[0]) for word in words) and not mark.exists()
            if due and when == "before":
                mark.touch()
                act(what)
            try:
                return original(*args, **keywords)
            finally:
                if due:
                    resource.setrlimit(resource.RLIMIT_FSIZE, 2 * (resource.RLIM_INFINITY,))
                if due and when == "after":
                    mark.touch()
                    act(what)

        setattr(owner, name, patched)


def _race(item: str, following: str) -> bool:
    """Whether the second may happen in the start that is the first one's."""
    (rank, step, what), (other, its_step, _) = (text.split(":") for text in (item, following))
    return "@" not in what and rank != other and step == its_step


def act(what: str) -> None:
    """Let it happen to this process. A signal may also go to its "supervisor" or, as Ctrl-C, to the
    "terminal"."""
    *whom, name = what.split()
    if name in signal.Signals.__members__:
        supervisor = int(os.environ.get("PLSC_SUPERVISOR", "0"))
        others = {"supervisor": supervisor, "terminal": -supervisor}
        os.kill(others[whom[0]] if whom else os.getpid(), signal.Signals[name])
        if whom:
            _wait_to_be_asked()  # it is passed on from there
    else:
        {"full": _full, "memory": _memory, "raise": _raise}[name]()


def _wait_to_be_asked() -> None:
    """Wait until the signal has come back to this rank, so that it stops in this step. After a kill, wait for
    ever."""
    watchdog, end = signal.getsignal(signal.SIGTERM).__self__, time.monotonic() + 60
    while not watchdog.signal and time.monotonic() < end:
        time.sleep(0.02)


def _full() -> None:
    """No file may grow beyond 256 bytes, until the patched call has returned."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, resource.RLIM_INFINITY))


def _memory() -> None:
    """An allocation that the system refuses."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, resource.RLIM_INFINITY))
    paddle.zeros([2**28])


def _raise() -> None:
    raise OSError("the network is down")
