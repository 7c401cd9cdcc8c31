"""Define what a bank of class centres is, and what a selection of its rows; draw the initial centres.

Symbols: __init__.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import paddle

from plsc import native as kernels
from plsc.distributed.device import takes_device_path
from plsc.distributed.paddle_internals import squared_norm
from plsc.errors import UserError
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

    bfloat16 is given by its bits, as uint16, and `code` names it in a checkpoint's file.

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
    """Holds the tables of a shard: centres [S, width], optionally a bias [S], and their optimizer state.

    Memory: S * (width + bias) float32 for the values and for each moment, where the kind of bank keeps them.

    Args:
        shard: the classes of this rank.
        width: numbers of a row.
        bias: whether each class has one more number, its bias.
        rule: updates the rows.

    Attributes:
        names: the parts of a row: "centres", and "bias" where there is one.
        shapes: of all arrays by name, values and moments.
        updates: how often the rows have been updated since their initial values.
        version: counts the changes of the tables, by which a `Selection` knows that they are not its own.
        spare_gradients: memory of earlier steps for the gradients of later ones, since fresh pages cost more
            time than the work on them.
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
        self.version = 0
        self.spare_gradients: dict[str, paddle.Tensor] = {}

    def arrays_of(self, name: str) -> list[str]:
        """Name the arrays of one part of a row, its value and its moments: ["centres", "momentum"],
        ["bias", "bias_momentum"]."""
        prefix = "" if name == "centres" else f"{name}_"
        return [name, *(prefix + moment for moment in self.rule.moments)]

    @abstractmethod
    def select(self, index_K: np.ndarray | None) -> "Selection":
        """Select rows of the shard for one step (int64 [K], rising); None: all. The bank stays as it is."""

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
        return max(1, _DEVICE_NUMBERS // self.width) if takes_device_path() else UPDATE_ROWS

    @abstractmethod
    def state(self) -> dict[str, np.ndarray | StateRows]:
        """Return the arrays of a checkpoint by name, first axis the shard's classes. In host memory these are
        views, not copies: they change with the next update."""

    def load_rows(self, start: int, rows: dict[str, np.ndarray]) -> None:
        """Overwrite the rows [start, start + len) by `rows`, cut from the `state()` of any kind of bank on
        any split of the classes. Of a new bank, whose arrays are all 0, the centres may come alone."""
        self.version += 1
        self._load_rows(start, rows)

    @abstractmethod
    def _load_rows(self, start: int, rows: dict[str, np.ndarray]) -> None: ...


class Selection(ABC):
    """Holds K rows of a bank that take part in one step, addressed by the numbers 0 to K - 1: their values,
    their gradients, their update.

    A step holds its selection, and the bank knows nothing of it: any number of steps may be open at once, and
    whatever reads the bank meanwhile changes no step. The bank changes when a selection updates its rows, and
    when rows are loaded. Selections made before are refused from then on, since what they computed belongs to
    rows that are gone.

    Args:
        bank: that the rows belong to.
        index_K: their numbers in the shard, int64 [K], rising; None: all rows.

    Attributes: `count`, K.
    """

    def __init__(self, bank: Bank, index_K: np.ndarray | None):
        self.bank = bank
        self.index_K = index_K
        self.count = bank.shard.size if index_K is None else len(index_K)
        self._version: int | None = bank.version  # None: it is over
        self._grads: dict[str, paddle.Tensor] = {}
        self._lent: set[str] = set()  # gradients whose memory is the bank's

    def check_current(self) -> None:
        """Raise UserError if the bank has changed since these rows were selected, or if they were freed."""
        if self._version != self.bank.version:
            raise UserError(
                "the class centres were updated or loaded after the forward pass of this step, so its "
                "gradients would be wrong; finish a step, from the forward pass to update(), before another "
                "one updates"
            )

    def prefetch(self, draw: Callable[[], np.ndarray]) -> None:  # noqa: B027 (most banks have nothing to do)
        """Fetch the rows of the next step, as far as `draw` knows them, while this step runs. Only an
        offloaded bank calls `draw`."""

    @abstractmethod
    def rows(self, name: str, start: int, stop: int) -> paddle.Tensor:
        """Read rows [start, stop) of "centres" or "bias" on the device: a view where possible."""

    @abstractmethod
    def gather(self, name: str, number_P: paddle.Tensor) -> paddle.Tensor:
        """Copy the rows with these numbers (int64 [P]) of "centres" or "bias" to the device."""

    @abstractmethod
    def host_rows(self, name: str) -> tuple[np.ndarray | paddle.Tensor, np.ndarray | None] | None:
        """Return rows in host memory for a kernel to read, and the positions of the selected rows among them,
        int64 [K] (None: all in their order). Return None if there are no such rows."""

    # -- gradients

    def set_gradient(self, name: str, start: int, stop: int, grad: paddle.Tensor) -> None:
        """Set the gradient of rows [start, stop). Every row must be set before `update`. The gradient of all
        rows is kept as it is given."""
        if stop - start == self.count:
            self._grads[name] = grad
        else:
            write_rows(self._gradient_memory(name), start, grad)

    def add_gradient(self, name: str, number_U: paddle.Tensor, part_U: paddle.Tensor) -> None:
        """Add to the gradients of the rows with these numbers, all different: [U] and [U, width] or [U]."""
        paddle.scatter_(self._grads[name], number_U, paddle.gather(self._grads[name], number_U) + part_U)

    def gradient(self, name: str) -> paddle.Tensor:
        """Return the memory of the rows' gradient, [K, width] or [K], for a kernel to write."""
        return rows_in_place(self._gradient_memory(name), 0, self.count)

    def gradients(self) -> dict[str, paddle.Tensor]:
        """Return the gradients by name, [K, width], [K]; empty before the backward pass. Their memory belongs
        to a later step after `update`: copy what shall stay."""
        return {name: rows_in_place(memory, 0, self.count) for name, memory in self._grads.items()}

    def _gradient_memory(self, name: str) -> paddle.Tensor:
        """Return that memory with its spare rows."""
        if name not in self._grads:
            memory = self.bank.spare_gradients.pop(name, None)
            if memory is None or len(memory) < self.count:
                # Sampling takes a few more or less each step: some spare rows, so that no later step needs
                # new memory.
                rows = self.count + (0 if self.index_K is None else self.count // 16)
                memory = large_tensor([rows, self.bank.width] if name == "centres" else [rows])
            self._grads[name] = memory
            self._lent.add(name)
        return self._grads[name]

    def squares(self) -> paddle.Tensor:
        """Sum the squares of the centres, and of their gradient, on this rank: float64 [2]."""
        sums = paddle.zeros([2], "float64")
        for start in range(0, self.count, self.bank.rows_at_once):
            stop = min(start + self.bank.rows_at_once, self.count)
            parts = self.rows("centres", start, stop), self._grads["centres"][start:stop]
            sums.add_(paddle.stack([_square(part) for part in parts]))
        return sums

    # -- update

    def update(self, lr: float, step: int = 0, norms: tuple[float, float] | None = None) -> None:
        """Update the rows by their gradients, once.

        Args:
            step: number of the training step, from which a bank that rounds at random draws.
            norms: of the selected centres and their gradient on all ranks together, if the rule `needs_norms`
                (see `squares`).

        Raises UserError if the bank has changed since the rows were selected.
        """
        self.check_current()
        self.bank.updates += 1
        self.bank.version += 1
        self._update(Update(lr, self.bank.updates, norms), step)
        self.free()

    @abstractmethod
    def _update(self, update: Update, step: int) -> None: ...

    def free(self) -> None:
        """End the step: give its memory back to the bank, for a later one. It is called once."""
        self._version = None
        for name in self._lent:
            self.bank.spare_gradients[name] = self._grads[name]
        self._lent = set()
        self._grads = {}


def _square(rows: paddle.Tensor) -> paddle.Tensor:
    """Sum the squares, a float64 scalar where the rows are."""
    if kernels.library() and rows.place.is_cpu_place():
        return paddle.full([], row_kernels.sum_of_squares(rows), "float64")
    return squared_norm(rows).astype("float64").sum()
