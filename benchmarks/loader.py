"""Measure images per second of the loader, against loaders whose workers normalise pictures to float32.

    python -m benchmarks loader train.rec

Normalised pictures cost arithmetic in the workers and four times the bytes to move; on the device the
arithmetic is nearly free. Those loaders exist here only. Page cache is warm.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import zlib
from pathlib import Path

import cv2
import numpy as np

from plsc.data.dataset import Dataset
from plsc.data.images import EncodedImages, decode_pixels
from plsc.data.loader import Loader
from plsc.data.transforms import generator, resize
from plsc.utils.measure import alternate
from plsc.utils.registry import DATASETS
from plsc.utils.text import table


class Normalised(Dataset):
    """A data set that normalises its samples to float32 [C, H, W]."""

    def __init__(self, source: Dataset):
        self.source, self.labels, self.num_classes = source, source.labels, source.num_classes
        self.sample_shape, self.sample_dtype = source.image_shape, "float32"

    def sample(self, index: int, epoch: int) -> np.ndarray:
        image = self.source.sample(index, epoch).astype(np.float32)
        return (image - np.float32(self.source.mean)) * np.float32(self.source.scale)


class PerChannel(Normalised):
    """A data set that normalises by a mean and deviation per channel in float32 [H, W, C], then transposes.

    Lists of transforms usually do so, such as PLSC 2.4's NormalizeImage and ToCHWImage. For an RGB `source`.
    """

    def __init__(self, source: EncodedImages):
        super().__init__(source)
        self.means = np.full(3, source.mean, np.float32)
        self.deviations = np.full(3, 1 / source.scale, np.float32)

    def sample(self, index: int, epoch: int) -> np.ndarray:
        pixels = decode_pixels(self.source.encoded(index), False, lambda: self.source.name(index))
        picture = resize(pixels, *self.source.preprocessing.size)
        floats = (picture[:, :, ::-1].astype(np.float32) - self.means) / self.deviations
        return np.ascontiguousarray(floats.transpose(2, 0, 1))


def write_jpgs(folder: str, count: int, size: int) -> str:
    """Write `count` smooth random pictures of about 3 kB, like face crops; return their list file."""
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
        "path", nargs="?", help="a .rec or list file; default: synthetic jpgs, made for the run"
    )
    parser.add_argument("--images", type=int, default=4000, help="synthetic jpgs")
    parser.add_argument("--size", type=int, default=112, help="height and width")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--runs", type=int, default=5, help="of each, in turn; medians count")


def loader(args: argparse.Namespace) -> dict:
    """Measure the loader with uint8 and float32 batches, and check that workers change no bit."""
    with tempfile.TemporaryDirectory() as folder:
        path = args.path or write_jpgs(folder, args.images, args.size)
        kind = {"path": path} if path.endswith(".rec") else {"list": path}
        name = "RecImages" if "path" in kind else "ImageList"
        data = DATASETS.build(name, size=(args.size, args.size), **kind)
        return measure(data, args.batch, args.workers, args.runs)


def measure(data: EncodedImages, batch_size: int, workers: list[int], runs: int) -> dict:
    """Measure median images per second by number of workers; compare checksums of an epoch."""
    sets = {"uint8": data, "float32": Normalised(data), "per_channel": PerChannel(data)}
    loaders = {
        (kind, count): Loader(each, batch_size, 0, 1, seed=0, num_workers=count)
        for count in workers
        for kind, each in sets.items()
    }
    checksums = {key: checksum(each) for key, each in loaders.items()}
    seconds = alternate(runs, {key: lambda each=each: read(each) for key, each in loaders.items()})
    others = [kind for kind in sets if kind != "uint8"]
    rates = {kind: [len(data) / seconds[kind, count] for count in workers] for kind in sets}
    return {
        "images": len(data),
        "shape": list(data.image_shape),
        "batch": batch_size,
        "processors": os.cpu_count(),
        "runs": runs,
        "workers": workers,
        **rates,
        **{
            f"over_{kind}": [ours / theirs for ours, theirs in zip(rates["uint8"], rates[kind])]
            for kind in others
        },
        "identical": all(len({checksums[kind, count] for count in workers}) == 1 for kind in sets),
    }


def checksum(loader: Loader) -> int:
    """Compute the checksum of all images, labels and indices of an epoch, in order."""
    total = 0
    for batch in loader.epoch(0):
        for array in batch:
            total = zlib.crc32(np.ascontiguousarray(array), total)
    return total


def read(loader: Loader) -> None:
    for _ in loader.epoch(1):
        pass


def show(result: dict) -> str:
    columns = {
        "workers": "workers",
        "uint8": "uint8 img/s",
        "float32": "float32 img/s",
        "over_float32": "ratio",
        "per_channel": "per channel img/s",
        "over_per_channel": "ratio",
    }
    rows = list(zip(*(result[key] for key in columns)))
    same = "the same bit for bit" if result["identical"] else "NOT THE SAME"
    return (
        f"{result['images']:,} images {result['shape']}, batches of {result['batch']}, "
        f"{result['processors']} processors, medians of {result['runs']} runs in turn\n"
        + table(rows, list(columns.values()))
        + f"\nbatches with {', '.join(map(str, result['workers']))} workers: {same}"
    )
