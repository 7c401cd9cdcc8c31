"""Measure the search of a gallery against one by float32 products, in turn, and compare its answers with
float64 brute force.

    python -m benchmarks search --rows 1000000 --size 512

The rows are random and lie in a mapped file, as a gallery's do. Those whose answers are compared are of five
kinds, see `_KINDS`.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.machine import describe_machine, format_machine
from plsc.apps.serving.gallery import search as gallery_search
from plsc.apps.serving.gallery.rows import Rows
from plsc.distributed import environment
from plsc.evaluation.search import search as float32_search
from plsc.utils.measure import alternate, resident_bytes
from plsc.utils.vectors import unit_rows

_PEOPLE = 5
_BATCH = 64
_BLOCK = 2**15  # rows that are drawn at once
_SLACK = 1e-9  # far more than float64 rounds off, far less than float32


def add_arguments(part: argparse.ArgumentParser) -> None:
    part.add_argument("--rows", type=int, default=1_000_000)
    part.add_argument("--size", type=int, default=512, help="embedding size")
    part.add_argument("--runs", type=int, default=7, help="of each search; medians count")
    part.add_argument("--queries", type=int, default=10_000, help="whose answers are compared")
    part.add_argument("--compared", type=int, default=100_000, help="rows that they are compared on")
    part.add_argument("--folder", default=".", help="for the file of rows, which is deleted")


def search(args: argparse.Namespace) -> dict:
    """Measure the exact search of a gallery, and compare its answers with float64 brute force."""
    kinds = [gallery_search.KINDS[kind] for kind in gallery_search.kinds()]
    result = {"rows": args.rows, "size": args.size, "kernels": kinds[-1] if kinds else "none"}
    result["threads"] = environment.cpu_threads()
    result["machine"] = describe_machine()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder) / "rows"
        with path.open("wb") as file:
            for start in range(0, args.rows, _BLOCK):
                file.write(_units(min(_BLOCK, args.rows - start), args.size, start + 1).tobytes())
        rows = np.asarray(np.memmap(path, np.float32, "c", 0, (args.rows, args.size)))
        result.update(_times(rows, args.runs))
    result["compared"] = {}
    for name, make in _KINDS.items():
        result["compared"][name] = _differences(*make(args.compared, args.size, args.queries // len(_KINDS)))
    return result


def _times(rows: np.ndarray, runs: int) -> dict:
    before = resident_bytes("RssAnon")
    owners = np.arange(len(rows))
    made = Rows(rows, owners)
    queries = _units(_BATCH, rows.shape[1], 0)
    result = {"load_before": os.getloadavg()[0]}
    (result["index_seconds"],) = alternate(1, {"index": lambda: made.nearest(queries[:1], 1)}).values()
    made.nearest(queries, _PEOPLE)
    result["index_mb"] = (resident_bytes("RssAnon") - before) / 1e6
    # The threads of NumPy's products go on for some 30 ms after the last, looking for more: the others wait
    # for that.
    work = {
        "pause": lambda: time.sleep(0.2),
        "batch": lambda: made.nearest(queries, _PEOPLE),
        "single": lambda: made.nearest(queries[:1], _PEOPLE),
        "batch_float32": lambda: _by_float32(rows, queries),
        "single_float32": lambda: _by_float32(rows, queries[:1]),
    }
    processor: dict[str, list[float]] = {name: [] for name in work}

    def timed(name: str) -> None:
        began = time.process_time()
        work[name]()
        processor[name].append(time.process_time() - began)

    same = [[*answer] for answer in made.nearest(queries, _PEOPLE)]
    assert same == [[*answer] for answer in _by_float32(rows, queries)]
    medians = alternate(runs, {name: functools.partial(timed, name) for name in work})
    result.update({f"{name}_seconds": seconds for name, seconds in medians.items()})
    result.update(
        {f"{name}_processor_seconds": statistics.median(seconds) for name, seconds in processor.items()}
    )
    result["load_after"] = os.getloadavg()[0]
    return result


def _by_float32(rows: np.ndarray, queries: np.ndarray) -> list[dict[int, float]]:
    """Search one row a person by float32 products, the nearest and eight more multiplied in float64: not
    exact among copies."""
    answers = []
    for query, index in zip(queries, float32_search(queries, rows, _PEOPLE + 8)[1]):
        cosines = rows[index].astype(np.float64) @ query
        found = sorted(zip(index.tolist(), cosines.tolist()), key=lambda item: (-item[1], item[0]))
        answers.append(dict(found[:_PEOPLE]))
    return answers


def _random(count: int, size: int, queries: int):
    return _units(count, size, 1), np.arange(count), _units(queries, size, 2)


def _near(rows: np.ndarray, queries: int, noise: float) -> np.ndarray:
    chosen = rows[np.random.default_rng(3).integers(0, len(rows), queries)]
    return unit_rows(chosen + np.float32(noise) * _units(queries, rows.shape[1], 4))


def _clusters(count: int, size: int, queries: int):
    centres = _units(max(1, count // 500), size, 5)
    noise = np.float32(10.0) ** -np.random.default_rng(6).integers(1, 8, (count, 1)).astype(np.float32)
    rows = unit_rows(np.resize(centres, (count, size)) + noise * _units(count, size, 7))
    return rows, np.arange(count), _near(rows, queries, 1e-3)


def _copies(count: int, size: int, queries: int):
    rows = np.resize(_units(max(1, count // 20), size, 8), (count, size))
    return rows, np.random.default_rng(9).permutation(count), _near(rows, queries, 0.5)


def _zeros(count: int, size: int, queries: int):
    rows = _units(count, size, 10)
    rows[::2] = 0
    return rows, np.arange(count), _near(rows[1::2], queries, 1.0)


def _several(count: int, size: int, queries: int):
    """A tenth of the rows are one person's, around each query's row lie others of the same person."""
    owners = np.sort(np.random.default_rng(11).integers(0, max(1, count // 7), count))
    centres = _units(owners[-1] + 1, size, 12)
    rows = unit_rows(centres[owners] + np.float32(0.7) * _units(count, size, 13))
    owners[::10] = 0
    return rows, owners, _near(rows, queries, 0.7)


_KINDS = {
    "random rows": _random,
    "clusters of 500 rows, from a tenth to 1e-7 wide": _clusters,
    "20 copies of each row": _copies,
    "half of them zeros": _zeros,
    "several rows a person, one with a tenth": _several,
}


def _differences(rows: np.ndarray, owners: np.ndarray, queries: np.ndarray) -> dict:
    """Count the answers that differ from float64 brute force, in people, order or the last digit of a
    cosine."""
    made = Rows(rows, owners)
    (found_seconds,) = alternate(1, {"all": lambda: made.nearest(queries, _PEOPLE)}).values()
    order = np.argsort(owners, kind="stable")
    numbers, starts = np.unique(owners[order], return_index=True)
    in_order = rows[order].astype(np.float64)
    differ = 0
    for start in range(0, len(queries), _BATCH):
        batch = queries[start : start + _BATCH]
        cosines = batch.astype(np.float64) @ in_order.T
        of_people = np.maximum.reduceat(cosines, starts, axis=1)
        limits = np.partition(of_people, len(numbers) - _PEOPLE, axis=1)[:, -_PEOPLE]
        for query, near, answer in zip(
            batch, cosines >= limits[:, None] - _SLACK, made.nearest(batch, _PEOPLE)
        ):
            index = order[near]
            best: dict[int, float] = {}
            for owner, cosine in zip(
                owners[index].tolist(),
                gallery_search.products(rows, index, query[np.newaxis], 0).tolist(),
            ):
                best[owner] = max(cosine, best.get(owner, -np.inf))
            wanted = sorted(best.items(), key=lambda item: (-item[1], item[0]))[:_PEOPLE]
            differ += [*answer.items()] != wanted
    return {"queries": len(queries), "rows": len(rows), "differ": int(differ), "seconds": found_seconds}


def _units(count: int, size: int, seed: int) -> np.ndarray:
    return unit_rows(np.random.default_rng(seed).standard_normal((count, size), np.float32))


def show(result: dict) -> str:
    batch, batch_float32 = result["batch_seconds"], result["batch_float32_seconds"]
    single, single_float32 = result["single_seconds"], result["single_float32_seconds"]
    lines = [
        format_machine(result["machine"]),
        (
            f"{result['rows']:,} x {result['size']}, the nearest {_PEOPLE}, kernels: {result['kernels']}, {result['threads']} threads; "
            f"load {result['load_before']:.1f} before, {result['load_after']:.1f} after"
        ),
        f"index    {result['index_mb']:,.0f} MB, made in {result['index_seconds']:.2f} s by the first search",
        f"batch    {_BATCH / batch:,.0f} queries/s of {_BATCH} at once, by float32 {_BATCH / batch_float32:,.0f}: x {batch_float32 / batch:.1f}; "
        + _of_processors(result, "batch"),
        f"single   {1000 * single:.0f} ms, by float32 {1000 * single_float32:.0f} ms: x {single_float32 / single:.1f}; "
        + _of_processors(result, "single"),
    ]
    for name, of_kind in result["compared"].items():
        lines.append(
            f"{of_kind['differ']} of {of_kind['queries']:,} answers differ from float64 brute force on {of_kind['rows']:,} rows "
            f"({name}), searched in {of_kind['seconds']:.1f} s"
        )
    return "\n".join(lines)


def _of_processors(result: dict, name: str) -> str:
    ours, float32 = result[f"{name}_processor_seconds"], result[f"{name}_float32_processor_seconds"]
    return (
        f"{1000 * ours:.0f} ms of the processors, by float32 {1000 * float32:.0f} ms: x {float32 / ours:.1f}"
    )
