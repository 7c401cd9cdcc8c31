"""Define the base classes `Bank` and `Selection`, and draw the initial centres.

A rank's shard is the range of classes whose centres this rank stores. A bank stores a row for each class in
the shard. A selection represents the rows that take part in one step. The docstring of __init__.py explains
more. Each letter below stands for a count. The letters appear in shapes, such as [K, width], and at the end
of names. For example, `index_K` is an array with the shape [K].

    S     how many classes the shard has. Each array of a bank has a row for each of them
    K     how many rows a selection has (without sampling, K is S)
    P     how many row numbers a caller passes to `gather`
    U     how many row numbers a caller passes to `add_gradient`
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

# How many rows are drawn from one random stream. If you change this constant, a run with the same seed starts
# from other centres.
INIT_ROWS = 4096
UPDATE_ROWS = 4096  # how many selected rows a CPU fetches, updates and writes back at a time
# A GPU updates at most this many elements in an array at a time. An update needs temporary memory for as many
# elements.
_DEVICE_NUMBERS = 1 << 28


def initial_blocks(
    seed: int, start: int, stop: int, width: int, std: float
) -> Iterator[tuple[int, np.ndarray]]:
    """Draw the initial centres for classes [start, stop), in blocks of at most INIT_ROWS rows.

    A row's elements do not depend on how the classes are divided among the ranks.

    Args:
        seed: seed for the random numbers.
        start: first class.
        stop: the class after the last one.
        width: row length.
        std: standard deviation of the elements. Their mean is 0.

    Yields two results for each block: the number of its first class minus `start`, and its rows, float32
    [rows, width].
    """
    for first in range(start - start % INIT_ROWS, stop, INIT_ROWS):
        rng = np.random.Generator(np.random.PCG64([seed, first // INIT_ROWS]))
        drawn = rng.standard_normal((INIT_ROWS, width), np.float32)
        drawn *= np.float32(std)
        low, high = max(first, start), min(first + INIT_ROWS, stop)
        yield low - start, drawn[low - first : high - first]


def initial_rows(seed: int, start: int, stop: int, width: int, std: float) -> np.ndarray:
    """Return all rows of `initial_blocks` in one array, float32 [stop - start, width]."""
    rows = np.empty((stop - start, width), np.float32)
    for first, block in initial_blocks(seed, start, stop, width, std):
        rows[first : first + len(block)] = block
    return rows


class StateRows:
    """Stands for one of a bank's arrays while a checkpoint is written. Rows are read only when a slice is
    taken.

    Args:
        read: takes a slice with a start and a stop, and returns these rows.
        dtype: the rows' dtype. bfloat16 rows have the dtype uint16 and contain the bits of the numbers.
        shape: the array's shape.

    Attributes:
        code: "BF16" if the rows are bfloat16, otherwise None. The safetensors format uses this code for the
            dtype. If it is None, the writer derives the code from `dtype`.
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
    """Stores a shard's arrays: the centres [S, width], optionally a bias [S], and the optimizer's arrays.

    The centres and the bias are called values. An array that the optimizer keeps for a value is called a
    moment, such as "momentum". Each value has its own moments, which have the value's shape.

    Args:
        shard: this rank's classes.
        width: row length of the centres.
        bias: whether each class has a bias.
        rule: the optimizer (plsc/heads/optimizer.py).

    Attributes:
        names: names of the values: "centres", and "bias" if there is one.
        shapes: the shape of each value and each moment, by name.
        updates: how many updates were made since the centres were drawn, including those before a resume.
        version: how often the arrays have changed in this process. A `Selection` stores the bank's version
            when it is made. If the bank's version differs later, the arrays have changed.
        spare_gradients: tensors from earlier steps' gradients, by the value's name. Later steps use their
            memory again, because allocating new memory takes longer than computing the gradients.
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
        """Return the names of a value and its moments, such as ["bias", "bias_momentum"] for "bias"."""
        prefix = "" if name == "centres" else f"{name}_"
        return [name, *(prefix + moment for moment in self.rule.moments)]

    @abstractmethod
    def select(self, index_K: np.ndarray | None) -> "Selection":
        """Return the `Selection` for one step. The bank does not change.

        Args:
            index_K: row numbers, int64 [K], in ascending order. If it is None, all rows are selected.
        """

    def update_by_kernel(
        self, name: str, arrays: Mapping, index_K: np.ndarray | None, grad, update: Update
    ) -> None:
        """Update rows in arrays or CPU tensors with the rule's compiled kernel.

        Args:
            name: name of the value to update, "centres" or "bias".
            arrays: values and moments by name. They are changed in place.
            index_K: row numbers in `arrays`, int64 [K]. If it is None, all rows are selected.
            grad: gradient with respect to these rows, [K, width] or [K].
            update: the learning rate and this update's other numbers.
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
        """Return all values and moments by name, for a checkpoint. The length of their first axis is S.

        An array in host memory is returned as a view and not as a copy, so the next update changes the
        result.
        """

    def load_rows(self, start: int, rows: dict[str, np.ndarray]) -> None:
        """Overwrite the bank's rows from row `start` on.

        The new rows may come from the `state()` of another kind of bank, or of a bank with another shard.
        `rows` need not contain all arrays. A moment that `rows` does not contain keeps its numbers, which are
        0 in a new bank.

        Args:
            start: first row to overwrite.
            rows: new rows, by the array's name.
        """
        self.version += 1
        self._load_rows(start, rows)

    @abstractmethod
    def _load_rows(self, start: int, rows: dict[str, np.ndarray]) -> None: ...


class Selection(ABC):
    """Represents the K rows of a bank that take part in one step. Stores the gradients with respect to these
    rows, and updates the rows.

    A row has two numbers: its number in the bank, and its number in the selection, from 0 to K - 1.
    Selections for several steps can exist at the same time. The bank changes when a selection updates its
    rows, and when `load_rows` is called. An older selection's gradients were computed from the rows before
    the change, so its `update` then raises UserError.

    Args:
        bank: bank that stores the rows.
        index_K: the rows' numbers in the bank, int64 [K], in ascending order. If it is None, all rows are
            selected.

    Attributes:
        count: K.
    """

    def __init__(self, bank: Bank, index_K: np.ndarray | None):
        self.bank = bank
        self.index_K = index_K
        self.count = bank.shard.size if index_K is None else len(index_K)
        self._version: int | None = bank.version  # None after `free`
        self._grads: dict[str, paddle.Tensor] = {}
        self._lent: set[str] = set()  # names of gradients whose memory returns to the bank

    def check_current(self) -> None:
        """Raise UserError if the bank has changed since the rows were selected, or if `free` was called."""
        if self._version != self.bank.version:
            raise UserError(
                "the class centres have changed since this step's forward pass, so its gradients would be "
                "wrong; between a step's forward pass and its update(), do not call another step's update()"
            )

    def prefetch(self, draw: Callable[[], np.ndarray]) -> None:  # noqa: B027 (most banks have nothing to do)
        """Start to read the rows that are drawn for the next step, while this step runs.

        `HeadStep._select_classes` calls this method in each step that samples classes. Only the selections
        of an `OffloadedBank` override the method. In other selections it does nothing.

        Args:
            draw: waits until the next step's rows are drawn, and returns their numbers in the bank, int64, in
                ascending order. The result lacks the classes of the next step's samples, unless they were
                drawn, because these samples are not known yet.
        """

    @abstractmethod
    def rows(self, name: str, start: int, stop: int) -> paddle.Tensor:
        """Return the selection's rows [start, stop) from the value `name`, on the device. They are a view if
        possible."""

    @abstractmethod
    def gather(self, name: str, number_P: paddle.Tensor) -> paddle.Tensor:
        """Copy some rows from the value `name` to the device.

        Args:
            name: "centres" or "bias".
            number_P: row numbers in the selection, int64 [P].
        """

    @abstractmethod
    def host_rows(self, name: str) -> tuple[np.ndarray | paddle.Tensor, np.ndarray | None] | None:
        """Return rows from the value `name` in host memory, for a kernel to read.

        If the bank has no rows in host memory, returns None. Otherwise returns two results: an array that
        contains the selected rows, and their numbers in this array, int64 [K]. If all rows in the array are
        selected, the second result is None.
        """

    # -- gradients

    def set_gradient(self, name: str, start: int, stop: int, grad: paddle.Tensor) -> None:
        """Set the gradient with respect to the selection's rows [start, stop) in the value `name`.

        All rows' gradients must be set before `update`. If `grad` contains all K rows, it is stored without a
        copy.
        """
        if stop - start == self.count:
            self._grads[name] = grad
        else:
            write_rows(self._gradient_memory(name), start, grad)

    def add_gradient(self, name: str, number_U: paddle.Tensor, part_U: paddle.Tensor) -> None:
        """Add `part_U` to the gradient with respect to some rows. Call `set_gradient` for all rows before.

        Args:
            name: "centres" or "bias".
            number_U: row numbers in the selection, int64 [U], without duplicates.
            part_U: what to add, [U, width] or [U].
        """
        paddle.scatter_(self._grads[name], number_U, paddle.gather(self._grads[name], number_U) + part_U)

    def gradient(self, name: str) -> paddle.Tensor:
        """Return a tensor for the gradient with respect to the value `name`, [K, width] or [K]. A kernel then
        writes the gradient into this tensor."""
        return rows_in_place(self._gradient_memory(name), 0, self.count)

    def gradients(self) -> dict[str, paddle.Tensor]:
        """Return the gradients by the value's name, [K, width] and [K]. Before the backward pass and after
        `free`, the result is empty.

        After `free`, a later step may overwrite the gradients' memory. Copy a gradient that you need longer.
        """
        return {name: rows_in_place(memory, 0, self.count) for name, memory in self._grads.items()}

    def _gradient_memory(self, name: str) -> paddle.Tensor:
        """Return memory for the gradient with respect to the value `name`, with K rows or more."""
        if name not in self._grads:
            memory = self.bank.spare_gradients.pop(name, None)
            if memory is None or len(memory) < self.count:
                # With sampling, K varies between steps. Some extra rows are allocated, so that a step with a
                # larger K can use the memory again.
                rows = self.count + (0 if self.index_K is None else self.count // 16)
                memory = large_tensor([rows, self.bank.width] if name == "centres" else [rows])
            self._grads[name] = memory
            self._lent.add(name)
        return self._grads[name]

    def squares(self) -> paddle.Tensor:
        """Return two sums over the selected rows, float64 [2]: the centres' squared elements, and the squared
        elements in the gradient with respect to the centres."""
        sums = paddle.zeros([2], "float64")
        for start in range(0, self.count, self.bank.rows_at_once):
            stop = min(start + self.bank.rows_at_once, self.count)
            parts = self.rows("centres", start, stop), self._grads["centres"][start:stop]
            sums.add_(paddle.stack([_square(part) for part in parts]))
        return sums

    @paddle.no_grad()
    def first_not_finite(self) -> str:
        """Return the name of a value that is not finite, such as "the centre of class 12", or "".

        The centres of all selected classes are checked first, then their biases. An element whose square
        overflows counts as not finite. The host waits for the device.
        """
        for name in self.bank.names:
            for start in range(0, self.count, self.bank.rows_at_once):
                rows = self.rows(name, start, min(start + self.bank.rows_at_once, self.count))
                bad = np.flatnonzero(~paddle.isfinite(rows * rows).numpy().reshape(len(rows), -1).all(axis=1))
                if len(bad):
                    row = start + int(bad[0])
                    number = self.bank.shard.start + (row if self.index_K is None else self.index_K[row])
                    return f"the {'centre' if name == 'centres' else name} of class {number:,}"
        return ""

    # -- update

    def update(self, lr: float, step: int = 0, norms: tuple[float, float] | None = None) -> None:
        """Update the rows by their gradients, and call `free`. Call this method at most once.

        Args:
            lr: learning rate.
            step: training step number. It determines the random numbers for stochastic rounding.
            norms: two norms over all ranks: the norm of all selected centres together, and the norm of the
                gradient with respect to these centres. Both are floats or scalars on the device. Only a rule
                with `needs_norms` uses the norms.

        Raises UserError if the bank has changed since the rows were selected, or if `free` was called.
        """
        self.check_current()
        self.bank.updates += 1
        self.bank.version += 1
        self._update(Update(lr, self.bank.updates, norms), step)
        self.free()

    @abstractmethod
    def _update(self, update: Update, step: int) -> None: ...

    def free(self) -> None:
        """Drop the gradients, and give their memory back to the bank for a later step. Afterwards `update`
        raises UserError.

        `update` calls this method at its end. If a step is skipped, call this method instead of `update`.
        """
        self._version = None
        for name in self._lent:
            self.bank.spare_gradients[name] = self._grads[name]
        self._lent = set()
        self._grads = {}


def _square(rows: paddle.Tensor) -> paddle.Tensor:
    """Return the sum of the squared elements in `rows`, a float64 scalar on the same device."""
    if kernels.library() and rows.place.is_cpu_place():
        return paddle.full([], row_kernels.sum_of_squares(rows), "float64")
    return squared_norm(rows).astype("float64").sum()
