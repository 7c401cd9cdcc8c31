"""Measure a gallery: building, opening, adding, removing, and exact searches, whose answers are compared with
float64 products.

    python -m benchmarks gallery --rows 1000000 --size 512

The embeddings are random, a row for each person; embedding pictures is not part of it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from plsc.apps.serving.embedder import Embedder
from plsc.apps.serving.gallery import Gallery
from plsc.data.preprocessing import Preprocessing
from plsc.utils.measure import reset_resident_peak, resident_bytes

_CHECKED = 20  # queries that are compared
_PREPROCESSING = Preprocessing.of_images((3, 112, 112))


class _RandomNumbers(Embedder):
    """Stands for the network that the embeddings would be of."""

    def _embed(self, samples):
        raise AssertionError("the embeddings are drawn, not computed")


def add_arguments(part: argparse.ArgumentParser) -> None:
    part.add_argument("--rows", type=int, default=1_000_000)
    part.add_argument("--size", type=int, default=512, help="embedding size")
    part.add_argument("--queries", type=int, default=1024, help="of the batch")
    part.add_argument("--runs", type=int, default=5, help="searches and additions; medians count")
    part.add_argument("--folder", default=".", help="on the disk to measure; what is written is deleted")


def gallery(args: argparse.Namespace) -> dict:
    """Measure building, opening, adding, removing and searching."""
    embeddings, queries = _units(args.rows, args.size, 0), _units(args.queries, args.size, 1)
    network = _RandomNumbers("0" * 64, "random numbers", _PREPROCESSING, args.size, threshold=0.5)
    names = [f"person {number}" for number in range(args.rows)]
    result = {"rows": args.rows, "size": args.size, "queries": args.queries}
    with tempfile.TemporaryDirectory(dir=args.folder) as above:
        path = Path(above) / "people.gallery"
        began = time.perf_counter()
        Gallery.from_embeddings(path, network, names, embeddings, np.arange(args.rows)).close()
        result["build_seconds"] = time.perf_counter() - began
        result["file_mb"] = path.stat().st_size / 1e6
        expected = np.argmax(embeddings @ queries[:_CHECKED].T, axis=0)
        del embeddings
        before = resident_bytes()
        reset_resident_peak()
        began = time.perf_counter()
        opened = Gallery.open(path)
        result["open_seconds"] = time.perf_counter() - began
        first = opened.search(queries[:_CHECKED], top=5)  # reads the file, if it is not in memory
        assert [matches[0].name for matches in first] == [names[row] for row in expected.tolist()]
        result["batch_seconds"] = _median(lambda _: opened.search(queries, top=5), args.runs)
        result["single_seconds"] = _median(lambda n: opened.search(queries[n : n + 1], top=5), args.runs * 5)
        result["memory_mb"] = (resident_bytes() - before) / 1e6
        result["peak_mb"] = (resident_bytes("VmHWM") - before) / 1e6
        result["add_seconds"] = _median(lambda n: opened.add(f"new {n}", queries[n : n + 1]), args.runs * 5)
        result["backup_seconds"] = _median(lambda n: opened.backup(Path(above) / f"copy {n}"), 1)
        result["remove_seconds"] = _median(lambda n: opened.remove(f"new {n}"), 1)
        opened.close()
        Path(f"{path}.index").unlink(missing_ok=True)
        began = time.perf_counter()
        Gallery.open(path).close()
        result["index_seconds"] = time.perf_counter() - began
    result["queries_per_second"] = args.queries / result["batch_seconds"]
    return result


def _units(count: int, size: int, seed: int) -> np.ndarray:
    made = np.random.default_rng(seed).standard_normal((count, size), np.float32)
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    return made


def _median(work, runs: int) -> float:
    seconds = []
    for number in range(runs):
        began = time.perf_counter()
        work(number)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def show(result: dict) -> str:
    return (
        f"{result['rows']:,} x {result['size']}\n"
        f"build    {result['build_seconds']:.1f} s, {result['file_mb']:,.0f} MB\n"
        f"open     {result['open_seconds']:.2f} s, {result['index_seconds']:.1f} s without the index, which is written anew\n"
        f"add      {1000 * result['add_seconds']:.1f} ms a person, on the disk\n"
        f"remove   {result['remove_seconds']:.1f} s, the file written anew; back up {result['backup_seconds']:.1f} s\n"
        f"search   {result['queries_per_second']:.0f} queries/s in batches of {result['queries']:,}, "
        f"{1000 * result['single_seconds']:.0f} ms for one alone\n"
        f"memory   {result['memory_mb']:,.0f} MB more, {result['peak_mb']:,.0f} MB at most"
    )
