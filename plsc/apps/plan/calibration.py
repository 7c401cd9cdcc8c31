"""Measure steps of the head and the backbone on this machine, at growing numbers of classes and batches.

New processes measure; `plsc plan` extrapolates along straight lines. A bank on disk is made in a temporary
folder beside the place of the run's, and timed twice: with its rows in the page cache, and with the disk
reading and writing them. Try it:

    calibrate(Case(load("configs/"), classes=100_000, ranks=1, batch=128), seconds=5, image_shape=None,
    threads=None)
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from plsc.backbones.config import ModelCfg
from plsc.config import Config, load
from plsc.distributed import environment, launcher
from plsc.errors import UserError, writing
from plsc.utils.disk import nearest_folder
from plsc.utils.sharding import split

MOST_ROWS = 200_000  # classes of a rank that the calibration makes: more take seconds to draw
SMALLEST = 1024  # the first number of classes
HIGHEST_RATE = 0.1  # sample rate of the steps measured with sampling
_STEPS = 5  # timed at each size, after one that is not; the median counts
# Assumed speeds of a machine, to choose the same sizes each time however busy the machine is.
_MACS = 1e10  # multiply-accumulates in a second
_BYTES = 5e9  # of memory read or written in a second
_GIVE_UP = 10  # times the time that was asked for


@dataclass
class Case:
    """A case to plan: a config with so many classes, ranks, and samples of a rank that go through the
    backbone at once."""

    cfg: Config
    classes: int
    ranks: int
    batch: int

    @classmethod
    def on(cls, cfg: Config, classes: int, ranks: int) -> Case:
        """Build the case of a run on so many ranks, with the batch that the config gives each."""
        return cls(cfg, classes, ranks, cfg.DataLoader.Train.micro_batches_on(ranks)[0][0])

    @property
    def accumulate(self) -> int:
        """Batches of a rank in a step."""
        return len(self.cfg.DataLoader.Train.micro_batches_on(self.ranks)[0])

    @property
    def shard(self) -> int:
        """Classes S of the largest shard."""
        spread = self.cfg.Head.sharded
        return split(self.classes, self.ranks)[0][1] if spread else self.classes

    def selected(self, rate: float) -> int:
        """Estimate K, the sampled classes: those drawn and the positives that were not drawn."""
        samples = self.batch * self.accumulate * self.ranks
        drawn = round(rate * self.shard)
        return min(self.shard, drawn + round(samples * (1 - rate) * self.shard / self.classes))

    @property
    def samples(self) -> int:
        """Samples N that a rank compares with its classes."""
        return self.batch * self.accumulate * (self.ranks if self.cfg.Head.sharded else 1)


# ---- the calibration, in new processes


def calibrate(
    case: Case,
    seconds: float,
    image_shape: tuple[int, ...] | None,
    threads: int | None,
    device: str = "cpu",
    passing: tuple[ModelCfg, bool] | None = None,
) -> dict:
    """Measure in new processes: as many as `case` has ranks, if there are processors for them, else one; one
    on a GPU.

    passing: the network of another run, and whether it embeds the samples of a step; None: there is none.

    Returns {"head": {"full" or "sampled": [[K, seconds], ...]}, "backbone": [[samples, seconds, bytes], ...]
    (with `image_shape`), "passing": null or the result of activations.count_passing with "seconds",
    [[samples, seconds], ...] of its forward pass, "kept": bytes of an image that autograd keeps, "parameters"
    and "frozen": numbers of the backbone that are trained, and others, "base": bytes of Paddle itself,
    "ranks": processes that took part, "threads": of each, "gpu": name and bytes of the GPU, null on a CPU,
    "scatter": the largest relative difference of a time's middle half from its median}. With a bank on disk
    the points of the head are [K, seconds with all rows in the page cache, with none of them there, seconds
    to write].
    """
    processors = os.cpu_count() or 1
    ranks = case.ranks if case.ranks <= processors and device == "cpu" else 1
    # None: as in training, the processors shared out, or what the user's OMP_NUM_THREADS says.
    threads = threads or case.cfg.Global.threads or (None if ranks == case.ranks else 1)
    with tempfile.TemporaryDirectory() as folder, _with_bank_folder(case.cfg) as cfg:
        config = Path(folder, "config.yaml")
        target = Path(folder, "measured.json")
        config.write_text(cfg.to_yaml())
        asked = {
            "classes": case.classes // case.ranks * ranks,
            "batch": case.samples // ranks,
            "backbone_batch": case.batch,
            "accumulate": case.accumulate,
            "seconds": seconds,
            # As high as it must be for the step's classes to be among those that are made.
            "rate": min(
                HIGHEST_RATE, max(rate := case.cfg.Head.sample_rate, case.selected(rate) / MOST_ROWS)
            ),
        }
        asked.update(image_shape=image_shape, threads=threads, device=device)
        asked["passing"] = (passing[0].model_dump(mode="json"), passing[1]) if passing else None
        last_line = launcher.run_ranks(
            ["plan", "-c", str(config), "--work", json.dumps(asked), str(target)],
            ranks,
            Path(folder, "log"),
            device,
        )
        if not target.exists():
            raise UserError(f"plsc plan: the calibration failed: {last_line.removeprefix('ERROR ')}")
        return {**json.loads(target.read_text()), "ranks": ranks}


@contextlib.contextmanager
def _with_bank_folder(cfg: Config) -> Iterator[Config]:
    """Yield the config with a temporary folder for a bank on disk, on the run's disk. Raises UserError."""
    if cfg.Head.bank != "disk":
        yield cfg
        return
    place = nearest_folder(cfg.Head.bank_folder or cfg.Global.output_dir)
    with writing(f"Head.bank_folder: {place}", remedy="name another folder"):
        folder = tempfile.TemporaryDirectory(prefix="plsc-plan-", dir=place)
    with folder as name:
        yield _with(cfg, Head={"bank_folder": name})


def work(cfg: Config, asked: dict) -> dict:
    """Measure on this rank; every rank calls it."""
    threads, _ = environment.prepare(asked["threads"], asked["device"])
    from plsc import distributed
    from plsc.apps.plan.cost import Trial
    from plsc.distributed import accelerator

    distributed.init(asked["device"], threads)
    small = {"Head": {"sample_rate": 1.0}}
    Trial(_with(cfg, **small), 1000, 8).step()
    base = accelerator.used_bytes()
    measured: dict = {
        "base": base,
        "gpu": describe_gpu(),
        "threads": threads,
        "head": {},
        "backbone": [],
        "passing": None,
        "kept": 0,
        "parameters": 0,
        "frozen": 0,
    }
    rates = {"full": 1.0, "sampled": asked["rate"]}
    kinds = rates if cfg.Head.sharded else ["full"]
    seconds, times = asked["seconds"] / (len(kinds) + 1), Times()
    # The backbone first: in memory that a head has freed its activations would not be seen.
    if asked["image_shape"]:
        measured.update(_backbone_costs(cfg, asked, seconds, times))
        if asked["passing"]:
            measured["passing"] = _passing_costs(asked, seconds, times)
    for kind in kinds:
        measured["head"][kind] = _head_times(cfg, rates[kind], asked, seconds, times)
    return {**measured, "scatter": times.scatter}


def describe_gpu() -> dict | None:
    """Return name and bytes of the GPU on which Paddle computes; None on a CPU."""
    from plsc.distributed import accelerator  # here: it imports Paddle

    if not accelerator.on_device():
        return None
    return {"name": accelerator.name(), "bytes": accelerator.total_bytes()}


class Times:
    """Measures median times, and keeps their largest scatter."""

    scatter = 0.0

    def median(self, step: Callable[[], None]) -> float:
        """Time `step` _STEPS times after a run that is not timed; return the median in seconds."""
        from plsc.distributed import accelerator

        step()
        times = []
        for _ in range(_STEPS):
            accelerator.finish()
            began = time.perf_counter()
            step()
            accelerator.finish()
            times.append(time.perf_counter() - began)
        middle = statistics.median(times)
        low, _, high = statistics.quantiles(times, n=4)
        self.scatter = max(self.scatter, (high - low) / 2 / middle)
        return middle


def head_sizes(seconds: float, samples: int, width: int, most: float, disk: bool) -> list[float]:
    """Choose growing numbers of classes, up to `most`, for about `seconds` in all at the assumed speed."""
    of_class = 3 * samples * width / _MACS + 8 * 4 * width / _BYTES
    return _sizes(SMALLEST, seconds / (of_class * (3 if disk else 1)), most)


def backbone_batches(seconds: float, macs: int, most: int) -> list[int]:
    """Choose growing batches, up to `most`, for about `seconds` in all at the assumed speed."""
    of_image = 3 * max(macs, 10**6) / _MACS
    # Training-mode BatchNorm takes two images.
    return [max(min(2, most), int(size)) for size in _sizes(4, seconds / of_image, most)]


def _sizes(first: float, all_steps: float, most: float) -> list[float]:
    """List first, 4 first, ... while their sum over all steps is within `all_steps`, at most `most`."""
    sizes = [min(first, most)]
    while sizes[-1] < most:
        following = min(4 * sizes[-1], most)
        if (sum(sizes) + following) * (_STEPS + 1) > all_steps:
            break
        sizes.append(following)
    if len(sizes) == 1 and first < most:
        return [first / 4, first]  # a line takes two points
    return sizes


def _with(cfg: Config, **sections: dict) -> Config:
    changed = {name: getattr(cfg, name).model_copy(update=keys) for name, keys in sections.items()}
    return cfg.model_copy(update=changed)


def _head_times(cfg: Config, rate: float, asked: dict, seconds: float, times: Times) -> list[list[float]]:
    """Measure [K, seconds of a step] for growing numbers of classes; with a bank on disk its seconds too."""
    from plsc import distributed
    from plsc.apps.plan.cost import Trial

    began = time.monotonic()
    measured = []
    ranks = distributed.world_size()
    most = min(asked["classes"] / ranks, MOST_ROWS)
    disk = cfg.Head.bank == "disk"
    samples = asked["batch"] * (ranks if cfg.Head.sharded else 1)
    for size in head_sizes(seconds, samples, cfg.Model.embedding_size, max(1.0, rate * most), disk):
        classes = max(2, int(min(size / rate, most) * ranks))
        trial = Trial(_with(cfg, Head={"sample_rate": rate}), classes, asked["batch"])
        spent = times.median(trial.step)
        measured.append([trial.head.bank.selected, spent])
        if disk:
            both = [trial.seconds_on_disk() for _ in range(_STEPS)]
            measured[-1] += [statistics.median(values) for values in zip(*both)]
        if not distributed.every(time.monotonic() - began < _GIVE_UP * seconds):
            break
    return measured


def _backbone_costs(cfg: Config, asked: dict, seconds: float, times: Times) -> dict:
    """Measure seconds and bytes of forward and backward for growing batches, as in a step of the config: with
    layers that are recomputed, and with the first pass of accumulated batches."""
    import paddle

    from plsc import distributed
    from plsc.apps.plan.activations import build, kept_bytes
    from plsc.backbones.count import count
    from plsc.distributed import accelerator
    from plsc.distributed.recompute import recomputing
    from plsc.training.mixed_precision import autocast_on_cpu
    from plsc.training.network import layers_to_recompute

    shape, before = tuple(asked["image_shape"]), accelerator.used_bytes()
    backbone, sizes = build(cfg, shape)
    recomputed = layers_to_recompute(cfg.Model.recompute, backbone)
    measured, began = [], time.monotonic()
    for batch in backbone_batches(seconds, count(backbone, shape).macs, asked["backbone_batch"]):
        images = paddle.randn([batch, *asked["image_shape"]])
        grad = paddle.randn([batch, cfg.Model.embedding_size])

        def step(images=images, grad=grad) -> None:
            with autocast_on_cpu(cfg.Global.amp):
                if asked["accumulate"] > 1:
                    with paddle.no_grad():
                        backbone(images)
                with recomputing(recomputed):
                    out = backbone(images)
                out.flatten(1).backward(grad)
            backbone.clear_gradients()

        accelerator.reset_peak()
        spent = times.median(step)
        measured.append([batch, spent, accelerator.peak_bytes() - before])
        if not distributed.every(time.monotonic() - began < _GIVE_UP * seconds):
            break
    with autocast_on_cpu(cfg.Global.amp):
        kept = kept_bytes(backbone, shape, recomputed)
    return {"backbone": measured, "kept": kept, **sizes}


def _passing_costs(asked: dict, seconds: float, times: Times) -> dict:
    """Count what the network of another run takes, and measure the seconds of its forward pass for growing
    batches if it embeds any."""
    import paddle

    from plsc import distributed
    from plsc.apps.plan.activations import build_passing, count_passing

    shape = tuple(asked["image_shape"])
    model, embeds = asked["passing"]
    network = build_passing(load().edit({"Model": model}).Model, shape)
    found = {**count_passing(network, shape, embeds), "seconds": []}
    if not embeds:
        return found
    began = time.monotonic()
    for batch in backbone_batches(seconds, found["macs"], asked["backbone_batch"]):
        images = paddle.randn([batch, *shape])
        with paddle.no_grad():
            found["seconds"].append([batch, times.median(lambda images=images: network(images))])
        if not distributed.every(time.monotonic() - began < _GIVE_UP * seconds):
            break
    return found
