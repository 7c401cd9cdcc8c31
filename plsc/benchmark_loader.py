"""Images a second of the loader, against the same loader with pictures normalised to float32 in its workers.

    python tools/benchmark.py loader train.rec

What normalised pictures cost is arithmetic in the workers and four times the bytes on the way; on the device the
arithmetic is nearly free. The twin exists here only. Start-up of the workers is not counted; page cache is warm.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import zlib
from pathlib import Path

import cv2
import numpy as np

from plsc import log
from plsc.benchmark import alternate
from plsc.data.dataset import Dataset
from plsc.data.loader import Loader
from plsc.data.transforms import generator
from plsc.registry import DATASETS


class Normalised(Dataset):
    """A data set whose samples are normalised where they are made: float32 [C, H, W], shown to the loader as its bytes."""

    def __init__(self, source: Dataset):
        self.source, self.labels, self.num_classes = source, source.labels, source.num_classes
        channels, height, width = source.image_shape
        self.image_shape = (channels, height, 4 * width)

    def sample(self, index: int, epoch: int) -> np.ndarray:
        image = self.source.sample(index, epoch).astype(np.float32)
        return ((image - np.float32(self.source.mean)) * np.float32(self.source.scale)).view(np.uint8)


def write_jpgs(folder: str, count: int, size: int) -> str:
    """`count` soft random pictures of about 3 kB, as face crops have; returns their list file."""
    lines = []
    for number in range(count):
        coarse = generator(number).integers(0, 256, (9, 9, 3), np.uint8)
        picture = cv2.resize(coarse, (size, size), interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(os.path.join(folder, f"{number}.jpg"), picture, [cv2.IMWRITE_JPEG_QUALITY, 90])
        lines.append(f"{number}.jpg\t{number // 2}\n")
    path = Path(folder, "list.txt")
    path.write_text("".join(lines))
    return str(path)


def loader(args: argparse.Namespace) -> dict:
    """Images a second of the loader with uint8 batches and with float32 ones, and whether workers change a bit."""
    with tempfile.TemporaryDirectory() as folder:
        path = args.path or write_jpgs(folder, args.images, args.size)
        kind = {"path": path} if path.endswith(".rec") else {"list": path}
        name = "RecImages" if "path" in kind else "ImageList"
        data = DATASETS.build(name, size=(args.size, args.size), **kind)
        return measure(data, args.batch, args.workers, args.runs)


def measure(data: Dataset, batch_size: int, workers: list[int], runs: int) -> dict:
    """Median images a second of each, by number of workers; their ratios; the checksum of an epoch's batches."""
    sets = {"uint8": data, "float32": Normalised(data)}
    loaders = {
        (kind, count): Loader(each, batch_size, 0, 1, seed=0, num_workers=count)
        for count in workers
        for kind, each in sets.items()
    }
    checksums = {key: checksum(each) for key, each in loaders.items()}  # and the workers have started
    seconds = alternate(runs, {key: lambda each=each: read(each) for key, each in loaders.items()})
    for each in loaders.values():
        each.close()
    rates = {kind: [len(data) / seconds[kind, count] for count in workers] for kind in sets}
    return {
        "images": len(data),
        "shape": list(data.image_shape),
        "batch": batch_size,
        "processors": os.cpu_count(),
        "runs": runs,
        "workers": workers,
        **rates,
        "ratio": [ours / theirs for ours, theirs in zip(*rates.values())],
        "identical": all(len({checksums[kind, count] for count in workers}) == 1 for kind in sets),
    }


def checksum(loader: Loader) -> int:
    """Of all images, labels and indices of an epoch, in order."""
    total = 0
    for batch in loader.epoch(0):
        for array in batch:
            total = zlib.crc32(np.ascontiguousarray(array), total)
    return total


def read(loader: Loader) -> None:
    for _ in loader.epoch(1):
        pass


def show(found: dict) -> str:
    rows = list(zip(found["workers"], found["uint8"], found["float32"], found["ratio"]))
    same = "the same bit for bit" if found["identical"] else "NOT THE SAME"
    return (
        f"{found['images']:,} images {found['shape']}, batches of {found['batch']}, {found['processors']} processors, "
        f"medians of {found['runs']} runs in turn\n"
        + log.table(rows, ["workers", "uint8 img/s", "float32 img/s", "ratio"])
        + f"\nbatches with {', '.join(map(str, found['workers']))} workers: {same}"
    )
