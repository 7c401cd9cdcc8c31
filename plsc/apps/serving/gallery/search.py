"""Find the people whose rows are most similar to queries: the answers of float64 brute force, from products
of 8 bits.

A row r is kept as codes of 8 bits, r = s c + e: s is its scale, c its integers, e what rounding took away. A
query q = t d + f likewise. The product of the integers, which is exact, says

    | q.r - t s (c.d) | = | t d.e + f.r | <= |t d| |e| + |f| |r|           (Cauchy and Schwarz, twice)

where |e| is known for each row and |f| and |t d| for each query; |r| is at most the longest row's length. All
four are rounded up: of a row in float32, of sums of doubles, by 2^-22 (the sum's and the conversion's own
errors are below 2^-23); of a query in float64. What float32 adds when the kernel compares, in units of 2^-24
|t d| |r|: 1 for a product beyond 2^24 as a float32, 1 for s times it, both of at most 2.01; 1 for |t d| |e|,
1 for the sum, of at most 3.1; together less than 8, and 16 are added. With |e| <= |r|: a component that
rounds to a step is at least half a step. What float64 adds for D numbers, in all sums here and in q.r itself,
is below (D + 8) 2^-50 |q| |r|, which is added too.

So each product has a lower and an upper bound. The k-th best of the lower bounds of different people is the
floor: a row whose upper bound is below it belongs to none of the k nearest. The others, some twenty for each
one that is wanted, are multiplied by the query in float64 from their float32 numbers. Their sum has a fixed
order, so a cosine depends on the row and the query alone: copies of a row are equal.

Without kernels (plsc.native) the first products are float32, with the bound n u / (1 - n u) |q| |r| for sums
in any order, n = D + 8, u = 2^-24. So are those of rows that are so many and so near each other that 8 bits
cannot tell them apart, with kernels too.

    index = new_index(512)
    index.extend(rows)
    nearest([Part(index, rows, owners)], queries, people=5)

Try it: `pytest tests/apps/serving/test_search.py`; its speed: `python -m benchmarks search`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from plsc.checkpoint.tensorfile import FileRows
from plsc.distributed import environment
from plsc.native import address, without_paddle

KINDS = ("AVX2", "AVX-VNNI", "AVX512-VNNI", "AMX")  # of kernels, as scan.cpp numbers them
_LEVELS = (63, 127, 127, 127)  # of a query's numbers, on both sides of 0: AVX2 adds two products in 16 bits
_WIDEST = 2**16  # sums of products of more numbers might not fit 32 bits
_FEW = 64  # people; more have so many candidates that products in float32 are faster
_FIRST = 64  # rows that give the first floor
_GROWTH = 8  # rows of a round, to those of the round before
_ENCODED = 2**14  # rows that a thread makes codes of at once
_ENCODED_RANGES = 4  # ranges of rows of a file that are in memory at once
_MOST = 2**15  # candidates of a range; of more all pairs are multiplied in float32, which is faster then
_UNIT = 2**12  # rows; ranges for threads are multiples: fewer rows are searched sooner than a thread starts
_PENDING = 2**18  # candidates that are kept before they are multiplied in float64
_AT_ONCE = 64  # rows that are multiplied in float64 at once: they stay in the cache
_LARGE_PAGE = 2**21  # bytes
_GAP = 2.0**-20  # 16 * 2^-24, see above


class Found(NamedTuple):
    """Pairs of a query and a row, side by side, and between which bounds their product lies.

    query, row: integers [n]. product, error: float64 [n]; the product of float64 differs from `product` by at
    most `error`.
    stopped: the row before which the search for them stopped.
    """

    query: np.ndarray
    row: np.ndarray
    product: np.ndarray
    error: np.ndarray
    stopped: int


class Part(NamedTuple):
    """Rows float32 [N, D] and their owners int64 [N], negative for a row that counts no more, with an index
    of them."""

    index: Index
    rows: np.ndarray | FileRows
    owners: np.ndarray


class Index:
    """What a search without codes knows of rows: how long the longest of them is at most.

    Attributes: count: the rows that it has taken in. batch: queries that are searched together. round: rows
    that are searched before the
        floors are raised, at most. share: rows that a thread searches at once. threads: whether several threads search.
        lock: held by the thread that extends it.
    """

    batch = 512
    round = 2**15
    share = 2**14
    threads = False  # NumPy's products have their own

    def __init__(self, width: int, count: int = 0, longest: float = 0.0):
        self.width = width
        self.count = count
        self.longest = longest
        self.lock = threading.Lock()

    def without_codes(self) -> Index:
        """Return an index of the rows that are taken in already, for products in float32."""
        return Index(self.width, self.count, self.longest)

    def extend(self, rows: np.ndarray | FileRows) -> None:
        """Take in those of the rows float32 [N, D] that are new: from `count` on."""
        lengths = (
            np.linalg.norm(rows[start : start + _AT_ONCE].astype(np.float64), axis=1).max()
            for start in range(self.count, len(rows), _AT_ONCE)
        )
        self.longest = max(self.longest, *lengths, 0.0)
        self.count = len(rows)

    def ranges(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Cut the rows of a round; a thread takes one range after another."""
        return _ranges(start, stop, self.share)

    def finder(self, rows: np.ndarray, queries: np.ndarray) -> Callable[[int, int, np.ndarray], Found]:
        """Return a function of start, stop and floors float64 [Q], which finds the pairs that may reach the
        floors."""
        error = float32_error(queries, self.longest)

        def find(start: int, stop: int, floors: np.ndarray) -> Found:
            products = queries @ rows[start:stop].T
            limits = _rounded(floors - error, -np.inf)
            some = np.flatnonzero(products.max(axis=1) >= limits)  # most have none
            query, row = np.nonzero(products[some] >= limits[some, np.newaxis])
            query = some[query]
            return Found(query, row + start, products[query, row].astype(np.float64), error[query], stop)

        return find


class _Scan(ctypes.Structure):
    """The rows and a batch of queries, as in scan.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("codes", "scales", "errors")),
        ("width", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("queries", "start", "ratios", "limits")),
        ("count", ctypes.c_int64),
    ]


class _Found(ctypes.Structure):
    """Room for what is found, as in scan.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("query", "row", "value")),
        ("most", ctypes.c_int64),
        ("count", ctypes.c_int64),
    ]


class CodeIndex(Index):
    """The rows as codes of 8 bits, by the kernels of this kind; the parameters are named above.

    Attributes: codes: uint8 [n, D up to a multiple of 64], 128 stands for 0. scales: float32 [n]. errors:
    float32 [n].
    """

    batch = 64
    round = 2**20
    share = 2**17
    threads = True  # the kernels do not hold Python's lock

    def __init__(self, width: int, native: ctypes.CDLL, kind: int):
        super().__init__(width)
        self._native = native
        self._kind = kind
        self.codes = np.empty((0, -(-width // 64) * 64), np.uint8)
        self.scales = np.empty(0, np.float32)
        self.errors = np.empty(0, np.float32)

    def extend(self, rows: np.ndarray | FileRows) -> None:
        if len(rows) > len(self.codes):
            room = max(len(rows), 2 * len(self.codes))
            codes = _empty_aligned((room, self.codes.shape[1]), np.uint8)
            self.codes = _copied_to(codes, self.codes[: self.count])
            self.scales = _copied_to(np.empty(room, np.float32), self.scales[: self.count])
            self.errors = _copied_to(np.empty(room, np.float32), self.errors[: self.count])
        ranges = _ranges(self.count, len(rows), _ENCODED)
        with ThreadPoolExecutor(environment.cpu_threads()) as pool:
            for start in range(0, len(ranges), _ENCODED_RANGES):
                some = ranges[start : start + _ENCODED_RANGES]
                self.longest = max(self.longest, *_in_threads(pool, lambda at: self._encode(rows, *at), some))
                if isinstance(rows, FileRows):
                    rows.release()
        self.count = len(rows)

    def _encode(self, rows: np.ndarray, start: int, stop: int) -> float:
        part = np.ascontiguousarray(rows[start:stop])
        return self._native.plsc_quantise(
            self._kind,
            address(part),
            *part.shape,
            self.codes.shape[1],
            address(self.codes[start:stop], "uint8"),
            address(self.scales[start:stop]),
            address(self.errors[start:stop]),
        )

    def ranges(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Cut the rows of a round into ranges of one size, as many for one thread as for another."""
        threads = environment.cpu_threads()
        of_a_thread = -(-(stop - start) // (threads * self.share))
        size = -(-(stop - start) // (threads * of_a_thread))
        return _ranges(start, stop, -(-size // _UNIT) * _UNIT)

    def finder(self, rows: np.ndarray, queries: np.ndarray) -> Callable[[int, int, np.ndarray], Found]:
        levels = _LEVELS[self._kind]
        exact = queries.astype(np.float64)
        scales = np.abs(exact).max(axis=1) / levels
        scales[scales == 0] = 1.0
        steps = np.rint(exact / scales[:, np.newaxis])
        rounded = steps * scales[:, np.newaxis]
        lengths = np.linalg.norm(rounded, axis=1)
        lost = np.linalg.norm(exact - rounded, axis=1)
        lost += (self.width + 8) * 2.0**-50 * np.linalg.norm(exact, axis=1)
        rest = (lost + _GAP * lengths) * self.longest
        # As the kernel takes them: in fours, for 1, 16, 32 or 64 queries.
        count = next(lanes for lanes in (1, 16, 32, 64) if lanes >= len(queries))
        packed = np.zeros((count, self.codes.shape[1]), np.int8)
        packed[: len(queries), : self.width] = steps
        in_fours = _empty_aligned((packed.shape[1] // 4, count, 4), np.int8)
        in_fours[...] = packed.reshape(count, -1, 4).transpose(1, 0, 2)
        start_of_sums = np.zeros(count, np.int32)
        start_of_sums[: len(queries)] = -128 * steps.sum(axis=1)
        ratios = np.zeros(count, np.float32)
        ratios[: len(queries)] = _rounded(lengths / scales, np.inf)

        def find(start: int, stop: int, floors: np.ndarray) -> Found:
            limits = np.full(count, np.inf, np.float32)  # nothing reaches those of the queries that fill up
            limits[: len(queries)] = _rounded((floors - rest) / scales, -np.inf)
            query = np.empty(_MOST, np.int32)
            row = np.empty(_MOST, np.int32)
            value = np.empty(_MOST, np.float32)
            # Another thread may extend the index meanwhile, which makes new arrays.
            codes, of_rows, errors = self.codes, self.scales, self.errors
            room = _Found(address(query, "int32"), address(row, "int32"), address(value), _MOST, 0)
            scan = _Scan(
                address(codes, "uint8"),
                address(of_rows),
                address(errors),
                codes.shape[1],
                address(in_fours, "int8"),
                address(start_of_sums, "int32"),
                address(ratios),
                address(limits),
                count,
            )
            stopped = self._native.plsc_scan(self._kind, ctypes.byref(scan), start, stop, ctypes.byref(room))
            query, row, value = query[: room.count], row[: room.count], value[: room.count]
            product = value * scales[query]
            return Found(query, row, product, lengths[query] * errors[row] + rest[query], stopped)

        return find


def kinds() -> list[int]:
    """Return the kinds of kernels that there are for this processor; [] without kernels."""
    native = without_paddle()
    bits = native.plsc_scan_kinds() if native else 0
    return [kind for kind in range(len(KINDS)) if bits >> kind & 1]


def new_index(width: int) -> Index:
    """Make an index of rows [0, width], for the best kernels that there are."""
    kind = max(kinds(), default=None)
    return Index(width) if kind is None or width > _WIDEST else CodeIndex(width, without_paddle(), kind)


def nearest(parts: Sequence[Part], queries: np.ndarray, people: int) -> list[dict[int, float]]:
    """Find for each query the most similar people: owner -> similarity of the nearest row, best first.

    queries: float32 [Q, D]. Of equal similarities, which are float64, the lower owner comes first.
    """
    parts = [part for part in parts if len(part.rows)]
    for part in parts:
        with part.index.lock:
            part.index.extend(part.rows)
    if people > _FEW:
        parts = [part._replace(index=part.index.without_codes()) for part in parts]
    batch = min((part.index.batch for part in parts), default=1)
    found = []
    with ThreadPoolExecutor(environment.cpu_threads()) as pool:
        for start in range(0, len(queries), batch):
            answers = _Answers(queries[start : start + batch], people)
            for part in parts:
                _search(part, answers, pool)
            found.extend({owner: -negative for negative, owner in best} for best in answers.best)
    return found


def _search(part: Part, answers: _Answers, pool: Executor) -> None:
    """Merge the rows of a part into the answers."""
    count = len(part.rows)
    find_plainly = part.index.without_codes().finder(part.rows, answers.queries)
    find = part.index.finder(part.rows, answers.queries)
    position, size = 0, max(_FIRST, 4 * answers.people)
    while position < count:
        ranges = part.index.ranges(position, min(count, position + size))
        found = _in_threads(
            pool if part.index.threads else None, lambda at: find(*at, answers.floors), ranges
        )
        answers.take(part, found)
        for (_, stop), each in zip(ranges, found):
            for rest in _ranges(each.stopped, stop, Index.share):
                answers.take(part, [find_plainly(*rest, answers.floors)])
        position += size
        size = min(_GROWTH * size, part.index.round)
    answers.settle(part)


class _Answers:
    """The nearest people of a batch of queries among the rows so far.

    Attributes: best: for each query, tuples of minus a similarity and its owner, sorted. floors: float64 [Q],
    the similarity that at least `people` people reach.
    """

    def __init__(self, queries: np.ndarray, people: int):
        self.queries = queries
        self.people = people
        self.best: list[list[tuple[float, int]]] = [[] for _ in queries]
        self.floors = np.full(len(queries), -np.inf)
        self._lower = self.best.copy()  # the same of lower bounds
        self._pending: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # query, row, upper bound

    def take(self, part: Part, found: Sequence[Found]) -> None:
        """Raise the floors by what was found in a part, and keep it for `settle`."""
        query, row, product, error = map(np.concatenate, list(zip(*found))[:4])
        self._merge(self._lower, query, part.owners[row], product - error)
        upper = product + error
        near = np.flatnonzero(upper >= self.floors[query])
        self._pending.append((query[near], row[near], upper[near]))
        if sum(len(rows) for _, rows, _ in self._pending) > _PENDING:
            self.settle(part)

    def settle(self, part: Part) -> None:
        """Multiply those that may reach the floors in float64."""
        if not self._pending:
            return
        query, row, upper = map(np.concatenate, zip(*self._pending))
        near = np.flatnonzero(upper >= self.floors[query])
        query, row = query[near], row[near]
        exact = products(part.rows, row, self.queries, query)
        self._merge(self.best, query, part.owners[row], exact)
        self._lower = self.best.copy()
        self._pending.clear()

    def _merge(self, people: list, query: np.ndarray, owner: np.ndarray, value: np.ndarray) -> None:
        """Merge values of owners into those of each query, and raise the floors."""
        above = np.flatnonzero((value >= self.floors[query]) & (owner >= 0))
        query, owner, negative = query[above], owner[above], -value[above]
        order = np.lexsort((owner, negative, query))
        query, owner, negative = query[order], owner[order], negative[order]
        for number, at in _groups(query):
            both = sorted([*people[number], *zip(negative[at].tolist(), owner[at].tolist())])
            people[number] = _first(both, self.people)
            if len(people[number]) == self.people:
                self.floors[number] = max(self.floors[number], -people[number][-1][0])


def float32_error(queries: np.ndarray, longest: float) -> np.ndarray:
    """Bound how far float32 products of queries [..., D] with rows of at most this length are from float64
    ones, in any order of the sums."""
    terms = (queries.shape[-1] + 8) * 2.0**-24
    lengths = np.linalg.norm(queries.astype(np.float64), axis=-1)
    return terms / (1 - terms) * lengths * longest + 1e-30  # products that are too small for float32


def products(rows: np.ndarray, row: np.ndarray, queries: np.ndarray, query: np.ndarray | int) -> np.ndarray:
    """Multiply pairs of a row and a query: float64 [n], each the same whatever other pairs there are.

    rows: float32 [N, D]. row: integers [n]. queries: float32 [Q, D]. query: integers [n], or one for all
    rows.
    """
    exact = queries.astype(np.float64)
    query = np.broadcast_to(query, row.shape)
    blocks = [slice(start, start + _AT_ONCE) for start in range(0, len(row), _AT_ONCE)]
    return np.concatenate(
        [np.empty(0), *((rows[row[at]].astype(np.float64) * exact[query[at]]).sum(axis=1) for at in blocks)]
    )


def _first(items: list[tuple[float, int]], people: int) -> list[tuple[float, int]]:
    """Take each person's first item, of at most so many people."""
    nearest = items[:people]
    if len({owner for _, owner in nearest}) == len(nearest):  # nobody twice
        return nearest
    first: dict[int, tuple[float, int]] = {}
    for item in items:
        first.setdefault(item[1], item)
        if len(first) == people:
            break
    return [*first.values()]


def _groups(numbers: np.ndarray) -> Iterable[tuple[int, slice]]:
    """Return each of the sorted numbers, and where it is."""
    starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    return [
        (int(numbers[start]), slice(start, stop)) for start, stop in zip(starts, [*starts[1:], len(numbers)])
    ]


def _in_threads(pool: Executor | None, work: Callable, ranges: list) -> list:
    """Compute the results for all ranges in several threads; without a pool in one.

    The caller's thread takes ranges too: it is awake, and another may start late.
    """
    results = [None] * len(ranges)
    left = iter(enumerate(ranges))

    def take() -> None:
        for number, at in left:
            results[number] = work(at)

    helpers = min(environment.cpu_threads(), len(ranges)) - 1 if pool else 0
    others = [pool.submit(take) for _ in range(helpers)]
    take()
    for other in others:
        other.result()
    return results


def _ranges(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    return [(at, min(at + size, stop)) for at in range(start, stop, size)]


def _rounded(numbers: np.ndarray, towards: float) -> np.ndarray:
    """Round float64 numbers to float32, each a little towards that side."""
    return np.nextafter(numbers.astype(np.float32), np.float32(towards))


def _empty_aligned(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Make an array that begins with a large page: lines of the cache are whole, and do not drive each other
    out of it."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    # NumPy asks for large pages from 4 MB on.
    memory = np.empty(_LARGE_PAGE + max(_LARGE_PAGE, size), np.uint8)
    start = -memory.ctypes.data % _LARGE_PAGE
    return memory[start : start + size].view(dtype).reshape(shape)


def _copied_to(larger: np.ndarray, array: np.ndarray) -> np.ndarray:
    """Copy an array to the beginning of a larger one, and return that."""
    larger[: len(array)] = array
    return larger
