"""Meet the other ranks before Paddle's collectives start, and notice if a rank is gone.

Each rank has a TCP connection to rank 0 for the whole run. In both directions, a thread sends a beat (an
empty line) every second. Rank 0 tells the others which rank it has lost. If a process is killed, its kernel
closes the connection, and the rank at the other end notices this at once. A stopped process, a dead link or a
machine without power is noticed after `silence` seconds without a beat. plsc/training/watchdog.py then ends
the rank.

The job's other channels cannot do this. Paddle's key-value store blocks without a time limit if rank 0's
machine is gone. Gloo notices a lost rank only in a collective, after 30 s, but a rank that waits for another
rank's save is in no collective. The state of a TCP connection shows nothing if a process is stopped, because
the kernel still acknowledges what the process receives.

The ranks meet on the port of Paddle's key-value store, before the store starts, so no other port has to be
open. This module does not import Paddle.

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

# Seconds without a beat after which a rank is lost. Gloo gives up after 30 s, but does not name the rank.
SILENCE = 28.0
HANG_SECONDS = 600.0  # default of Global.hang_seconds, for a rank whose config cannot be read
_BEAT = 1.0  # seconds between two beats
_REMIND = 30.0  # seconds between two log lines about missing ranks
_LONGEST_HELLO = 1 << 16  # largest hello (the line by which a rank introduces itself), in bytes
_log = logging.getLogger("plsc")


class LostRankError(RuntimeError):
    """Another rank has ended, or sends no beats."""


class Peers:
    """Watches this rank's connections. Rank 0 has a connection to each other rank. The other ranks have one
    connection, to rank 0.

    Args:
        connections: the connected sockets, by the other rank's number.
        silence: seconds without a beat after which a rank is lost.
    """

    def __init__(self, connections: dict[int, socket.socket], silence: float = SILENCE):
        self._sockets = connections
        self._silence = silence
        self._lost: tuple[str, float] | None = None  # which rank and why, and when to report this
        self._left: str | None = None
        self._quiet: set[int] = set()  # ranks that have announced their end
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def lost(self) -> str | None:
        """Describe the first rank that was lost, or return None.

        A rank that is silent is reported at once. If a connection was closed, the rank at its other end
        reports this 5 s later, because in most cases a collective fails before that, and its message contains
        more. Rank 0 sends every loss to the other ranks at once, and they report it without this delay.
        """
        lost = self._lost
        return lost[0] if lost and time.monotonic() >= lost[1] else None

    def gone(self) -> str | None:
        """Describe a rank that will reach no further barrier, because it is lost or has ended. Return None if
        there is no such rank."""
        lost = self._lost
        return lost[0] if lost else self._left

    def leave(self) -> None:
        """Announce to the other ranks that this rank ends normally, and stop watching."""
        self._ended.set()
        self._tell("left", rank_from_env())

    def _run(self) -> None:
        beat = min(_BEAT, self._silence / 4)
        heard = dict.fromkeys(self._sockets, time.monotonic())
        incomplete = dict.fromkeys(self._sockets, b"")  # received bytes of a line without its end, by rank
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
                # The rank is gone or reads nothing. `_run` notices this by the closed connection or by the
                # silence.
                continue


_peers: Peers | None = None
_met = False  # whether `meet` was called


def lost() -> str | None:
    """Describe the first rank that was lost, as `Peers.lost` does. Return None before the ranks have met."""
    return _peers.lost() if _peers else None


def gone() -> str | None:
    """Describe a rank that will reach no further barrier, as `Peers.gone` does. Return None before the ranks
    have met."""
    return _peers.gone() if _peers else None


def meet(hang_seconds: float, problem: UserError | None = None) -> None:
    """Wait until all ranks have arrived, and watch them from now on. Every rank calls it once.

    Every 30 s, a log line names the missing ranks.

    Args:
        hang_seconds: seconds within which all ranks must arrive. 0 means that this rank waits for ever, and
            that no rank is lost by silence. Otherwise a rank is lost after min(hang_seconds, SILENCE) seconds
            without a beat.
        problem: an error that this rank found before, or None.

    Raises UserError on every rank if a rank has a `problem`. Raises LostRankError if a rank does not arrive
    in time, or ends before all have arrived.
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
    """Send an error that this rank found before `meet` to all ranks, and wait until it is delivered.

    Without this call, the ranks on other machines would wait for this rank. The function does nothing after
    `meet`. It also does nothing if all ranks are on this machine, because the launcher then ends them.
    """
    if not _met and by_paddles_launcher() and world_size_from_env() > local_size_from_env():
        with contextlib.suppress(UserError, LostRankError, OSError):
            meet(HANG_SECONDS, UserError(problem))


def _gather(own_problem: str, patience: float) -> tuple[dict[int, socket.socket], str]:
    """On rank 0, wait until all other ranks are connected.

    Returns their sockets by rank, and the problem on the first rank that has one, or "".
    """
    missing = set(range(1, world_size_from_env()))
    problems = {0: own_problem}
    sockets: dict[int, socket.socket] = {}
    wrong = ""  # why a rank does not belong to this launch
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
                if connection in sockets.values():  # the rank sends nothing now, so it has ended
                    rank = next(rank for rank, other in sockets.items() if other is connection)
                    raise LostRankError(f"rank {rank} has ended while the ranks were starting")
                try:
                    data = connection.recv(4096)
                except OSError:
                    data = b""
                hellos[connection] += data
                hello = _hello_in(hellos[connection])
                if hello is not None and (wrong := _why_not_of_this_launch(hello, missing)):
                    sockets[-1] = connection  # this rank gets the answer, too
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
    """Listen on the port of Paddle's key-value store."""
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
    """Read the line by which a rank introduces itself. Return None if the line is incomplete, or comes from
    another program."""
    try:
        hello = json.loads(data) if data.endswith(b"\n") else None
        is_ours = isinstance(hello["plsc"], int) and isinstance(hello["rank"], int)
        return hello if is_ours else None
    except (ValueError, TypeError, KeyError):
        return None


def _join(own_problem: str, patience: float) -> tuple[dict[int, socket.socket], str]:
    """Connect to rank 0, and wait until all ranks have arrived.

    Returns a dict with rank 0's socket, and the problem on the first rank that has one, or "".
    """
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
            data = connection.recv(1)  # only one byte, because `Peers` must read what follows the answer
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
    """Yield a text that names the missing ranks every 30 s, and "" in between.

    Raises LostRankError after `patience` seconds.
    """
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
