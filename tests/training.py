"""A training of a few steps (tiny.yaml), and what it leaves behind in a form that can be compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
from safetensors.numpy import load_file

from plsc import log
from plsc.config import load
from plsc.data.dataset import PairSet
from plsc.data.synthetic import Synthetic
from plsc.trainer import Trainer

TINY = Path(__file__).with_name("tiny.yaml")
IMAGE_SHAPE = (1, 12, 10)


class NoisePairs(PairSet):
    """Pairs of synthetic images, every other one of one class."""

    name = "noise pairs"

    def __init__(self, num_pairs: int = 40, image_shape: tuple[int, int, int] = IMAGE_SHAPE):
        self.source = Synthetic(num_pairs, 2, image_shape, seed=99)
        self.image_shape, self.num_images = image_shape, 2 * num_pairs
        self.same = np.arange(num_pairs) % 2 == 0
        first = np.arange(0, self.num_images, 2)
        self.pairs = np.stack([first, np.where(self.same, first + 1, (first + 2) % self.num_images)], axis=1)

    def image(self, index: int) -> np.ndarray:
        return self.source.sample(index, epoch=0)


class Linear(paddle.nn.Layer):
    """A backbone without batch norm: training it does not depend on how a global batch is spread over ranks."""

    def __init__(self, embedding_size: int = 8, image_shape: tuple[int, int, int] = IMAGE_SHAPE):
        super().__init__()
        self.flat, self.linear = (
            paddle.nn.Flatten(),
            paddle.nn.Linear(np.prod(image_shape).item(), embedding_size),
        )

    def forward(self, images):
        return self.linear(self.flat(images))


def make_trainer(output: Path, *overrides: str, **parts) -> Trainer:
    return Trainer(load(TINY, [f"Global.output_dir={output}", *overrides]), **parts)


def train(output: Path, *overrides: str, resume: Path | None = None, **parts) -> Trainer:
    """A whole training by the Trainer alone; the log stays as it is."""
    trainer = make_trainer(output, *overrides, **parts)
    if resume:
        trainer.resume(resume)
    metrics = log.Metrics(output)
    trainer.train(metrics)
    metrics.close()
    return trainer


def rows(output: Path, evaluations: bool = False) -> list[dict]:
    """The rows of the steps, less their speed, which no two runs share; or those of the evaluations."""
    found = [row for row in log.read_metrics(output / "metrics.jsonl") if ("eval" in row) == evaluations]
    assert all(row.pop("images_per_second", 1.0) > 0 for row in found)
    return found


def steps(found: list[dict]) -> list[int]:
    return [row["step"] for row in found]


def checkpoint(output: Path, step: int = 12) -> Path:
    return output / "checkpoints" / f"step-{step:08d}"


def checkpoints(output: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in (output / "checkpoints").iterdir())


def arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of a checkpoint, "backbone: name" and so on, those of the head's shards joined. Not by our own reader."""
    found: dict[str, list[np.ndarray]] = {}
    for file in sorted(path.glob("*.safetensors")):
        for name, array in load_file(file).items():
            found.setdefault(f"{file.stem.split('-')[0]}: {name}", []).append(np.atleast_1d(array))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def assert_same_arrays(one: Path, other: Path) -> None:
    """Two checkpoints hold the same, bit for bit."""
    first, second = arrays(one), arrays(other)
    assert {name.split(":")[0] for name in first} == {"backbone", "optimizer", "head"}
    assert first.keys() == second.keys()
    assert not [name for name in first if first[name].tobytes() != second[name].tobytes()]
