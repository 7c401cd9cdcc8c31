"""Banks: hold a shard's class centres with their optimizer state, and update them.

    S classes in this rank's shard   K of them selected for the step (all: K = S)   D embedding size   b rows of a class block

A step selects rows, addresses them by their numbers 0..K-1, and updates only these, by one rule
(optimizer.py). `DeviceBank` keeps the rows on the device that computes, `HostBank` in host memory, where more
of them fit, `OffloadedBank` (offloaded_bank.py) on the disk or as bfloat16; the selected rows are then copied
to the device, and their gradients back. A row's initial value depends on (seed, row) alone, so any number of
ranks starts from the same centres.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import paddle
from paddle import _C_ops
from paddle.utils import dlpack

from plsc import native as kernels
from plsc.heads.optimizer import Rule, Update, moment_name
from plsc.native.heads import rows as row_kernels
from plsc.utils.bfloat16 import float32_of
from plsc.utils.device import asynchronous, on_gpu
from plsc.utils.sharding import ClassShard
from plsc.utils.tensors import rows_in_place, tensor_of, write_rows

_INIT_ROWS = 4096  # rows that share one random stream; changing it changes every run's initial centres

_NUMBERS_AT_ONCE = 1 << 30  # that one reduction on a device adds up: some count them in 32 bits

_UPDATE_ROWS = 4096  # selected rows that a CPU fetches, updates and writes back at a time
_UPDATE_NUMBERS = 1 << 28  # of each array that a GPU updates at a time: an update has temporaries as large


def initial_blocks(
    seed: int, start: int, stop: int, width: int, std: float
) -> Iterator[tuple[int, np.ndarray]]:
    """Draw rows [start, stop) of the class matrix, N(0, std), block by block -> the number of a block's first row, counted
    from `start`, and its rows, float32 [., width]. A row is the same for any split of the classes."""
    for first in range(start - start % _INIT_ROWS, stop, _INIT_ROWS):
        rng = np.random.Generator(np.random.PCG64([seed, first // _INIT_ROWS]))
        drawn = rng.standard_normal((_INIT_ROWS, width), np.float32)
        drawn *= np.float32(std)
        low, high = max(first, start), min(first + _INIT_ROWS, stop)
        yield low - start, drawn[low - first : high - first]


def initial_rows(seed: int, start: int, stop: int, width: int, std: float) -> np.ndarray:
    """Draw the rows of `initial_blocks` into one array [stop - start, width]."""
    rows = np.empty((stop - start, width), np.float32)
    for first, block in initial_blocks(seed, start, stop, width, std):
        rows[first : first + len(block)] = block
    return rows


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
        updates: how often the rows have been updated since their initial values.
    """

    itemsize = 4  # bytes of a stored number, also in a checkpoint
    on_device = False  # whether rows can be selected by a tensor, with `select_on_device`
    has_zeros = True  # whether centres of length 0 may be among the rows

    def __init__(self, shard: ClassShard, width: int, *, bias: bool, rule: Rule):
        self.shard = shard
        self.width = width
        self.bias = bias
        self.rule = rule
        self.updates = 0
        self._grads: dict[str, paddle.Tensor] = {}
        self._index_K: np.ndarray | None = None

    @property
    def names(self) -> list[str]:
        """The parts of a row: "centres", and "bias" where there is one."""
        return ["centres", "bias"] if self.bias else ["centres"]

    def moments_of(self, name: str) -> list[str]:
        """Name the arrays of the optimizer state of one part: ["momentum"] of "centres"."""
        return [moment_name(name, moment) for moment in self.rule.moments]

    # -- the rows of a step -------------------------------------------------------------------------------------------------

    @property
    def selected(self) -> int:
        """K, the number of rows that take part in the step."""
        return self.shard.size if self._index_K is None else len(self._index_K)

    @property
    def index(self) -> np.ndarray:
        """The selected rows, int64 [K], rising."""
        return np.arange(self.shard.size) if self._index_K is None else self._index_K

    @property
    def index_tensor(self) -> paddle.Tensor:
        """The selected rows on the device, int64 [K]; the shard's size for one that is not used."""
        return tensor_of(self.index)

    @property
    def certain(self) -> int:
        """How many of the K selected rows, the first ones, are used for certain; see `unused`."""
        return self.selected

    @property
    def unused(self) -> paddle.Tensor:
        """1 of the selected rows from `certain` on that are not used, else 0: float32 on the device."""
        return paddle.zeros([0])

    def select(self, index_K: np.ndarray | None) -> None:
        """Let these rows of the shard (int64 [K], rising) take part until the next call; None: all of
        them."""
        self._index_K = index_K

    def prefetch(self, draw: Callable[[], np.ndarray]) -> None:  # noqa: B027 (most banks have nothing to do)
        """Fetch the rows that the next step will select, as far as `draw` knows them, while this step runs.
        Called after `select`; only an offloaded bank calls `draw`."""

    @abstractmethod
    def rows(self, name: str, start: int, stop: int) -> paddle.Tensor:
        """Read selected rows [start, stop) of "centres" or "bias" on the device: a view where that is
        possible."""

    @abstractmethod
    def gather(self, name: str, number_P: paddle.Tensor) -> paddle.Tensor:
        """Copy the selected rows with these numbers (int64 [P]) of "centres" or "bias" to the device."""

    @abstractmethod
    def host_rows(self, name: str) -> tuple[np.ndarray | paddle.Tensor, np.ndarray | None] | None:
        """Return the rows in host memory, for a kernel to read, and which of them are selected, int64 [K]
        (None: all). None where there are no such rows."""

    def update(
        self,
        lr: float,
        step: int = 0,
        norms: tuple[float, float] | None = None,
    ) -> None:
        """Update the selected rows by the gradients set since they were selected.

        Args:
            step: the training step's number, from which a bank that rounds at random draws.
            norms: of the selected centres and their gradient on all ranks together, if the rule `needs_norms`
                (see `squares`).
        """
        assert self._grads or not self.selected, "update() before a backward pass"
        assert (norms is not None) == self.rule.needs_norms
        self.updates += 1
        self._update(Update(lr, self.updates, norms), step)

    @abstractmethod
    def _update(self, update: Update, step: int) -> None: ...

    def squares(self) -> tuple[float, float] | paddle.Tensor:
        """Sum the squares of the selected centres, and of their gradient; both on this rank. Where reading them
        would wait, they are a tensor [2]."""
        centres = gradient = 0.0
        for start in range(0, self.selected, _UPDATE_ROWS):
            stop = min(start + _UPDATE_ROWS, self.selected)
            centres += _square(self.rows("centres", start, stop))
            gradient += _square(self._grads["centres"][start:stop])
        return float(centres), float(gradient)

    def finish(self) -> None:  # noqa: B027 (most banks have nothing to do)
        """Wait for the reads and writes that an offloaded bank does beside a step, as the next step does."""

    # -- gradients ----------------------------------------------------------------------------------------------------------

    def set_gradient(self, name: str, start: int, stop: int, grad: paddle.Tensor) -> None:
        """Keep the gradient of selected rows [start, stop) for the next `update`. Every selected row must be
        set before it. That of all rows is kept as it is given."""
        if stop - start == self.selected:
            self._grads[name] = grad
        else:
            write_rows(self._gradient_memory(name), start, grad)

    def add_gradient(self, name: str, number_N: paddle.Tensor, part_N: paddle.Tensor) -> None:
        """Add to the gradients of the selected rows with these numbers, [N] and [N, width] or [N]."""
        _C_ops.index_add_(self._grads[name], number_N, part_N, 0)

    def gradient(self, name: str) -> paddle.Tensor:
        """Return the memory for the gradient of the selected rows, [K, width] or [K], for a kernel that writes it
        in place."""
        return rows_in_place(self._gradient_memory(name), 0, self.selected)

    def _gradient_memory(self, name: str) -> paddle.Tensor:
        """Return that memory with its spare rows."""
        memory = self._grads.get(name)
        needed = self.selected
        if memory is None or len(memory) < needed:
            # Sampling takes a few more or less each step: some spare rows, so that no later step needs new memory.
            count = needed + (0 if self._index_K is None else needed // 16)
            memory = paddle.empty([count, self.width] if name == "centres" else [count])
            self._grads[name] = memory
        return memory

    def gradients(self) -> dict[str, paddle.Tensor]:
        """Return the gradients of the selected rows by name, [K, width] and [K]; empty before the first
        backward."""
        return {name: rows_in_place(memory, 0, self.selected) for name, memory in self._grads.items()}

    # -- checkpoints --------------------------------------------------------------------------------------------------------

    @property
    def numbers(self) -> int:
        """Numbers of a class in a checkpoint: values and moments."""
        return (self.width + self.bias) * (1 + len(self.rule.moments))

    def resume(self, updates: int) -> None:
        """Go on counting updates from those of a checkpoint."""
        self.updates = updates

    def write_initial_rows(self) -> None:  # noqa: B027 (most banks have nothing to do)
        """Write the initial rows that no checkpoint has brought, which would delay the first step. Only an
        offloaded bank has to."""

    @abstractmethod
    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays of a checkpoint by name, first axis the shard's classes. In host memory these are
        views, not copies: they change with the next update."""

    @abstractmethod
    def load_rows(self, start: int, rows: dict[str, np.ndarray]) -> None:
        """Overwrite the rows [start, start + len) by `rows`, cut from the `state()` of any kind of bank on
        any split of the classes."""


def _sum_of_squares(rows: paddle.Tensor) -> paddle.Tensor:
    """Sum the squares, however many numbers there are -> float32 scalar on the device."""
    piece = max(1, _NUMBERS_AT_ONCE * len(rows) // max(1, rows.size))
    totals = [
        _C_ops.squared_l2_norm(rows[start : start + piece]).reshape([])
        for start in range(0, len(rows), piece)
    ]
    return paddle.add_n(totals) if totals else paddle.zeros([])


def _square(rows: paddle.Tensor) -> float | paddle.Tensor:
    """Sum the squares; on a device the sum stays there."""
    if kernels.library() and rows.place.is_cpu_place():
        return row_kernels.sum_of_squares(rows)
    return _C_ops.squared_l2_norm(rows).astype("float64").sum()


class DeviceBank(Bank):
    """Keeps the rows on the device that Paddle computes on; without sampling they are used in place.

    Each array has one row more than the shard has classes, for numbers that nobody needs: those of selected rows that
    turn out not to be used (see `select_on_device`).
    """

    on_device = True

    def __init__(self, shard: ClassShard, width: int, *, bias: bool, rule: Rule, std: float, seed: int):
        super().__init__(shard, width, bias=bias, rule=rule)
        self._tables = {}
        for name in self.names:
            shape = [shard.size + 1, width] if name == "centres" else [shard.size + 1]
            for array in (name, *self.moments_of(name)):
                self._tables[array] = paddle.zeros(shape)
        self.has_zeros = False
        for first, block in initial_blocks(seed, shard.start, shard.stop, width, std):
            self._write("centres", first, block)
        self.select(None)

    def _write(self, name: str, start: int, rows: np.ndarray) -> None:
        """Overwrite the rows from `start` on."""
        for first in range(0, len(rows), _INIT_ROWS):
            given = rows[first : first + _INIT_ROWS]
            write_rows(self._tables[name], start + first, paddle.to_tensor(given))
            if name == "centres":
                self.has_zeros = self.has_zeros or not given.any(axis=1).all()

    def _array(self, name: str) -> paddle.Tensor:
        """Return an array's rows of the shard's classes, to be read, or written by a kernel."""
        return rows_in_place(self._tables[name], 0, self.shard.size)

    # -- the rows of a step -------------------------------------------------------------------------------------------------

    def select(self, index_K):
        super().select(index_K)
        self._index_tensor = None if index_K is None else tensor_of(index_K)
        self._selected = self.shard.size if index_K is None else len(index_K)
        self._certain = self._selected
        self._fetched = {}

    def select_on_device(self, index_K: paddle.Tensor, certain: int) -> None:
        """Let these rows take part until the next selection: int64 [K] on the device, rising, the shard's size
        for one that is not used; only such from number `certain` on."""
        self.select(None)
        self._index_tensor = index_K
        self._selected = len(index_K)
        self._certain = certain

    @property
    def selected(self):
        return self._selected

    @property
    def certain(self):
        return self._certain

    @property
    def unused(self):
        if self._certain == self._selected:
            return super().unused
        return (self._index_tensor[self._certain :] == self.shard.size).astype("float32")

    @property
    def index(self):
        if self._certain == self._selected:
            return super().index
        index_K = self._index_tensor.numpy()
        return index_K[index_K < self.shard.size]

    @property
    def index_tensor(self):
        return super().index_tensor if self._index_tensor is None else self._index_tensor

    def rows(self, name, start, stop):
        if self._index_tensor is None:
            return rows_in_place(self._tables[name], start, stop)
        if asynchronous():
            return self._fetch(name)[start:stop]
        return paddle.gather(self._tables[name], self._index_tensor[start:stop])

    def _fetch(self, name: str) -> paddle.Tensor:
        """Copy all selected rows, once in a step; for a row that is not used, any."""
        if name not in self._fetched:
            index_K = self._index_tensor
            if self._certain < self._selected:
                index_K = index_K.clip(max=self.shard.size - 1)
            self._fetched[name] = paddle.gather(self._tables[name], index_K)
        return self._fetched[name]

    def gather(self, name, number_P):
        if self._index_tensor is None:
            return paddle.gather(self._tables[name], number_P)
        if asynchronous():
            return paddle.gather(self._fetch(name), number_P)
        return paddle.gather(self._tables[name], paddle.gather(self._index_tensor, number_P))

    def host_rows(self, name):
        array = self._array(name)
        return (array, self._index_K) if array.place.is_cpu_place() else None

    # -- updates ------------------------------------------------------------------------------------------------------------

    def _update(self, update, step):
        by_kernels = kernels.library() is not None and not on_gpu()
        for name, grad in self.gradients().items():
            names = [name, *self.moments_of(name)]
            if by_kernels:
                value, *moments = map(self._array, names)
                self.rule.update_host(name, value, moments, self._index_K, grad, update)
                continue
            piece = max(1, _UPDATE_NUMBERS // self.width) if asynchronous() else _UPDATE_ROWS
            for start in range(0, self.selected, piece):
                stop = min(start + piece, self.selected)
                self._update_rows(names, start, stop, grad[start:stop], update)
        self._fetched = {}

    def _update_rows(
        self, names: list[str], start: int, stop: int, grad: paddle.Tensor, update: Update
    ) -> None:
        """Update selected rows [start, stop) of a part and its moments: in place where they have their address, or in copies
        that are written where they belong."""
        value, *moments = (self.rows(name, start, stop) for name in names)
        self.rule.update_device(names[0], value, moments, grad, update)
        for name, updated in zip(names, (value, *moments)):
            if self._index_tensor is None:
                write_rows(self._tables[name], start, updated)
            else:
                paddle.scatter_(self._tables[name], self._index_tensor[start:stop], updated)

    def squares(self):
        if not asynchronous():
            return super().squares()
        totals = []
        for rows in (self.rows("centres", 0, self.selected), self.gradients()["centres"]):
            if rows is not None and self._certain < self._selected:
                used = (self._index_tensor < self.shard.size).astype("float32").unsqueeze(1)
                rows = rows * used
            totals.append(_sum_of_squares(rows))
        return paddle.stack(totals).astype("float64")

    # -- checkpoints --------------------------------------------------------------------------------------------------------

    def state(self):
        make = host_view if not on_gpu() else DeviceRows
        return {name: make(self._array(name)) for name in self._tables}

    def load_rows(self, start, rows):
        for name in self._tables:
            if len(rows[name]):
                self._write(name, start, float32_of(rows[name]))


class DeviceRows:
    """Presents an array on a device to a checkpoint, and copies rows to the host only when they are indexed, by
    slice or by numbers."""

    code = None

    def __init__(self, array: paddle.Tensor):
        self._array = array
        self.dtype = np.dtype(np.float32)
        self.shape = tuple(array.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            return self._array[start : max(start, stop)].numpy()
        return paddle.gather(self._array, tensor_of(np.asarray(rows, np.int64))).numpy()

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.asarray(self._array.numpy(), dtype)


class HostRows:
    """Reads some rows of arrays in host memory for the device, and updates them on the CPU.

    Args:
        arrays: float32, by name, with the moments. index_K: which rows, int64; None: all.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], index_K: np.ndarray | None):
        self.arrays = arrays
        self.index_K = index_K

    def read(self, name: str, start: int, stop: int) -> paddle.Tensor:
        """Copy the selected rows [start, stop)."""
        if self.index_K is None:
            return paddle.to_tensor(self.arrays[name][start:stop])
        return self._fetch(name, self.index_K[start:stop])

    def gather(self, name: str, number_P: paddle.Tensor) -> paddle.Tensor:
        """Copy the selected rows with these numbers."""
        number_P = number_P.numpy()
        return self._fetch(name, number_P if self.index_K is None else self.index_K[number_P])

    def _fetch(self, name: str, index: np.ndarray) -> paddle.Tensor:
        array = self.arrays[name]
        fetched = np.empty((len(index), *array.shape[1:]), np.float32)
        row_kernels.gather(array, index, fetched)
        return tensor_of(fetched)

    def update(
        self,
        rule: Rule,
        gradients: dict[str, paddle.Tensor],
        moments_of: Callable[[str], list[str]],
        update: Update,
    ) -> None:
        """Update the selected rows by their gradients."""
        for name, grad in gradients.items():
            arrays = [self.arrays[each] for each in (name, *moments_of(name))]
            # A kernel has no temporaries and takes all rows at once.
            in_one = kernels.library() and grad.place.is_cpu_place()
            piece = max(1, len(grad)) if in_one else _UPDATE_ROWS
            for start in range(0, len(grad), piece):
                part = slice(start, min(start + piece, len(grad)))
                if self.index_K is None:
                    value, *moments = (array[part] for array in arrays)
                    index = None
                else:
                    value, *moments = arrays
                    index = self.index_K[part]
                rule.update_host(name, value, moments, index, host_view(grad[part]), update)


class HostBank(Bank):
    """Keeps the rows in host memory and updates them on the CPU; the device gets those of the block that it
    works on."""

    def __init__(self, shard: ClassShard, width: int, *, bias: bool, rule: Rule, std: float, seed: int):
        super().__init__(shard, width, bias=bias, rule=rule)
        self._arrays = {"centres": initial_rows(seed, shard.start, shard.stop, width, std)}
        if bias:
            self._arrays["bias"] = np.zeros(shard.size, np.float32)
        for name in self.names:
            for moment in self.moments_of(name):
                self._arrays[moment] = np.zeros_like(self._arrays[name])
        self.select(None)

    def select(self, index_K):
        super().select(index_K)
        self._rows = HostRows(self._arrays, index_K)

    def rows(self, name, start, stop):
        return self._rows.read(name, start, stop)

    def gather(self, name, number_P):
        return self._rows.gather(name, number_P)

    def host_rows(self, name):
        return self._arrays[name], self._index_K

    def _update(self, update, step):
        self._rows.update(self.rule, self.gradients(), self.moments_of, update)

    def state(self):
        return dict(self._arrays)

    def load_rows(self, start, rows):
        for name, array in self._arrays.items():
            array[start : start + len(rows[name])] = float32_of(rows[name])


BANKS = {"device": DeviceBank, "host": HostBank}


class _Exporter:
    """Lends a CPU tensor's memory by the array interchange protocol; on Paddle 2.6 Tensor itself cannot."""

    def __init__(self, tensor: paddle.Tensor):
        self._tensor = tensor

    def __dlpack__(self, **_):
        return dlpack.to_dlpack(self._tensor)

    def __dlpack_device__(self):
        return 1, 0  # the CPU


def host_view(tensor: paddle.Tensor) -> np.ndarray:
    """View a CPU tensor's memory as numpy; copy any other tensor. Kernels may write into the view; with numpy
    1 Python may not."""
    return (
        np.from_dlpack(_Exporter(tensor)) if tensor.size and tensor.place.is_cpu_place() else tensor.numpy()
    )
