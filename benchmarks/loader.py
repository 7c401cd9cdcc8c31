"""Measure the loader's images per second by process count. The page cache is warm.

python -m benchmarks loader train.rec
"""

from __future__ import annotations

import argparse
import os
import tempfile
import zlib
from pathlib import Path

import cv2
import numpy as np

from benchmarks.measure import alternate
from plsc.data.config import DATASETS
from plsc.data.loader import Loader
from plsc.data.transforms import generator
from plsc.utils.text import table


def write_jpgs(folder: str, count: int, size: int) -> str:
    """Write `count` smooth random pictures with about 3 kB each, like face crops. Return their list's
    path."""
    lines = []
    for number in range(count):
        coarse = generator(number).integers(0, 256, (9, 9, 3), np.uint8)
        picture = cv2.resize(coarse, (size, size), interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(os.path.join(folder, f"{number}.jpg"), picture, [cv2.IMWRITE_JPEG_QUALITY, 90])
        lines.append(f"{number}.jpg\t{number // 2}\n")
    path = Path(folder, "list.txt")
    path.write_text("".join(lines))
    return str(path)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", nargs="?", help="a .rec file or a list; default: synthetic JPEG images, made for the run"
    )
    parser.add_argument("--images", type=int, default=4000, help="how many synthetic images")
    parser.add_argument("--size", type=int, default=112, help="height and width of the images")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[0, 1, 2, 4], help="processes; 0 uses a thread"
    )
    parser.add_argument("--runs", type=int, default=5, help="runs of each, in turn; medians count")


def loader(args: argparse.Namespace) -> dict:
    """Measure the loader with several process counts, and check that all give the same bits."""
    with tempfile.TemporaryDirectory() as folder:
        path = args.path or write_jpgs(folder, args.images, args.size)
        kind = {"path": path} if path.endswith(".rec") else {"list": path}
        name = "RecImages" if "path" in kind else "ImageList"
        data = DATASETS.get(name)(size=(args.size, args.size), **kind)
        loaders = {count: Loader(data, args.batch, 0, 1, seed=0, num_workers=count) for count in args.workers}
        checksums = {checksum(each) for each in loaders.values()}
        seconds = alternate(
            args.runs, {count: lambda each=each: read(each) for count, each in loaders.items()}
        )
    return {
        "images": len(data),
        "shape": list(data.image_shape),
        "batch": args.batch,
        "processors": os.cpu_count(),
        "runs": args.runs,
        "workers": args.workers,
        "images_per_second": [len(data) / seconds[count] for count in args.workers],
        "identical": len(checksums) == 1,
    }


def checksum(loader: Loader) -> int:
    """Return the checksum over an epoch's images, labels and indices in their order."""
    total = 0
    for batch in loader.from_step(0):
        for array in (batch.images, batch.labels, batch.indices):
            total = zlib.crc32(np.ascontiguousarray(array), total)
    return total


def read(loader: Loader) -> None:
    for _ in loader.from_step(loader.steps_per_epoch):
        pass


def show(result: dict) -> str:
    rows = list(zip(result["workers"], result["images_per_second"]))
    same = "the same bit for bit" if result["identical"] else "NOT THE SAME"
    return (
        f"{result['images']:,} images {result['shape']}, batches of {result['batch']}, "
        f"{result['processors']} processors, medians of {result['runs']} runs in turn\n"
        + table(rows, ["processes", "images/s"])
        + f"\nbatches with {', '.join(map(str, result['workers']))} processes: {same}"
    )
