"""A training of a few steps (tiny.yaml), and what it leaves behind in a form that can be compared."""

import contextlib
import copy
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import paddle
import pytest
from safetensors import deserialize

from plsc import distributed
from plsc.config import load
from plsc.data.dataset import PairSet
from plsc.data.synthetic import Synthetic
from plsc.errors import CorruptImageError, UserError
from plsc.training.build import build_trainer
from plsc.training.metrics import Metrics, read_metrics
from plsc.training.part import Part
from plsc.training.trainer import Trainer
from tests.helpers.bounds import rounded

NO_PAIRS = "DataLoader.Eval.dataset=null"
TINY = Path(__file__).with_name("tiny.yaml")
DTYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "BF16": np.uint16}
IMAGE_SHAPE = (1, 12, 10)


class NoisePairs(PairSet):
    """Synthetic image pairs, every other one from one class."""

    title = "noise pairs"

    def __init__(self, num_pairs: int = 40, image_shape: tuple[int, int, int] = IMAGE_SHAPE):
        self.source = Synthetic(num_pairs, 2, image_shape, seed=99)
        self.image_shape, self.num_images = image_shape, 2 * num_pairs
        self.same = np.arange(num_pairs) % 2 == 0
        first = np.arange(0, self.num_images, 2)
        self.pairs = np.stack([first, np.where(self.same, first + 1, (first + 2) % self.num_images)], axis=1)

    def image(self, index: int) -> np.ndarray:
        return self.source.sample(index, epoch=0)


class OneBadSample(Synthetic):
    """Its sample 7 cannot be read. In a step on several ranks only one rank meets it."""

    def sample(self, index: int, epoch: int) -> np.ndarray:
        if index == 7:
            raise UserError("sample 7: the picture is broken")
        return super().sample(index, epoch)


class DamagedSynthetic(Synthetic):
    """The images of tiny.yaml. The first `damaged` cannot be decoded."""

    def __init__(self, damaged: int, seed: int = 0):
        super().__init__(23, 5, IMAGE_SHAPE, seed)
        self.damaged = damaged

    def sample(self, index: int, epoch: int) -> np.ndarray:
        if index < self.damaged:
            raise CorruptImageError(f"{self.name(index)}: not an image")
        return super().sample(index, epoch)


class People(Synthetic):
    """The images of tiny.yaml, whose people have names. The pictures of `damaged` cannot be decoded."""

    def __init__(
        self, people: list[str], damaged: Sequence[str] = (), images_per_class: int = 5, seed: int = 0
    ):
        super().__init__(len(people), images_per_class, IMAGE_SHAPE, seed)
        self.identities, self.damaged = np.array(people), damaged

    def sample(self, index: int, epoch: int) -> np.ndarray:
        if self.identities[self.labels[index]] in self.damaged:
            raise CorruptImageError(f"{self.name(index)}: not an image")
        return super().sample(index, epoch)


class Linear(paddle.nn.Layer):
    """A backbone without batch norm: training it does not depend on how a global batch is spread over
    ranks."""

    def __init__(self, embedding_size: int = 8, image_shape: tuple[int, int, int] = IMAGE_SHAPE):
        super().__init__()
        self.flat, self.linear = (
            paddle.nn.Flatten(),
            paddle.nn.Linear(np.prod(image_shape).item(), embedding_size),
        )

    def forward(self, images):
        return self.linear(self.flat(images))


def make_trainer(output: Path, *overrides: str, **parts) -> Trainer:
    return build_trainer(load(TINY, [f"Global.output_dir={output}", *overrides]), **parts)


def part_of(trainer: Trainer, name: str) -> Part:
    """A part of a run, by its name."""
    return next(part for part in trainer.parts if part.name == name)


def train(output: Path, *overrides: str, resume: Path | None = None, **parts) -> Trainer:
    """A whole training by the Trainer alone, on one process or, called by every rank, on several."""
    trainer = make_trainer(output, *overrides, **parts)
    if resume:
        trainer.resume(resume)
    run_to_the_end(trainer, output)
    return trainer


def run_to_the_end(trainer: Trainer, output: Path) -> None:
    """Train. Rank 0 writes the metrics."""
    rank_0s = contextlib.closing(Metrics(output)) if distributed.rank() == 0 else contextlib.nullcontext()
    with rank_0s as metrics:
        trainer.train(metrics)


def refused_on_every_rank(call: Callable[[], object]) -> str:
    """Return the line of the UserError that a call raises on all ranks. Every rank makes the call."""
    with pytest.raises(UserError) as raised:
        call()
    line = str(raised.value)
    assert set(distributed.gather_objects(line)) == {line}
    return line


def linear() -> Linear:
    """The network that the trainings below begin with."""
    paddle.seed(0)
    return Linear()


def rounded_run(folder: Path, train: Callable[[Path, paddle.nn.Layer], object], net: paddle.nn.Layer, **more):
    """Train a network here, by `train(output folder, network)`, and again with its layers' results off by
    some roundings.

    Returns the run's (columns, arrays), see below, and how far a float32 run may differ: see
    tests/helpers/bounds.py.
    """
    runs = itertools.count()

    def compute():
        output = folder / f"rounded-{next(runs)}"
        train(output, copy.deepcopy(net))
        last = checkpoints(output)[-1]
        return columns(rows(output)), arrays(checkpoint(output, last))

    return rounded(net, compute, times=2, **more)


def columns(found: list[dict]) -> dict[str, np.ndarray]:
    """The fractions in rows of metrics, such as the losses, by key."""
    return {
        key: np.array([row[key] for row in found])
        for key, value in found[0].items()
        if isinstance(value, float)
    }


def train_linear(output: Path, head: str, batch_size: int, net: paddle.nn.Layer | None = None) -> None:
    """Three steps whose results are the same except for rounding, on any number of ranks with the same global
    batch."""
    overrides = [f"Head.name={head}", f"DataLoader.Train.batch_size={batch_size}", "Global.max_steps=3"]
    train(output, *overrides, "DataLoader.Eval.dataset=null", backbone=net or linear())


def train_sets(output: Path, batch_size: int, net: paddle.nn.Layer | None = None) -> None:
    """As `train_linear`, on two sets with a person in common, of sampled classes."""
    names = ([f"a{number}" for number in range(9)], [*(f"b{number}" for number in range(10)), "a3"])
    sets = [{"name": "tests.helpers.tiny_runs:People", "people": people} for people in names]
    overrides = [f"DataLoader.Train.dataset={json.dumps(sets)}", "Global.max_steps=3", "Head.sample_rate=0.3"]
    overrides += [f"DataLoader.Train.batch_size={batch_size}", "DataLoader.Eval.dataset=null"]
    train(output, *overrides, backbone=net or linear())


def assert_takes_over(trainer: Trainer, path: Path) -> None:
    """Right after `resume`, this rank holds exactly its classes' rows of the checkpoint, the backbone and the
    step."""
    trainer.resume(path)
    saved, shard = arrays(path), trainer.head.shard
    assert trainer.step == int(path.name[5:]) and shard.num_classes == len(saved["head: centres"])
    for name, rows_of_rank in trainer.head.bank.state().items():
        assert rows_of_rank.tobytes() == saved[f"head: {name}"][shard.start : shard.stop].tobytes(), name
    for name, value in trainer.backbone.state_dict().items():
        assert value.numpy().tobytes() == saved[f"backbone: {name}"].tobytes(), name


def rows(output: Path, evaluations: bool = False) -> list[dict]:
    """Return the steps' rows without their speed and waits, which differ between runs, or the evaluations'
    rows."""
    found = [row for row in read_metrics(output / "metrics.jsonl") if ("eval" in row) == evaluations]
    assert all(row.pop("images_per_second", 1.0) > 0 and 0 <= row.pop("data_wait", 0.0) <= 1 for row in found)
    return found


def steps(found: list[dict]) -> list[int]:
    return [row["step"] for row in found]


def checkpoint(output: Path, step: int = 12) -> Path:
    return output / "checkpoints" / f"step-{step:08d}"


def checkpoints(output: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in (output / "checkpoints").iterdir())


def arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays in a checkpoint, "backbone: name" and so on, with the head's shards joined. They are not
    read by our own reader."""
    found: dict[str, list[np.ndarray]] = {}
    for file in sorted(path.glob("*.safetensors")):
        for name, entry in deserialize(file.read_bytes()):
            array = np.frombuffer(entry["data"], DTYPES[entry["dtype"]]).reshape(entry["shape"])
            found.setdefault(f"{file.stem.split('-')[0]}: {name}", []).append(np.atleast_1d(array))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def assert_same_arrays(one: Path, other: Path) -> None:
    """Two checkpoints hold the same, bit for bit."""
    first, second = arrays(one), arrays(other)
    assert {name.split(":")[0] for name in first} - {"ema"} == {"backbone", "optimizer", "head"}
    assert first.keys() == second.keys()
    assert not [name for name in first if first[name].tobytes() != second[name].tobytes()]


def assert_equal_runs(output: Path, expected: Path) -> None:
    """Every row occurs once, every step's loss is equal to the bit, and the weights and momenta of backbone
    and head are equal to the byte."""
    found, wanted = rows(output), rows(expected)
    last = wanted[-1]["step"]
    assert steps(found) == list(range(1, last + 1))
    assert [row["loss"].hex() for row in found] == [row["loss"].hex() for row in wanted]
    assert found == wanted and rows(output, evaluations=True) == rows(expected, evaluations=True)
    assert_same_arrays(checkpoint(output, last), checkpoint(expected, last))
