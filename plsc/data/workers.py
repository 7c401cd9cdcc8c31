"""Run processes that make batches for the loader.

A worker is a new interpreter, neither a fork nor a multiprocessing "spawn". A fork of a process in which
Paddle has started OpenMP, Gloo and glog threads inherits locks that nobody will release and sockets that keep
a dead rank's connections open; a spawn imports the user's script again, and with it Paddle (300 MB and over a
second per worker). A new interpreter imports only what the data set needs: 0.4 s (a fork 0.02 s, a spawn
1.2 s), once per run.

The data set crosses as a pickle (to our own child, as multiprocessing does) whose arrays lie in shared
memory, so that workers share the drawings or the index; the images come back through shared memory too. That
memory is anonymous (no name to leak, no /dev/shm to fill). A worker ends when its pipe closes, however the
parent died.
"""

from __future__ import annotations

import math
import mmap
import os
import pickle
import signal
import subprocess
import sys
import traceback
import weakref
from multiprocessing.connection import Connection, Pipe

import cv2
import numpy as np

from plsc.data.batch import Replacement, SampleError, make_batch
from plsc.data.dataset import Dataset
from plsc.errors import CorruptImageError, MissingFileError, UserError

SLOTS = 2  # batches under way per worker
ALIGNMENT = 64  # of the data set's arrays in shared memory
_START = (
    "import sys; sys.path[:] = sys.argv[4:]; "
    # Ctrl-C and a cluster's signals may reach all; the parent decides.
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "from plsc.data.workers import main; main()"
)


class WorkerDied(RuntimeError):
    """A worker process ended by itself or was killed."""


class WorkerTraceback(Exception):
    """Shows, as the cause of an error, where in the worker it happened."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Workers:
    """`num_workers` processes that make batches of up to `largest` images, taking turns.

    submit() gives the next batch to the next worker, result() returns the batches in the order of submission.
    """

    def __init__(self, dataset: Dataset, seed: int, num_workers: int, largest: int):
        expected = dataset.preprocessing
        self._seed = seed
        self.depth = SLOTS * num_workers
        self._shape = (largest, *expected.shape)
        self._dtype = expected.dtype
        # Of one worker's batches.
        self._bytes = SLOTS * math.prod(self._shape) * np.dtype(self._dtype).itemsize
        self._submitted = self._received = 0
        self._sizes: list[int] = []
        self._processes: list[subprocess.Popen] = []
        self._pipes: list[Connection] = []
        self._slots: list[np.ndarray] = []
        self._finalizer = weakref.finalize(self, _stop, self._processes, self._pipes)
        try:
            with _packed(dataset) as handed_over:
                for _ in range(num_workers):
                    self._start_one(handed_over.fileno())
        except OSError as error:
            self.close()
            megabytes = num_workers * self._bytes / 2**20
            raise UserError(
                f"cannot start {num_workers} data workers with {megabytes:.1f} MB for their batches: {error.strerror}; "
                "lower DataLoader.Train.num_workers or batch_size, or raise the limit (ulimit -a shows it)"
            ) from error

    def _start_one(self, dataset_file: int) -> None:
        ours, theirs = Pipe()
        with _anonymous_file(self._bytes) as memory, theirs:
            files = [theirs.fileno(), dataset_file, memory.fileno()]
            path = [os.path.abspath(folder) for folder in sys.path]
            process = subprocess.Popen(
                [sys.executable, "-c", _START, *map(str, files), *path],
                pass_fds=files,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
            self._slots.append(_slots(memory.fileno(), self._shape, self._dtype))
        self._processes.append(process)
        self._pipes.append(ours)
        self._send(len(self._pipes) - 1, (self._shape, self._dtype, self._seed))

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def submit(self, epoch: int, indices: np.ndarray) -> None:
        """Ask for the batch of samples `indices` as augmented in an epoch; at most `depth` may be under
        way."""
        turn, worker = divmod(self._submitted, len(self._pipes))
        self._send(worker, (turn % SLOTS, epoch, indices))
        self._sizes.append(len(indices))
        self._submitted += 1

    def result(self) -> tuple[np.ndarray, list[Replacement]]:
        """Return the oldest batch under way: [B, *shape], the caller's own, and the replacements of
        make_batch.

        Raises what make_batch raised in the worker, or WorkerDied.
        """
        turn, worker = divmod(self._received, len(self._pipes))
        try:
            error, answer = self._pipes[worker].recv()
        except (EOFError, ConnectionError):
            self._raise_death(worker)
        if error is not None:
            raise error from WorkerTraceback(answer)
        self._received += 1
        return self._slots[worker][turn % SLOTS, : self._sizes.pop(0)].copy(), answer

    def close(self) -> None:
        """Kill the workers: they hold nothing that could be lost."""
        self._finalizer()

    def _send(self, worker: int, message: object) -> None:
        try:
            self._pipes[worker].send(message)
        except ConnectionError:
            self._raise_death(worker)

    def _raise_death(self, worker: int) -> None:
        process = self._processes[worker]
        code = process.wait()  # its pipe is closed, so it has ended or is about to
        name = f"data worker {worker} (pid {process.pid})"
        if code < 0:
            raise WorkerDied(
                f"{name} was killed by {signal.Signals(-code).name}; "
                "if the machine ran out of memory, lower num_workers or batch_size"
            ) from None
        raise WorkerDied(f"{name} ended with exit code {code}; its own message stands above") from None


def _stop(processes: list[subprocess.Popen], pipes: list[Connection]) -> None:
    for pipe in pipes:
        pipe.close()
    for process in processes:
        process.kill()
        process.wait()


def _anonymous_file(size: int):
    """Make a file of `size` zero bytes in memory, without a name."""
    file = os.fdopen(os.memfd_create("plsc-loader"), "r+b")
    file.truncate(size)
    return file


def _mapped(file: int, access: int = mmap.ACCESS_WRITE) -> np.ndarray:
    return np.frombuffer(mmap.mmap(file, 0, access=access), np.uint8)


def _packed(dataset: Dataset):
    """Write the data set to an anonymous file: the number of parts, their sizes, its pickle, its arrays."""
    kind = type(dataset)
    if kind.__module__ == "__main__":
        raise UserError(
            f"data set {kind.__name__} is defined in the script itself, which workers do not import; "
            "move it to a module of its own, or use num_workers=0"
        )
    arrays: list[pickle.PickleBuffer] = []
    try:
        state = pickle.dumps(dataset, protocol=5, buffer_callback=arrays.append)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UserError(
            f"data set {kind.__name__} cannot go to workers ({error}); use num_workers=0"
        ) from error
    parts = [state, *(array.raw() for array in arrays)]
    file = _anonymous_file(0)
    for part in (np.array([len(parts), *map(len, parts)], np.int64), *parts):
        file.write(part)
        file.write(bytes(-file.tell() % ALIGNMENT))
    file.flush()
    return file


def _unpacked(file: int) -> Dataset:
    # Private pages: a data set may write to its arrays, and only the pages that it touches are copied.
    memory = _mapped(file, mmap.ACCESS_COPY)
    count = int(memory[:8].view(np.int64)[0])
    sizes = memory[: 8 * (count + 1)].view(np.int64).tolist()
    sizes[0] = 8 * (count + 1)
    stop = 0
    parts = []
    for size in sizes:
        start = -(-stop // ALIGNMENT) * ALIGNMENT
        stop = start + size
        parts.append(memory[start:stop])
    return pickle.loads(parts[1], buffers=parts[2:])


def _slots(file: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return the memory of a worker's batches: [SLOTS, largest, *shape of a sample]."""
    return _mapped(file).view(dtype).reshape(SLOTS, *shape)


def main() -> None:
    """Run a worker. Its arguments: the descriptors of its pipe, the packed data set and its batch memory."""
    pipe_file, dataset_file, memory_file = map(int, sys.argv[1:4])
    with Connection(pipe_file) as pipe:
        try:
            _serve(pipe, dataset_file, memory_file)
        except (EOFError, ConnectionError):
            pass  # the parent has closed the pipe or is gone


def _serve(pipe: Connection, dataset_file: int, memory_file: int) -> None:
    cv2.setNumThreads(0)  # the workers are the parallelism
    shape, dtype, seed = pipe.recv()
    slots = _slots(memory_file, shape, dtype)
    dataset = None
    while True:
        slot, epoch, indices = pipe.recv()
        try:
            if dataset is None:
                dataset = _unpacked(dataset_file)
            answer = None, make_batch(dataset, seed, epoch, indices, slots[slot, : len(indices)])
        except Exception as error:  # noqa: BLE001 - it is raised again in the parent, which handles it
            answer = _portable(error), traceback.format_exc()
        pipe.send(answer)


def _portable(error: Exception) -> Exception:
    """Convert an error to one of our own kinds: another class might not survive the pipe."""
    for kind in (MissingFileError, CorruptImageError, UserError, SampleError):
        if isinstance(error, kind):
            return kind(str(error))
    return SampleError(f"{type(error).__name__}: {error}")
