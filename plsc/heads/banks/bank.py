"""Define what a bank of class centres is, and draw the initial ones. Symbols: __init__.py."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import paddle
from paddle import _C_ops

from plsc import native as kernels
from plsc.distributed.device import asynchronous
from plsc.heads.banks.tensors import large_tensor, rows_in_place, write_rows
from plsc.heads.optimizer import Rule, Update
from plsc.heads.sampling import ClassShard
from plsc.native.bfloat16 import float32_of
from plsc.native.heads import rows as row_kernels

INIT_ROWS = 4096  # rows that share one random stream; changing it changes every run's initial centres
UPDATE_ROWS = 4096  # selected rows that a CPU fetches, updates and writes back at a time
_DEVICE_NUMBERS = 1 << 28  # of each array that a GPU takes at a time: an update has temporaries as large


def initial_blocks(
    seed: int, start: int, stop: int, width: int, std: float
) -> Iterator[tuple[int, np.ndarray]]:
    """Draw rows [start, stop) of the class matrix, N(0, std), block by block -> the number of a block's first
    row, counted from `start`, and its rows, float32 [., width]. A row is the same for any split of the
    classes."""
    for first in range(start - start % INIT_ROWS, stop, INIT_ROWS):
        rng = np.random.Generator(np.random.PCG64([seed, first // INIT_ROWS]))
        drawn = rng.standard_normal((INIT_ROWS, width), np.float32)
        drawn *= np.float32(std)
        low, high = max(first, start), min(first + INIT_ROWS, stop)
        yield low - start, drawn[low - first : high - first]


def initial_rows(seed: int, start: int, stop: int, width: int, std: float) -> np.ndarray:
    """Draw the rows of `initial_blocks` into one array [stop - start, width]."""
    rows = np.empty((stop - start, width), np.float32)
    for first, block in initial_blocks(seed, start, stop, width, std):
        rows[first : first + len(block)] = block
    return rows


class StateRows:
    """Presents an array of a bank to a checkpoint, and reads rows only when a slice of them is asked for.

    bfloat16 is given as uint16, its bits; `code` names it in a checkpoint's file.

    Args:
        read: returns the rows of a slice with start and stop.
    """

    def __init__(self, read: Callable[[slice], np.ndarray], dtype: np.dtype, shape: tuple[int, ...]):
        self._read = read
        self.dtype = np.dtype(dtype)
        self.shape = shape
        self.code = "BF16" if self.dtype == np.uint16 else None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self._read(slice(*rows.indices(len(self))[:2]))

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.asarray(float32_of(self[:]), dtype)


class Bank(ABC):
    """Holds centres [S, width], optionally a bias [S], their optimizer state, and the gradient of the
    selected rows.

    Memory: values and moments, S * (width + bias) float32 each, where the kind of bank keeps them; the
    gradient, K of these rows, on the device.

    Args:
        shard: the classes of this rank. width: numbers of a row. bias: whether each class has one more, its
            bias.
        rule: updates the rows.

    Attributes:
        names: the parts of a row: "centres", and "bias" where there is one.
        shapes: of all arrays by name, values and moments.
        updates: how often the rows have been updated since their initial values.
        index_K: the selected rows, int64 [K], rising; None: all.
    """

    def __init__(self, shard: ClassShard, width: int, *, bias: bool, rule: Rule):
        self.shard = shard
        self.width = width
        self.bias = bias
        self.names = ["centres", "bias"] if bias else ["centres"]
        self.rule = rule
        self.shapes = {
            array: (shard.size, width) if name == "centres" else (shard.size,)
            for name in self.names
            for array in self.arrays_of(name)
        }
        self.updates = 0
        self.index_K: np.ndarray | None = None
        self._grads: dict[str, paddle.Tensor] = {}

    def arrays_of(self, name: str) -> list[str]:
        """Name the arrays of one part of a row, its value and its moments: ["centres", "momentum"],
        ["bias", "bias_momentum"]."""
        prefix = "" if name == "centres" else f"{name}_"
        return [name, *(prefix + moment for moment in self.rule.moments)]

    @property
    def selected(self) -> int:
        """K, the number of rows that take part in the step."""
        return self.shard.size if self.index_K is None else len(self.index_K)

    def select(self, index_K: np.ndarray | None) -> None:
        """Let these rows of the shard (int64 [K], rising) take part until the next call; None: all."""
        self.index_K = index_K

    def prefetch(self, draw: Callable[[], np.ndarray]) -> None:  # noqa: B027 (most banks have nothing to do)
        """Fetch the rows that the next step will select, as far as `draw` knows them, while this step runs.
        Called after `select`; only an offloaded bank calls `draw`."""

    @abstractmethod
    def rows(self, name: str, start: int, stop: int) -> paddle.Tensor:
        """Read selected rows [start, stop) of "centres" or "bias" on the device: a view where possible."""

    @abstractmethod
    def gather(self, name: str, number_P: paddle.Tensor) -> paddle.Tensor:
        """Copy the selected rows with these numbers (int64 [P]) of "centres" or "bias" to the device."""

    @abstractmethod
    def host_rows(self, name: str) -> tuple[np.ndarray | paddle.Tensor, np.ndarray | None] | None:
        """Return rows in host memory, for a kernel to read, and the places of the selected ones among them,
        int64 [K] (None: all in their order). None where there are no such rows."""

    def update(self, lr: float, step: int = 0, norms: tuple[float, float] | None = None) -> None:
        """Update the selected rows by the gradients set since they were selected.

        Args:
            step: the training step's number, from which a bank that rounds at random draws.
            norms: of the selected centres and their gradient on all ranks together, if the rule `needs_norms`
                (see `squares`).
        """
        self.updates += 1
        self._update(Update(lr, self.updates, norms), step)

    @abstractmethod
    def _update(self, update: Update, step: int) -> None: ...

    def update_by_kernel(
        self, name: str, arrays: Mapping, index_K: np.ndarray | None, grad, update: Update
    ) -> None:
        """Update these rows of arrays or tensors in host memory by the kernel of the rule."""
        value, *moments = (arrays[each] for each in self.arrays_of(name))
        numbers = self.rule.kernel_numbers(name, update)
        row_kernels.update(self.rule.kernel, value, moments, index_K, grad, numbers)

    @property
    def rows_at_once(self) -> int:
        """How many selected rows are fetched and updated at a time."""
        return max(1, _DEVICE_NUMBERS // self.width) if asynchronous() else UPDATE_ROWS

    def squares(self) -> paddle.Tensor:
        """Sum the squares of the selected centres, and of their gradient, on this rank: float64 [2]."""
        sums = paddle.zeros([2], "float64")
        for start in range(0, self.selected, self.rows_at_once):
            stop = min(start + self.rows_at_once, self.selected)
            parts = self.rows("centres", start, stop), self._grads["centres"][start:stop]
            sums.add_(paddle.stack([_square(part) for part in parts]))
        return sums

    def set_gradient(self, name: str, start: int, stop: int, grad: paddle.Tensor) -> None:
        """Keep the gradient of selected rows [start, stop) for the next `update`. Every selected row must be
        set before it. That of all rows is kept as it is given."""
        if stop - start == self.selected:
            self._grads[name] = grad
        else:
            write_rows(self._gradient_memory(name), start, grad)

    def add_gradient(self, name: str, number_N: paddle.Tensor, part_N: paddle.Tensor) -> None:
        """Add to the gradients of the selected rows with these numbers, [N] and [N, width] or [N]: parts of
        the same number are the same, and one of them is added."""
        paddle.scatter_(self._grads[name], number_N, paddle.gather(self._grads[name], number_N) + part_N)

    def gradient(self, name: str) -> paddle.Tensor:
        """Return the memory of the selected rows' gradient, [K, width] or [K], for a kernel to write."""
        return rows_in_place(self._gradient_memory(name), 0, self.selected)

    def _gradient_memory(self, name: str) -> paddle.Tensor:
        """Return that memory with its spare rows."""
        memory = self._grads.get(name)
        needed = self.selected
        if memory is None or len(memory) < needed:
            # Sampling takes a few more or less each step: some spare rows, so that no later step needs new
            # memory.
            count = needed + (0 if self.index_K is None else needed // 16)
            memory = large_tensor([count, self.width] if name == "centres" else [count])
            self._grads[name] = memory
        return memory

    def gradients(self) -> dict[str, paddle.Tensor]:
        """Return the selected rows' gradients by name, [K, width], [K]; empty before the first backward."""
        return {name: rows_in_place(memory, 0, self.selected) for name, memory in self._grads.items()}

    @abstractmethod
    def state(self) -> dict[str, np.ndarray | StateRows]:
        """Return the arrays of a checkpoint by name, first axis the shard's classes. In host memory these are
        views, not copies: they change with the next update."""

    @abstractmethod
    def load_rows(self, start: int, rows: dict[str, np.ndarray]) -> None:
        """Overwrite the rows [start, start + len) by `rows`, cut from the `state()` of any kind of bank on
        any split of the classes. Of a new bank, whose arrays are all 0, the centres may come alone."""


def _square(rows: paddle.Tensor) -> paddle.Tensor:
    """Sum the squares, a float64 scalar where the rows are."""
    if kernels.library() and rows.place.is_cpu_place():
        return paddle.full([], row_kernels.sum_of_squares(rows), "float64")
    return _C_ops.squared_l2_norm(rows).astype("float64").sum()
