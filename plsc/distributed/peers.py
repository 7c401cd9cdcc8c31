"""Meet the other ranks before there is a group, and notice within seconds that one is gone.

Each rank holds a TCP connection to rank 0 for the whole run. A thread sends a beat over it every second, and
rank 0 tells the others which rank it has lost. A killed process is noticed at once, since the kernel closes
its connections. A stopped process, a dead link or a machine without power is noticed after `silence` seconds.

Neither other channel can do this. Paddle's key-value store blocks in C++, without a time limit,
if rank 0's machine is gone. Gloo does not expose its sockets. It gives up after a fixed 30 s, and only
in a collective, but a rank that waits for another one to save is in none. A socket's state would not help
either, because a stopped process's kernel still acknowledges what it receives.

The ranks meet on the job store's port, before that store exists, so no other port has to be open. This
module does not import Paddle.

Try it: `kill -STOP` a rank of a training.
"""

import atexit
import contextlib
import json
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Iterable, Iterator

from plsc.distributed.environment import (
    by_paddles_launcher,
    forget_other_master,
    local_size_from_env,
    master_from_env,
    rank_from_env,
    world_size_from_env,
)
from plsc.errors import UserError

SILENCE = 28.0  # seconds, fewer than Gloo's 30, so that the line names the rank that is gone
HANG_SECONDS = 600.0  # default of Global.hang_seconds, for a rank whose config cannot be read
_BEAT = 1.0  # seconds
_REMIND = 30.0  # seconds between two lines about missing ranks
_LONGEST_HELLO = 1 << 16  # bytes
_log = logging.getLogger("plsc")


class LostRankError(RuntimeError):
    """Another rank has ended, or sends no beat."""


class Peers:
    """This rank's connections: rank 0 has one to each other rank, and these have one to rank 0.

    Args:
        connections: rank -> the socket that is connected to it.
        silence: seconds without a beat after which a rank is lost.
    """

    def __init__(self, connections: dict[int, socket.socket], silence: float = SILENCE):
        self._sockets = connections
        self._silence = silence
        self._lost: tuple[str, float] | None = None  # which rank and why, and when to report it
        self._left: str | None = None
        self._quiet: set[int] = set()  # ranks that have announced their end
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def lost(self) -> str | None:
        """Describe the first rank that was lost. None if no rank is lost.

        A rank whose connection is closed is reported 5 s late. In most cases a collective fails first, and
        its message contains more.
        """
        lost = self._lost
        return lost[0] if lost and time.monotonic() >= lost[1] else None

    def gone(self) -> str | None:
        """Describe a rank that will reach no further barrier, because it is lost or has ended."""
        lost = self._lost
        return lost[0] if lost else self._left

    def leave(self) -> None:
        """Announce to the others that this rank ends normally."""
        self._ended.set()
        self._tell("left", rank_from_env())

    def _run(self) -> None:
        beat = min(_BEAT, self._silence / 4)
        heard = dict.fromkeys(self._sockets, time.monotonic())
        incomplete = dict.fromkeys(self._sockets, b"")  # the line that each rank has begun
        with selectors.DefaultSelector() as selector:
            for rank, connection in self._sockets.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            due = 0.0
            while not self._ended.is_set():
                for key, _ in selector.select(beat):
                    rank = key.data
                    try:
                        data = key.fileobj.recv(4096)
                    except OSError:
                        data = b""
                    heard[rank] = time.monotonic()
                    *lines, incomplete[rank] = (incomplete[rank] + data).split(b"\n")
                    for line in lines:
                        self._hear(line.decode(errors="replace"))
                    if not data:
                        selector.unregister(key.fileobj)
                        del heard[rank]
                        self._lose(rank, "has ended", 5.0)
                now = time.monotonic()
                for rank, last in heard.items():
                    if now - last > self._silence:
                        why = f"has given no sign of life for {self._silence:.0f} s"
                        self._lose(rank, f"{why}: its process is stopped, or its machine or network is down")
                if now >= due:
                    due = now + beat
                    self._send(b"\n")

    def _hear(self, line: str) -> None:
        """Process one line from another rank. An empty line is a beat."""
        what, _, text = line.partition(" ")
        if what == "left":
            self._left = self._left or f"rank {text} has ended"
            self._quiet.add(int(text))
            if rank_from_env() == 0:
                self._tell("left", text)
        elif what == "lost":
            self._lost = self._lost or (text, time.monotonic())

    def _lose(self, rank: int, why: str, late: float = 0.0) -> None:
        if self._lost is None and rank not in self._quiet:
            text = f"rank {rank} {why}"
            self._lost = text, time.monotonic() + late
            if rank_from_env() == 0:
                self._tell("lost", text)

    def _tell(self, what: str, text: object) -> None:
        self._send(f"{what} {text}\n".encode())

    def _send(self, data: bytes) -> None:
        for connection in self._sockets.values():
            try:
                connection.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except OSError:
                # The rank is gone, and reading its socket shows that. Or it reads nothing, and is silent
                # soon.
                continue


_peers: Peers | None = None
_met = False  # whether `meet` was called


def lost() -> str | None:
    """Describe the first rank that was lost, see `Peers.lost`. None before the ranks have met."""
    return _peers.lost() if _peers else None


def gone() -> str | None:
    """Describe a rank that will reach no further barrier, see `Peers.gone`."""
    return _peers.gone() if _peers else None


def meet(hang_seconds: float, problem: UserError | None = None) -> None:
    """Wait until all ranks have arrived, and watch them from now on. Every rank calls it once.

    A line every 30 s names the missing ranks.

    Args:
        hang_seconds: seconds in which the ranks have to arrive. If it is less than SILENCE, it is also the
            time without a beat after which a rank is lost. With 0, this rank waits for ever, and loses no
            rank by silence.
        problem: a mistake that this rank has found before.

    Raises UserError on every rank if one has a `problem`. Raises LostRankError if a rank does not arrive, or
    ends.
    """
    global _peers, _met
    _met = True
    forget_other_master()
    patience = hang_seconds or float("inf")
    own = "" if problem is None else str(problem)
    connections, first_problem = (_gather if rank_from_env() == 0 else _join)(own, patience)
    if first_problem:
        raise problem if problem and own in first_problem else UserError(first_problem)
    silence = min(hang_seconds, SILENCE) if hang_seconds else float("inf")
    _peers = Peers(connections, silence)
    atexit.register(_peers.leave)


def tell_other_machines(problem: str) -> None:
    """Deliver to all ranks a mistake that this rank has found before `meet`, and wait until it is delivered.

    Otherwise the ranks of other machines would wait for this one. Does nothing after `meet`, or if all ranks
    are on this machine, whose launcher ends them.
    """
    if not _met and by_paddles_launcher() and world_size_from_env() > local_size_from_env():
        with contextlib.suppress(UserError, LostRankError, OSError):
            meet(HANG_SECONDS, UserError(problem))


def _gather(own_problem: str, patience: float) -> tuple[dict[int, socket.socket], str]:
    """Wait on rank 0 for the others -> their sockets, and the first rank's problem."""
    missing = set(range(1, world_size_from_env()))
    problems = {0: own_problem}
    sockets: dict[int, socket.socket] = {}
    wrong = ""  # what is wrong with a rank of another launch
    with _listener() as listener, selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        hellos: dict[socket.socket, bytes] = {}
        for text in _reminders(patience, missing):
            for key, _ in selector.select(0.5):
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    selector.register(connection, selectors.EVENT_READ)
                    hellos[connection] = b""
                    continue
                connection = key.fileobj
                if connection in sockets.values():  # the rank waits for an answer, so it can only have ended
                    rank = next(rank for rank, other in sockets.items() if other is connection)
                    raise LostRankError(f"rank {rank} has ended while the ranks were starting")
                try:
                    data = connection.recv(4096)
                except OSError:
                    data = b""
                hellos[connection] += data
                hello = _hello_in(hellos[connection])
                if hello is not None and (wrong := _why_not_of_this_launch(hello, missing)):
                    sockets[-1] = connection  # it gets the answer, too
                    break
                if hello is not None:
                    missing.remove(hello["rank"])
                    sockets[hello["rank"]] = connection
                    problems[hello["rank"]] = hello["problem"]
                elif not data or not _may_become_hello(hellos[connection]):
                    if hellos[connection]:
                        _log.warning("rank 0 refuses a connection of another program or version of plsc")
                    selector.unregister(connection)
                    connection.close()
            if wrong or not missing:
                break
            if text:
                _log.warning("rank 0 waits for %s", text)
    of_ranks = [f"rank {rank}: {problems[rank]}" for rank in sorted(problems) if problems[rank]]
    first = next(iter([wrong] if wrong else of_ranks), "")
    for connection in sockets.values():
        connection.sendall(json.dumps({"problem": first}).encode() + b"\n")
    return sockets, first


def _listener() -> socket.socket:
    """Listen on the port of the job's store."""
    host, port = master_from_env()
    try:
        return socket.create_server(("", port), backlog=1024)
    except OSError as error:
        raise UserError(
            f"rank 0 cannot listen at {host}:{port}: {os.strerror(error.errno)}; start the ranks again with "
            "another port, or end the program that uses this one"
        ) from error


def _why_not_of_this_launch(hello: dict, missing: set[int]) -> str:
    """Return why a rank that has introduced itself does not belong to this launch, or ""."""
    own, of = world_size_from_env(), "(PADDLE_TRAINERS_NUM)"
    remedy = "start all ranks by one launch, and let no other launch use its port"
    if hello["plsc"] != own:
        return f"rank 0 is one of {own} ranks, and rank {hello['rank']} one of {hello['plsc']} {of}; {remedy}"
    if hello["rank"] not in missing:
        return f"two ranks have the number {hello['rank']} (PADDLE_TRAINER_ID); {remedy}"
    return ""


def _may_become_hello(data: bytes) -> bool:
    return data.startswith(b"{") and b"\n" not in data and len(data) <= _LONGEST_HELLO


def _hello_in(data: bytes) -> dict | None:
    """Read the line by which a rank introduces itself. None if it is incomplete, or comes from another
    program."""
    try:
        hello = json.loads(data) if data.endswith(b"\n") else None
        is_ours = isinstance(hello["plsc"], int) and isinstance(hello["rank"], int)
        return hello if is_ours else None
    except (ValueError, TypeError, KeyError):
        return None


def _join(own_problem: str, patience: float) -> tuple[dict[int, socket.socket], str]:
    """Connect to rank 0 and wait until all ranks have arrived -> its socket, and the first rank's problem."""
    host, port = master_from_env()
    hello = {"plsc": world_size_from_env(), "rank": rank_from_env(), "problem": own_problem}
    connection, answer = None, b""
    for text in _reminders(patience, [0], f" at {host}:{port}"):
        if text:
            text = text if connection is None else "the other ranks" + text[text.index(" (") :]
            _log.warning("rank %d waits for %s", rank_from_env(), text)
        try:
            if connection is None:
                connection = socket.create_connection((host, port), timeout=5)
                connection.sendall(json.dumps(hello).encode() + b"\n")
                connection.settimeout(0.5)
            data = connection.recv(1)  # one byte, since Peers reads whatever follows the answer
        except TimeoutError:
            continue
        except OSError:  # rank 0 does not listen yet
            connection = None
            time.sleep(0.05)
            continue
        answer += data
        if not data:
            raise LostRankError("rank 0 has ended while the ranks were starting")
        if answer.endswith(b"\n"):
            break
    return {0: connection}, json.loads(answer)["problem"]


def _reminders(patience: float, missing: Iterable[int], where: str = "") -> Iterator[str]:
    """Yield "", and every 30 s the missing ranks. Raise LostRankError after `patience` seconds."""
    began = time.monotonic()
    due = _REMIND
    while True:
        waited = time.monotonic() - began
        ranks = ", ".join(map(str, sorted(missing)[:8])) + (" ..." if len(list(missing)) > 8 else "")
        who = f"rank{'s' * (len(list(missing)) > 1)} {ranks}{where}"
        if waited > patience:
            raise LostRankError(f"{who} did not connect within {patience:.0f} s (Global.hang_seconds)")
        yield f"{who} ({waited:.0f} s)" if waited >= due else ""
        if waited >= due:
            due += _REMIND
