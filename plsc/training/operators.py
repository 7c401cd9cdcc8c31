"""Record the operators of one step of a config, and find those that a device has no kernel for.

Paddle runs such an operator on the CPU, with its inputs and outputs copied, without a word. What is recorded
is the way of devices, in a new process on the CPU: Paddle logs each kernel that it selects, if the
environment says so before it is imported. Samples and classes are few, since operators do not depend on their
number; a head of several blocks of classes has its own once for each. A CPU does not mix precisions: the
dtypes are float32's.

    missing(record(load("configs/recipes/ms1mv3_r50.yaml"), "npu"), listed("npu"))
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from plsc.config import Config, load
from plsc.data.build import build_dataset
from plsc.data.dataset import Dataset
from plsc.data.images import EncodedImages
from plsc.data.preprocessing import Preprocessing
from plsc.distributed.kernel_tables import KernelTable
from plsc.distributed.kinds import AS_KIND, CPU, GPU
from plsc.errors import UserError, shown
from plsc.training.stand_in import image_shape
from plsc.utils.logging import warn
from plsc.utils.registry import DATASETS
from plsc.utils.section import Section, is_run
from plsc.utils.timing import timer

PHASES = ("forward", "backward", "update")

_STEP = 2  # the first makes what later ones have, as an optimizer's state
_SAMPLES = 2  # of a micro-batch
_MARK = "@@@@ "
_LINES = re.compile(
    rf"^{_MARK}(\w*)$|API kernel key: \[.*, (\w+)\]|\] (\w+) kernel: \{{", re.MULTILINE
)  # phase, dtype, operator
_ENVIRONMENT = {
    "PLSC_KERNELS": "0",  # the way of devices
    "FLAGS_use_stride_kernel": "0",
    "GLOG_minloglevel": "0",
    "GLOG_vmodule": "*api*=6",
}


class Operator(NamedTuple):
    """An operator of Paddle, with the phase of the step that runs it."""

    phase: str
    name: str
    dtype: str


class Noise(Dataset):
    """Noise of the shape and dtype of a data set's samples, of a few classes."""

    num_classes = 16

    def __init__(self, shape: tuple[int, ...], dtype: str, channels: str | None, mean: float, scale: float):
        self.labels = np.arange(64) % self.num_classes
        self.image_shape = shape if channels else None
        self.sample_shape, self.sample_dtype = (None, None) if channels else (shape, dtype)
        self.channels = channels
        self.mean = mean
        self.scale = scale

    def sample(self, index: int, epoch: int) -> np.ndarray:
        samples = self.preprocessing
        return np.random.default_rng(index).integers(0, 256, samples.shape).astype(samples.dtype)


def record(cfg: Config, kind: str, samples: Preprocessing | None = None) -> Counter[Operator]:
    """Count the operators of one step of a config on one rank of a kind of device. Neither it nor the data
    need be there.

    samples: the data set's; None: what its section says, and where that does not tell, the data set itself.

    What the config takes from other runs is left out. Raises UserError for a config that cannot be trained.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.yaml")
        config.write_text(_small(cfg, samples or _samples_of(cfg), folder).to_yaml())
        log = Path(folder, "log")
        with open(log, "wb") as target:
            done = subprocess.run(
                [sys.executable, "-m", "plsc.training.operators", config],
                env={**_outside_of_launches(), **_ENVIRONMENT, AS_KIND: kind},
                stdin=subprocess.DEVNULL,
                stdout=target,
                stderr=subprocess.STDOUT,
                check=False,
            )
        said = log.read_text(errors="replace")
    if done.returncode:
        last = (said.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UserError(f"a step of this config cannot be recorded: {shown(last)}")
    return parse(said)


def _outside_of_launches() -> dict[str, str]:
    """Return the environment without what makes a process a rank, or brings it a plug-in."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PADDLE_", "CUSTOM_DEVICE", "FLAGS_selected_"))
    }


def missing(recorded: Counter[Operator], table: KernelTable) -> Counter[Operator]:
    """Return the operators without a kernel in a table."""
    return Counter({op: times for op, times in recorded.items() if table.lacks(op.name, op.dtype)})


def lines(operators: Counter[Operator]) -> list[str]:
    """List operators with their calls in each phase, those with the most first."""
    calls: dict[str, dict[str, int]] = defaultdict(dict)
    for operator, times in operators.most_common():
        calls[f"{operator.name} ({operator.dtype})"][operator.phase] = times
    ranked = sorted(calls.items(), key=lambda item: -sum(item[1].values()))
    return [
        f"{name}: " + ", ".join(f"{times:,} {phase}" for phase, times in phases.items())
        for name, phases in ranked
    ]


def refuse_or_name_fallbacks(cfg: Config, samples: Preprocessing) -> None:
    """Warn of the operators of a step that have no kernel on the device in use, or raise UserError for
    Global.fallback=refuse.

    samples: the data set's. GPUs and CPUs have a kernel for each.
    """
    from plsc.distributed.accelerator import kind_in_use, registered

    kind = kind_in_use()
    if kind in (CPU, GPU):
        return
    try:
        lacking = missing(record(cfg, kind, samples), registered(kind))
    except UserError as error:
        if cfg.Global.fallback == "refuse":
            raise
        warn(f"which operators {kind} has no kernel for is not known: {error}")
        return
    if not lacking:
        return
    text = f"{kind} has no kernel for these operators of a step, so the CPU computes them, with copies: {'; '.join(lines(lacking))}"
    if cfg.Global.fallback == "refuse":
        raise UserError(f"Global.fallback: refuse, but {text}; set it to warn, or take a newer plug-in")
    warn(f"{text} (Global.fallback=refuse ends a run instead)")


def parse(log: str) -> Counter[Operator]:
    """Count the operators of a log of Paddle's, with the marks of the phases in it."""
    found: Counter[Operator] = Counter()
    phase = dtype = ""
    for mark, key, name in _LINES.findall(log):
        if name and phase:
            found[Operator(phase, name, dtype)] += 1
        dtype = key or dtype
        phase = phase if key or name else mark
    return found


def _samples_of(cfg: Config) -> Preprocessing:
    section = cfg.DataLoader.Train.sets[0]
    if issubclass(DATASETS.get(section.name), EncodedImages):
        return Preprocessing.of_images(image_shape(section))
    return build_dataset(cfg.DataLoader, cfg.Global.seed, cfg.place).preprocessing


def _small(cfg: Config, samples: Preprocessing, folder: str) -> Config:
    """Return the config with few samples of noise and classes, on the CPU, alone and without another run."""
    train = cfg.DataLoader.Train
    shape_and_dtype = {key: getattr(samples, key) for key in ("dtype", "channels", "mean", "scale")}
    noise = {"name": "plsc.training.operators:Noise", "shape": list(samples.shape), **shape_and_dtype}
    own_softmax = any(getattr(section, "head", "") == "own" for section in train.sets)
    changes = {}
    for name, section in cfg:
        if isinstance(section, Section):
            changes.update(section.without_names(name))
            keys = [key for key in type(section).model_fields if is_run(type(section), [key])]
            changes.update({f"{name}.{key}": None for key in keys})
    changes |= {
        "Global.output_dir": folder,
        "Global.device": CPU,
        "Global.fallback": "warn",
        "Global.max_steps": _STEP + 1,
        "Global.resume": False,
        "Global.keep_centres": None,
        "Global.new_centres": None,
        "Global.keep_step": False,
        "Global.loggers": [],
        "Global.log_every": _STEP + 2,
        "Head.bank_folder": None,
        "DataLoader.Train": {
            "dataset": [{**noise, "head": "own"}] * 2 if own_softmax else noise,
            "batch_size": _SAMPLES,
            "accumulate": min(train.accumulate, 2),
        },
        "DataLoader.Eval.dataset": None,
        "DataLoader.Eval.more": {},
        "Checkpoint": {},
    }
    return cfg.edit(changes, "the record of a step")


class _EnoughError(Exception):
    """Ends the run after the step that is recorded."""


def _main(path: str) -> None:
    """Train until the step is done, with the phases marked in Paddle's log."""
    from plsc.distributed import environment

    cfg = load(path)
    threads, _ = environment.prepare(cfg.Global.threads, CPU)
    from plsc import distributed
    from plsc.training.build import build_trainer

    distributed.init(CPU, threads)
    step = heads = phase = 0

    def entered(part: str, again: bool) -> None:
        nonlocal step, heads, phase
        if again:
            return
        if part == "data":
            step += 1
            heads = phase = 0
        heads += part == "head"
        phase = max(phase, heads - 1, {"backward": 1, "optimizer": 2}.get(part, 0))
        if step == _STEP:
            os.write(2, f"{_MARK}{PHASES[phase]}\n".encode())
        elif step > _STEP:
            raise _EnoughError

    try:
        with timer.watch(entered):
            build_trainer(cfg).train(None)
    except _EnoughError:
        os.write(2, f"{_MARK}\n".encode())


if __name__ == "__main__":
    _main(sys.argv[1])
    os._exit(0)  # Paddle's log may hang at the end of a process
