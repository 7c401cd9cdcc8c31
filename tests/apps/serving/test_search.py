"""The search of a gallery: the answers of float64 brute force, and the bounds that they rest on."""

import concurrent.futures
import math
import threading
import time

import numpy as np
import pytest

from plsc.apps.serving.gallery import search
from plsc.apps.serving.gallery.rows import Rows
from plsc.distributed import environment
from plsc.utils.vectors import unit_rows

SUPPORTED = search.kinds()
WIDTH = 37  # not a multiple of four


@pytest.fixture(params=["plain", *search.KINDS])
def kernels(request, monkeypatch):
    """Run the test once without kernels, and once with the kernels of each kind that this processor has."""
    kind = None if request.param == "plain" else search.KINDS.index(request.param)
    if kind is not None and kind not in SUPPORTED:
        pytest.skip(f"no kernels, or this processor has no {request.param}")
    monkeypatch.setattr(search, "kinds", lambda: [] if kind is None else [kind])
    return request.param


@pytest.fixture(params=["one round", "many rounds", "crowded"])
def sizes(request, monkeypatch):
    """Change the sizes of rounds, and how many candidates there may be, so that few rows take every way."""
    numbers = {
        "one round": (128, 2**14, 2**15, 2**18),
        "many rounds": (3, 50, 2**15, 40),
        "crowded": (16, 128, 512, 2**18),  # room for eight rows with 64 queries
    }
    first, share, most, pending = numbers[request.param]
    for name, number in {"_FIRST": first, "_MOST": most, "_PENDING": pending}.items():
        monkeypatch.setattr(search, name, number)
    for kind in (search.Index, search.CodeIndex):
        monkeypatch.setattr(kind, "share", share)
    monkeypatch.setattr(search.Index, "round", min(share, search.Index.round))


def units(count, seed, width=WIDTH):
    return unit_rows(np.random.default_rng(seed).standard_normal((count, width), np.float32))


def of_random():
    return units(700, 1), np.arange(700), units(70, 2)


def of_clusters():
    """A few people, hundreds of rows within a thousandth of each: 8 bits cannot tell them apart."""
    centres = units(4, 3)
    rows = centres[np.arange(900) % 4] + 1e-3 * units(900, 4)
    queries = centres[np.arange(66) % 4] + 1e-3 * units(66, 5)
    return unit_rows(rows), np.arange(900), unit_rows(queries)


def of_copies():
    """Rows that are there five times, of other people, in another order: ties."""
    order = np.random.default_rng(6).permutation(400)
    rows = np.repeat(units(80, 7), 5, axis=0)[order]
    return rows, np.random.default_rng(8).permutation(400), rows[:65]


def of_zeros():
    rows = units(300, 9)
    rows[::3] = 0
    return rows, np.arange(300), np.concatenate([units(3, 10), np.zeros((1, WIDTH), np.float32)])


def of_few_people():
    """Several rows of each person, half of them near one of the queries."""
    queries = units(20, 11)
    rows = np.concatenate([unit_rows(np.repeat(queries, 15, axis=0) + 0.05 * units(300, 12)), units(300, 13)])
    return rows, np.arange(600) % 23, queries


def of_other_lengths():
    rows, owners, queries = of_random()
    return rows * np.float32(10.0) ** (np.arange(700, dtype=np.float32) % 9 - 4)[:, None], owners, queries


SETS = [of_random, of_clusters, of_copies, of_zeros, of_few_people, of_other_lengths]


def products(rows, query):
    """A query's products with all rows."""
    return search.products(rows, np.arange(len(rows)), query[np.newaxis], 0)


def brute_force(rows, owners, queries, people):
    answers = []
    for query in queries:
        best = {}
        for owner, value in zip(owners.tolist(), products(rows, query).tolist()):
            best[owner] = max(value, best.get(owner, -np.inf))
        answers.append(dict(sorted(best.items(), key=lambda item: (-item[1], item[0]))[:people]))
    return answers


def assert_same(got, want):
    assert [[*answer.items()] for answer in got] == [[*answer.items()] for answer in want]


def indexed(rows, owners):
    return Rows(rows.copy(), owners.copy())


@pytest.mark.parametrize("people", [1, 5, 1000])
@pytest.mark.parametrize("some", SETS)
def test_the_answers_are_those_of_brute_force(kernels, sizes, some, people):
    rows, owners, queries = some()
    assert_same(indexed(rows, owners).nearest(queries, people), brute_force(rows, owners, queries, people))


@pytest.mark.parametrize("some", SETS)
def test_the_answers_follow_every_change(kernels, some):
    """Rows that were added after the first search, and removed from either part, before and after it."""
    rows, owners, queries = some()
    owners = np.sort(owners % 50)
    gallery = indexed(rows, owners)
    more = units(60, 20)
    late = 50 + np.arange(60) % 7

    def change(what):
        nonlocal rows, owners
        if what < 0:
            gallery.remove([-what])
            rows, owners = rows[owners != -what], owners[owners != -what]
        else:
            gallery.add(what, more[late == what])
            rows, owners = np.concatenate([rows, more[late == what]]), np.append(owners, late[late == what])

    for changes in ([-3], [51, 52], [-51, 53, -7, -49], [54, -54, 55]):
        for what in changes:
            change(what)
        assert_same(gallery.nearest(queries, 4), brute_force(rows, owners, queries, 4))


def test_nothing_is_found_among_nobody(kernels):
    empty = Rows(np.empty((0, WIDTH), np.float32), np.empty(0, np.int64))
    assert empty.nearest(units(2, 0), 3) == [{}, {}]
    assert indexed(*of_random()[:2]).nearest(units(0, 0), 3) == []


def extremes(width):
    """Rows that rounding treats worst: steps of half, one large number, all equal (the largest sums), small
    ones, zeros."""
    rows = units(40, 30, width)
    rows[0] = 1
    rows[1] = -1
    rows[2] = np.where(np.arange(width) % 2, 1, -1)
    rows[3] = np.append(np.full(width - 1, 0.5 / 127), 1)
    rows[4] = np.append(np.full(width - 1, 1.5 / 127), -1)
    rows[5] = np.append(np.zeros(width - 1), 1)
    rows[6] *= 1e-6
    rows[7] *= 1e-25
    rows[8] = 1e-40  # a denormal number
    rows[9] = 0
    rows[10] *= 1e6
    return rows.astype(np.float32)


def exact_products(rows, queries):
    """Each sum rounded once: float64 [Q, N]."""
    return np.array(
        [[math.fsum((row.astype(np.float64) * query).tolist()) for row in rows] for query in queries]
    )


def found_everywhere(index, rows, queries):
    """Return product and error [Q, N] of all pairs."""
    found = index.finder(rows, queries)(0, len(rows), np.full(len(queries), -np.inf))
    assert found.stopped == len(rows) and len(found.row) == len(rows) * len(queries)
    order = np.lexsort((found.row, found.query))
    shape = len(queries), len(rows)
    return found.product[order].reshape(shape), found.error[order].reshape(shape)


@pytest.mark.parametrize("width", [1, 4, WIDTH, 512])
@pytest.mark.parametrize("count", [1, 17, 40])
def test_every_product_is_within_its_bounds(kernels, width, count):
    rows = extremes(width)
    queries = rows[::-1][-count:].copy()
    index = search.new_index(width)
    index.extend(rows)
    product, error = found_everywhere(index, rows, queries)
    exact = exact_products(rows, queries)
    assert (np.abs(exact - product) <= error).all()
    in_order = np.array([products(rows, query) for query in queries])
    assert (np.abs(in_order - product) <= error).all()
    # The kernel compares in float32: a pair whose product is exactly a query's floor reaches it.
    find = index.finder(rows, queries)
    for row in range(len(rows)):
        found = find(row, row + 1, in_order[:, row])
        assert sorted(found.query.tolist()) == [*range(count)]


def test_most_pairs_are_told_from_the_nearest_by_8_bits(kernels):
    """Bounds that let everything through would be safe, too."""
    rows, _, queries = of_random()
    index = search.new_index(WIDTH)
    index.extend(rows)
    exact = exact_products(rows, queries[:9])
    floors = np.sort(exact, axis=1)[:, -5]
    found = index.finder(rows, queries[:9])(0, len(rows), floors)
    assert 5 * 9 <= len(found.row) <= 0.05 * exact.size


def test_bounds_that_are_too_small_are_noticed(kernels):
    """Without its bounds the search finds others than brute force: the answers above rest on them."""
    rows, owners, queries = of_clusters()
    index = search.new_index(WIDTH)
    index.extend(rows)
    index.longest = 0.0
    if kernels != "plain":
        index.errors[:] = 0
    product, error = found_everywhere(index, rows, queries[:9])
    assert (np.abs(exact_products(rows, queries[:9]) - product) > error).any()
    if kernels != "plain":  # the errors of float32 are smaller than the differences of these rows
        wrong = search.nearest([search.Part(index, rows, owners)], queries, 5)
        assert wrong != brute_force(rows, owners, queries, 5)


def test_an_index_takes_a_byte_for_a_number(kernels):
    if kernels == "plain":
        pytest.skip("there are no codes without kernels")
    index = search.new_index(512)
    index.extend(units(1000, 0, 512))
    assert sum(array.nbytes for array in (index.codes, index.scales, index.errors)) == 1000 * (512 + 8)


def test_rows_that_are_too_wide_for_32_bits_have_no_codes(kernels):
    assert type(search.new_index(2**16 + 1)) is search.Index


def test_the_threads_are_those_of_the_process(monkeypatch):
    for count in (1, 3):
        monkeypatch.setattr(environment, "cpu_threads", lambda count=count: count)
        together = threading.Barrier(count)

        def meet(at, together=together):
            together.wait(60)
            return at, threading.get_ident()

        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            ranges, threads = zip(*search._in_threads(pool, meet, [(0, 1), (1, 2), (2, 3)][:count]))
        assert ranges == ((0, 1), (1, 2), (2, 3))[:count]
        assert len(set(threads)) == count and threading.get_ident() in threads


def test_two_threads_may_be_the_first_to_search(kernels, monkeypatch):
    """The service measures a threshold while somebody searches: both take in what was added."""
    rows, owners, queries = of_random()
    gallery = indexed(rows, owners)
    extend = type(gallery.parts[0].index).extend
    at_work = []

    def slow(self, added):
        at_work.append(len(added))
        time.sleep(0.05)
        extend(self, added)
        assert at_work.pop() == len(added) and not at_work

    monkeypatch.setattr(type(gallery.parts[0].index), "extend", slow)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        answers = [*pool.map(lambda _: gallery.nearest(queries, 4), range(3))]
    for answer in answers:
        assert_same(answer, brute_force(rows, owners, queries, 4))


def test_a_failure_in_a_thread_is_the_search_s(monkeypatch):
    monkeypatch.setattr(environment, "cpu_threads", lambda: 2)
    caller = threading.get_ident()
    together = threading.Barrier(2)

    def fail(number):
        together.wait(60)
        if threading.get_ident() != caller:
            raise MemoryError(number)

    with concurrent.futures.ThreadPoolExecutor(2) as pool, pytest.raises(MemoryError):
        search._in_threads(pool, fail, [0, 1])


def test_the_switch_turns_the_kernels_off(monkeypatch):
    monkeypatch.setenv("PLSC_KERNELS", "0")
    assert search.kinds() == [] and type(search.new_index(8)) is search.Index
