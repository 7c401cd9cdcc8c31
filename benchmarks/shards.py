"""Measure how fast pictures are read from tar shards in random order, against the .rec reader, and what an
index costs.

    python -m benchmarks shards --images 100000 --shards 20

Both sets have the same pictures, and are read in the same order, in turn, from a warm page cache; the batches
are compared bit by bit.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from benchmarks.loader import checksum
from plsc.apps.curate.convert import write_rec, write_shards
from plsc.data.loader import Loader
from plsc.data.rec import RecImages
from plsc.data.shard_index import FORMAT, ShardIndex, index_path
from plsc.data.shards import Shards
from plsc.data.transforms import generator
from plsc.utils.measure import resident_bytes

_DIFFERENT = 500  # pictures; the others repeat them
_STEPS = 40  # that are timed at once: what else the machine does changes within a whole epoch


class Pictures:
    """Smooth random pictures as .jpg of about 3 kB, as face crops have; ten of each class."""

    def __init__(self, count: int, size: int):
        self.identities = None
        self.labels = np.arange(count) // 10
        self.num_classes = int(self.labels[-1]) + 1
        self._encoded = []
        for number in range(min(count, _DIFFERENT)):
            coarse = generator(number).integers(0, 256, (9, 9, 3), np.uint8)
            picture = cv2.resize(coarse, (size, size), interpolation=cv2.INTER_CUBIC)
            self._encoded.append(cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].ravel())

    def __len__(self) -> int:
        return len(self.labels)

    def encoded(self, index: int) -> np.ndarray:
        return self._encoded[index % len(self._encoded)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=20)
    parser.add_argument(
        "--members", type=int, default=10_000_000, help="pictures of the index that is only opened"
    )
    parser.add_argument("--size", type=int, default=112, help="height and width")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--runs", type=int, default=5, help="of each, twice, in turn; medians count")


def shards(args: argparse.Namespace) -> dict:
    """Measure reads and whole batches of both readers, and the index: bytes, and seconds to make and to open
    it."""
    with tempfile.TemporaryDirectory() as folder:
        pictures = Pictures(args.images, args.size)
        write_rec(pictures, os.path.join(folder, "a.rec"))
        write_shards(pictures, os.path.join(folder, "tar"), args.shards)
        index = Path(folder, "tar", "index.npz")
        index.unlink()
        options = {"size": (args.size, args.size)}
        began = time.perf_counter()
        Shards(f"{folder}/tar", **options)
        to_make = time.perf_counter() - began
        tar = Shards(f"{folder}/tar", **options)
        rec = RecImages(f"{folder}/a.rec", **options)
        loaders = {"rec": _loader(rec, args.batch), "shards": _loader(tar, args.batch)}
        return {
            "images": len(tar),
            "shards": args.shards,
            "processors": os.cpu_count(),
            "runs": args.runs,
            **_rates("reads", {"rec": rec, "shards": tar}, args.runs, _read_all, len(tar)),
            **_rates("batches", loaders, 2 * args.runs, _read_some, _STEPS * args.batch),
            "identical": len({checksum(each) for each in loaders.values()}) == 1,
            "seconds_to_index": to_make,
            **_open_large(folder, args.members, args.shards),
        }


def _open_large(folder: str, members: int, shards: int) -> dict:
    """Measure an index of many pictures, `person/0001.jpg` each: bytes in the file, seconds to open it, bytes
    in memory then."""
    paths = [os.path.join(folder, f"{number}.tar") for number in range(shards)]
    for path in paths:
        Path(path).touch()
    name = b"0000000/0001.jpg"
    arrays = {
        "format": np.array(FORMAT),
        "made": np.array(0),
        "shards": np.array([f"{os.path.basename(path)} 0" for path in sorted(paths)]),
        "starts": np.linspace(0, members, shards + 1).astype(np.int64),
        "offsets": 512 + np.arange(members, dtype=np.int64) * 4096,
        "sizes": np.full(members, 3000, np.uint32),
        "checksums": np.full(members, 5000, np.uint32),
        "text": np.frombuffer(name * members, np.uint8),
        "stops": np.arange(1, members + 1, dtype=np.int64) * len(name),
        "labels": np.arange(members, dtype=np.int64) // 10,
        "classes": np.array([], str),
    }
    path = Path(index_path(folder))
    np.savez(path, **arrays)
    del arrays
    before, began = resident_bytes(), time.perf_counter()
    index = ShardIndex.open(folder)
    seconds, memory = time.perf_counter() - began, resident_bytes() - before
    assert len(index.members) == members
    return {
        "members": members,
        "index_bytes": path.stat().st_size,
        "index_memory": memory,
        "seconds_to_open": seconds,
    }


def _rates(what: str, sets: dict, runs: int, work: Callable, images: int) -> dict:
    """Measure images per second of `work` on both sets, in turn and each first as often; the ratios of shards
    to .rec by clock and by CPU."""
    wall: dict[str, list[float]] = {name: [] for name in sets}
    cpu: dict[str, list[float]] = {name: [] for name in sets}
    for run in range(2 * runs):
        for name in list(sets)[:: -1 if run % 2 else 1]:
            began, began_cpu = time.perf_counter(), time.process_time()
            work(sets[name])
            wall[name].append(time.perf_counter() - began)
            cpu[name].append(time.process_time() - began_cpu)
    seconds = {name: statistics.median(times) for name, times in wall.items()}
    of_cpu = {name: statistics.median(times) for name, times in cpu.items()}
    return {
        **{f"{what}_{name}": images / seconds[name] for name in sets},
        f"{what}_ratio": seconds["rec"] / seconds["shards"],
        f"{what}_cpu_ratio": of_cpu["rec"] / of_cpu["shards"],
    }


def _loader(data: RecImages | Shards, batch: int) -> Loader:
    return Loader(data, batch, 0, 1, seed=0)


def _read_all(data: RecImages | Shards) -> None:
    for index in np.random.default_rng(0).permutation(len(data)).tolist():
        data.encoded(index)


def _read_some(loader: Loader) -> None:
    with contextlib.closing(loader.epoch(1)) as batches:
        for _ in itertools.islice(batches, _STEPS):
            pass


def show(result: dict) -> str:
    same = "the same bit for bit" if result["identical"] else "NOT THE SAME"
    opened = f"{result['index_bytes'] / 1e6:,.0f} MB, opened in {result['seconds_to_open']:.2f} s, {result['index_memory'] / 1e6:,.0f} MB of memory"
    lines = [
        f"{result['images']:,} images in {result['shards']} shards, {result['processors']} processors, medians of runs in turn",
        *(
            f"{what}: .rec {result[f'{key}_rec']:,.0f} img/s, shards {result[f'{key}_shards']:,.0f} img/s, ratio {result[f'{key}_ratio']:.2f}, "
            f"by the processor's time {result[f'{key}_cpu_ratio']:.2f}"
            for key, what in (("reads", "encoded, random order"), ("batches", "decoded into batches"))
        ),
        f"batches: {same}",
        f"index: made in {result['seconds_to_index']:.2f} s",
        f"index of {result['members']:,} images: {opened}",
    ]
    return "\n".join(lines)
