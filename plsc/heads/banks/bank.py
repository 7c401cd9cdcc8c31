"""Define a bank of class centres and a selection of its rows, as interfaces.

This module also draws the initial centres. __init__.py explains the symbols.
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

INIT_ROWS = 4096  # rows that share one random stream. Changing it changes every run's initial centres.
UPDATE_ROWS = 4096  # selected rows that a CPU fetches, updates and writes back at a time
# Elements in each array that a GPU updates at a time. An update needs temporary memory of the same size.
_DEVICE_NUMBERS = 1 << 28


def initial_blocks(
    seed: int, start: int, stop: int, width: int, std: float
) -> Iterator[tuple[int, np.ndarray]]:
    """Draw rows [start, stop) of the class matrix block by block.

    A row has the same values however the classes are split.

    Args:
        seed: the class matrix's seed.
        start: first row.
        stop: row after the last one.
        width: how many numbers a row has.
        std: the numbers' standard deviation. Their mean is 0.

    Yields: the position of a block's first row, counted from `start`, and the block's rows, float32 [.,
        width].
    """
    for first in range(start - start % INIT_ROWS, stop, INIT_ROWS):
        rng = np.random.Generator(np.random.PCG64([seed, first // INIT_ROWS]))
        drawn = rng.standard_normal((INIT_ROWS, width), np.float32)
        drawn *= np.float32(std)
        low, high = max(first, start), min(first + INIT_ROWS, stop)
        yield low - start, drawn[low - first : high - first]


def initial_rows(seed: int, start: int, stop: int, width: int, std: float) -> np.ndarray:
    """Draw `initial_blocks` into one array [stop - start, width]."""
    rows = np.empty((stop - start, width), np.float32)
    for first, block in initial_blocks(seed, start, stop, width, std):
        rows[first : first + len(block)] = block
    return rows


class StateRows:
    """Presents a bank's array to a checkpoint, and reads rows only when they are sliced.

    bfloat16 numbers are returned as their bits in uint16.

    Args:
        read: returns the rows in a slice with a start and a stop.
        dtype: the rows' dtype.
        shape: the array's shape.
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
    """Stores a shard's arrays: centres [S, width], optionally a bias [S], and their optimizer state.

    The values have S * (width + bias) elements, and so has each moment.

    Args:
        shard: this rank's classes.
        width: how many numbers a row has.
        bias: whether each class has a bias.
        rule: updates the rows.

    Attributes:
        names: a row's parts: "centres", and "bias" if there is one.
        shapes: all arrays' shapes by name, both values and moments.
        updates: number of updates since the initial values.
        version: number of changes to the arrays. A `Selection` compares it, to notice a change.
        spare_gradients: memory from earlier steps that later steps reuse for gradients, since allocating new
            memory pages takes longer than computing the gradients in them.
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
        """Return the array names for one part of a row: its value, then its moments.

        Examples are ["centres", "momentum"] and ["bias", "bias_momentum"].
        """
        prefix = "" if name == "centres" else f"{name}_"
        return [name, *(prefix + moment for moment in self.rule.moments)]

    @abstractmethod
    def select(self, index_K: np.ndarray | None) -> "Selection":
        """Select rows for one step. The bank does not change.

        Args:
            index_K: row numbers, int64 [K], in ascending order. None selects all rows.
        """

    def update_by_kernel(
        self, name: str, arrays: Mapping, index_K: np.ndarray | None, grad, update: Update
    ) -> None:
        """Update rows of arrays or CPU tensors with the rule's compiled kernel.

        Args:
            name: "centres" or "bias".
            arrays: values and moments by name.
            index_K: row numbers, int64 [K]. None selects all rows.
            grad: their gradient, [K, width] or [K].
            update: the learning rate, the number of the update, and norms.
        """
        value, *moments = (arrays[each] for each in self.arrays_of(name))
        numbers = self.rule.kernel_numbers(name, update)
        row_kernels.update(self.rule.kernel, value, moments, index_K, grad, numbers)

    @property
    def rows_at_once(self) -> int:
        """How many selected rows are fetched and updated at a time."""
        return max(1, _DEVICE_NUMBERS // self.width) if takes_device_path() else UPDATE_ROWS

    @abstractmethod
    def state(self) -> dict[str, np.ndarray | StateRows]:
        """Return a mapping from name to array, for a checkpoint. The arrays' first axis is the shard's
        classes.

        Arrays in host memory are views, not copies. They change with the next update.
        """

    def load_rows(self, start: int, rows: dict[str, np.ndarray]) -> None:
        """Overwrite the rows that begin at `start` with `rows`.

        The rows may come from any kind of bank's `state()` and any split of the classes. A new bank's
        arrays are all 0, so the centres are enough to initialise it.
        """
        self.version += 1
        self._load_rows(start, rows)

    @abstractmethod
    def _load_rows(self, start: int, rows: dict[str, np.ndarray]) -> None: ...


class Selection(ABC):
    """Holds values and gradients for the K rows of a bank that take part in one step, and updates them.

    The rows are numbered from 0 to K - 1. A step refers to its selection. The bank does not refer to its
    selections. Several steps may therefore be open at once, and reading the bank changes no step. The bank
    changes when a selection updates its rows, and when rows are loaded. Selections that were made earlier are
    refused from then on, since their results were computed from the old rows.

    Args:
        bank: the bank that contains the rows.
        index_K: row numbers in the shard, int64 [K], in ascending order. None selects all rows.

    Attributes:
        count: K.
    """

    def __init__(self, bank: Bank, index_K: np.ndarray | None):
        self.bank = bank
        self.index_K = index_K
        self.count = bank.shard.size if index_K is None else len(index_K)
        self._version: int | None = bank.version  # None: the step has ended
        self._grads: dict[str, paddle.Tensor] = {}
        self._lent: set[str] = set()  # names of gradients whose memory returns to the bank

    def check_current(self) -> None:
        """Raise UserError if the bank has changed since these rows were selected, or if they were freed."""
        if self._version != self.bank.version:
            raise UserError(
                "the class centres have changed since this step's forward pass, so its gradients would be "
                "wrong; run a step's forward pass, backward pass and update() before another step's update()"
            )

    def prefetch(self, draw: Callable[[], np.ndarray]) -> None:  # noqa: B027 (most banks have nothing to do)
        """Fetch the next step's rows while this step runs.

        Args:
            draw: returns the numbers of the next step's rows that are known in advance. These are the
                randomly drawn rows, without the samples' own classes. Only an offloaded bank calls it.
        """

    @abstractmethod
    def rows(self, name: str, start: int, stop: int) -> paddle.Tensor:
        """Return rows [start, stop) of "centres" or "bias" on the device, as a view if possible."""

    @abstractmethod
    def gather(self, name: str, number_P: paddle.Tensor) -> paddle.Tensor:
        """Copy the rows with these numbers (int64 [P]) of "centres" or "bias" to the device."""

    @abstractmethod
    def host_rows(self, name: str) -> tuple[np.ndarray | paddle.Tensor, np.ndarray | None] | None:
        """Return rows in host memory for a kernel to read, or None if the bank has none there.

        Returns: the rows, and the positions of the selected rows among them, int64 [K]. The
        positions are None if all rows are selected.
        """

    # -- gradients

    def set_gradient(self, name: str, start: int, stop: int, grad: paddle.Tensor) -> None:
        """Set the gradient of rows [start, stop). Every row must be set before `update`.

        If `grad` covers all rows, it is kept without a copy.
        """
        if stop - start == self.count:
            self._grads[name] = grad
        else:
            write_rows(self._gradient_memory(name), start, grad)

    def add_gradient(self, name: str, number_U: paddle.Tensor, part_U: paddle.Tensor) -> None:
        """Add to some rows' gradients.

        Args:
            name: "centres" or "bias".
            number_U: row numbers, int64 [U], all different.
            part_U: the values to add, [U, width] or [U].
        """
        paddle.scatter_(self._grads[name], number_U, paddle.gather(self._grads[name], number_U) + part_U)

    def gradient(self, name: str) -> paddle.Tensor:
        """Return the rows' gradient memory, [K, width] or [K], for a kernel to write."""
        return rows_in_place(self._gradient_memory(name), 0, self.count)

    def gradients(self) -> dict[str, paddle.Tensor]:
        """Return the gradients by name, [K, width] and [K]. The result is empty before the backward pass.

        A later step may overwrite their memory after `update`, so copy the gradients that you need longer.
        """
        return {name: rows_in_place(memory, 0, self.count) for name, memory in self._grads.items()}

    def _gradient_memory(self, name: str) -> paddle.Tensor:
        """Return the rows' gradient memory, including spare rows."""
        if name not in self._grads:
            memory = self.bank.spare_gradients.pop(name, None)
            if memory is None or len(memory) < self.count:
                # The number of sampled rows varies from step to step. Spare rows avoid new memory in
                # later steps.
                rows = self.count + (0 if self.index_K is None else self.count // 16)
                memory = large_tensor([rows, self.bank.width] if name == "centres" else [rows])
            self._grads[name] = memory
            self._lent.add(name)
        return self._grads[name]

    def squares(self) -> paddle.Tensor:
        """Return the sums of squares for the centres and their gradient on this rank: float64 [2]."""
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
            lr: learning rate.
            step: training step. A bank that rounds at random derives its random numbers from
                it.
            norms: norms for the selected centres and their gradient over all ranks (see `squares`). Only
                a rule with `needs_norms` uses them.

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
        """End the step, and return its memory to the bank for a later step. Call this once."""
        self._version = None
        for name in self._lent:
            self.bank.spare_gradients[name] = self._grads[name]
        self._lent = set()
        self._grads = {}


def _square(rows: paddle.Tensor) -> paddle.Tensor:
    """Return the sum of squares as a float64 scalar on the rows' device."""
    if kernels.library() and rows.place.is_cpu_place():
        return paddle.full([], row_kernels.sum_of_squares(rows), "float64")
    return squared_norm(rows).astype("float64").sum()
