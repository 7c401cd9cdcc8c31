"""Run the processes that make a loader's batches.

A worker is a new interpreter. It is neither a fork nor a multiprocessing "spawn". If Paddle has started
threads in a process, its forks inherit locks that no thread releases, and sockets that keep a dead rank's
connections open. A spawn imports the user's script again, and with it Paddle. A new interpreter imports only
the modules that the data set needs. This takes 0.4 s once per run.

The parent sends the data set to its own child as a pickle. All workers share the data set's arrays in an
anonymous file. The images return through another anonymous file. A worker ends when its pipe closes, however
the parent has ended. Try it:

    workers = Workers(Synthetic(), seed=0, count=1, largest=4)
    workers.make_batch(0, np.arange(4), np.empty((4, 3, 112, 112), np.uint8))
"""

import contextlib
import mmap
import os
import pickle
import subprocess
import sys
import weakref
from multiprocessing.connection import Connection, Pipe
from multiprocessing.pool import ExceptionWithTraceback
from queue import SimpleQueue

import numpy as np

from plsc.data.batch import Replacement, make_batch
from plsc.data.dataset import Dataset
from plsc.errors import UserError, escape, in_one_line

ALIGNMENT = 64  # bytes to which the data set's arrays are aligned
# A terminal or a cluster sends its signals to all processes. A worker ignores them and ends with its parent.
_START = """
import signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
sys.path[:] = sys.argv[4:]
from plsc.data.workers import main
main(*map(int, sys.argv[1:4]))
"""


class Workers:
    """Makes batches in processes. As many threads as there are processes may call it at a time.

    Args:
        dataset: the data set, which must be picklable.
        seed: the run's seed.
        count: how many processes.
        largest: most samples in a batch.

    Raises UserError if the data set cannot be pickled.
    """

    def __init__(self, dataset: Dataset, seed: int, count: int, largest: int):
        shape = (largest, *dataset.preprocessing.shape)
        try:
            arrays: list[pickle.PickleBuffer] = []
            state = pickle.dumps(dataset, protocol=5, buffer_callback=arrays.append)
        except Exception as error:  # any error, since the class may be a user's
            raise UserError(
                f"data set {type(dataset).__name__} cannot be passed to processes: {escape(error)}; set it "
                "to 0",
                key="DataLoader.Train.num_workers",
            ) from error
        sizes = [array.raw().nbytes for array in arrays]
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        with os.fdopen(os.memfd_create("plsc-dataset"), "r+b") as shared:
            for array in arrays:
                shared.write(array.raw())
                shared.write(bytes(-shared.tell() % ALIGNMENT))
            shared.flush()
            for _ in range(count):
                self._idle.put(_Worker(shared.fileno(), (state, sizes, seed), shape))

    def make_batch(self, epoch: int, indices: np.ndarray, images: np.ndarray) -> list[Replacement]:
        """Write samples `indices` into `images` as plsc.data.batch.make_batch does.

        Raises what make_batch raises, and RuntimeError if the process has ended.
        """
        worker = self._idle.get()
        try:
            return worker.make_batch(epoch, indices, images)
        finally:
            self._idle.put(worker)


class _Worker:
    """Makes batches in one process, one batch at a time."""

    def __init__(self, dataset_file: int, dataset: tuple, shape: tuple[int, ...]):
        self._pipe, theirs = Pipe()
        with os.fdopen(os.memfd_create("plsc-images"), "r+b") as memory, theirs:
            memory.truncate(np.prod(shape))
            self._images = _mapped(memory.fileno()).reshape(shape)
            files = theirs.fileno(), dataset_file, memory.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, *map(str, files), *map(os.path.abspath, sys.path)],
                pass_fds=files,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        weakref.finalize(self, self._process.kill)  # the process has no state that could be lost
        self._pipe.send((dataset, shape))

    def make_batch(self, epoch: int, indices: np.ndarray, images: np.ndarray) -> list[Replacement]:
        try:
            self._pipe.send((epoch, indices))
            answer = self._pipe.recv()
        except (EOFError, OSError):
            code = self._process.wait()
            end = f"ended with code {code}" if code >= 0 else f"was killed (signal {-code})"
            raise RuntimeError(
                f"a process that makes batches {end}; if memory ran out, lower DataLoader.Train.num_workers"
            ) from None
        if isinstance(answer, Exception):
            raise answer
        images[...] = self._images[: len(images)]
        return answer


def _mapped(file: int, access: int = mmap.ACCESS_WRITE) -> np.ndarray:
    return np.frombuffer(mmap.mmap(file, 0, access=access), np.uint8)


def _read_dataset(file: int, state: bytes, sizes: list[int]) -> Dataset:
    try:
        return _unpacked(file, state, sizes)
    except Exception as error:  # any error, since the class may be a user's
        raise UserError(
            f"a process cannot read the data set: {in_one_line(error)}; define its class in a module that "
            "can be imported, or set it to 0",
            key="DataLoader.Train.num_workers",
        ) from error


def _unpacked(file: int, state: bytes, sizes: list[int]) -> Dataset:
    # The pages are private, because a data set may write to its arrays. Only the pages it writes to are
    # copied.
    memory = _mapped(file, mmap.ACCESS_COPY) if sum(sizes) else np.empty(0, np.uint8)
    arrays, start = [], 0
    for size in sizes:
        arrays.append(memory[start : start + size])
        start += size + -size % ALIGNMENT
    return pickle.loads(state, buffers=arrays)  # the pickle comes from the parent process


def main(pipe_file: int, dataset_file: int, memory_file: int) -> None:
    """Make batches in a worker until the pipe closes.

    Args:
        pipe_file: file descriptor for the pipe to the parent.
        dataset_file: file descriptor of the data set's arrays.
        memory_file: file descriptor of the memory for a batch's images.
    """
    with Connection(pipe_file) as pipe, contextlib.suppress(EOFError, ConnectionError):
        (state, sizes, seed), shape = pipe.recv()
        images = _mapped(memory_file).reshape(shape)
        dataset = None
        while True:
            epoch, indices = pipe.recv()
            try:
                if dataset is None:
                    dataset = _read_dataset(dataset_file, state, sizes)
                answer = make_batch(dataset, seed, epoch, indices, images[: len(indices)])
            except Exception as error:  # noqa: BLE001 - the parent raises it again
                answer = ExceptionWithTraceback(error, error.__traceback__)
            pipe.send(answer)
