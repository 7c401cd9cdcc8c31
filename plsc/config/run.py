"""Define the sections of a run: Global, LRScheduler, Checkpoint, Export, and the items of Parts.

They are not in plsc/training, which takes a Config and so lies above this package; see CONTRIBUTING.md.
"""

import math
import re
from typing import Literal

from pydantic import Field, field_validator

from plsc.distributed import environment
from plsc.utils.registry import Registry
from plsc.utils.section import ClassSection, Section


class GlobalCfg(Section):
    """Length of the run, seed, device, and where the results go."""

    epochs: int | None = Field(None, ge=1)
    """Passes over the training set. null: 10, or as many as `max_steps` takes."""
    max_steps: int | None = Field(None, ge=1)
    """Optimizer steps after which the run ends, also within an epoch."""
    seed: int = Field(0, ge=0, le=2**31 - 1)
    """Seed of everything random. With the same machine and number of ranks the same seed gives the same run;
    GPUs need variables for that (docs/running.md)."""
    output_dir: str = Field("output", min_length=1)
    """Folder for config, `metrics.jsonl`, checkpoints, exported models and `report.html`.

    Give each run its own: one that is at its end is not overwritten.
    """
    resume: bool = False
    """Go on with a run in `output_dir` that is at its end, too, with more epochs. A run that is not at its
    end goes on without this. The number of ranks may differ from before."""
    overwrite: bool = False
    """Delete an earlier run in `output_dir`, unless `resume` is set, and begin anew."""
    folders: list[str] = []
    """Folders in which relative paths of data sets, and modules of your own classes, are looked for before
    the current folder and that of the config. The `config.yaml` of a run has those two of its training here,
    so that the run is used from any folder."""
    device: str = "auto"
    """`cpu`, a kind of device that Paddle lists, such as `gpu`, `npu`, `xpu` or `mlu`, or one card of it,
    `gpu:1`. `auto` takes the kind that Paddle has when every rank has a card, the CPU when none has
    (docs/running.md)."""
    checkpoint: str | None = None
    """The checkpoint to read, for eval, predict, export and `resume`: a folder, or `newest` or `best` of
    those in `output_dir` (best: of the main evaluation's accuracy or rank-1). null is `newest`, the newest
    whole one."""
    init_from: str | None = None
    """Folder of a run, whose newest checkpoint is taken, or of a checkpoint, such as `plsc import` writes:
    training starts with its weights, and with its centres of the classes of the same name (docs/training.md).
    A run that is resumed has its own."""
    log_every: int = Field(10, ge=1)
    """Steps between two progress lines, which are also the rows of `metrics.jsonl`."""
    eval_every: int = Field(1, ge=0)
    """Epochs between two evaluations; 0 evaluates only at the end. Raise it when evaluation takes long."""
    eval_every_steps: int | None = Field(None, ge=1)
    """Steps between two evaluations, besides those of `eval_every`. Set it when an epoch takes hours."""
    loggers: list[Literal["visualdl", "tensorboard", "wandb"]] = ["visualdl"]
    """Programs for which the numbers of `metrics.jsonl`, which is always written, are copied to
    `output_dir`. tensorboard and wandb need the extra `loggers`; wandb works offline. Its own variables of
    the environment hold, such as `WANDB_MODE` and `WANDB_PROJECT`. To look at the numbers: `visualdl --logdir
    output/visualdl`, `tensorboard --logdir output/tensorboard`, `wandb sync --append
    output/wandb/offline-run-*`. A logger that fails later costs a warning and its own copy, not the run."""
    hang_seconds: int = Field(600, ge=0, le=31_536_000)
    """In a launch: a rank whose step takes longer writes where it is stuck and ends, so that the run ends or
    is restarted (`plsc train --ranks`); evaluations and checkpoints may take six times as long. 0 waits for
    ever."""
    max_skipped: int = Field(10, ge=1)
    """Steps in a row that are left out, since the head's loss or a gradient is NaN or infinite, before the
    run ends. 1 ends it at the first (docs/running.md)."""
    amp: Literal["bfloat16", "float16"] | None = None
    """Mixed precision: which 16-bit numbers convolutions and matrix products of a training compute with
    (docs/training.md). About half the memory of the activations, on CPUs with AVX512-BF16 or AMX about half
    the time, too. bfloat16 has float32's range, and needs an A100 or later among GPUs; float16 has more
    digits, its gradients are scaled, and CPUs refuse it. Weights, sums, checkpoints and evaluations are
    float32 in any case. null: float32."""
    ema: float | None = Field(None, gt=0, lt=1)
    """Share of a running average that an optimizer step keeps: 0.9999 averages the backbone's weights and the
    running statistics of batch norms over about the last 10,000 steps; take 0.999 for runs of fewer than
    50,000. Evaluations, the best checkpoint, `plsc eval`, `predict`, `export` and `Global.init_from` take the
    average; class centres have none. A checkpoint has it in `ema.safetensors`. It costs one more copy of the
    weights. A run that is resumed without it leaves the average behind; one that is resumed with it for the
    first time begins at its weights. null: no average."""
    threads: int | None = Field(None, ge=1, le=1024)
    """CPU threads per rank. null shares the processors out among the ranks; set it when others need some."""

    @field_validator("device")
    @classmethod
    def _device_or_card(cls, value: str) -> str:
        if not re.fullmatch(environment.DEVICES, value):
            raise ValueError(
                "must be a kind that Paddle lists, such as cpu, gpu, npu, or one card of it, gpu:1; auto "
                "takes what is there"
            )
        return value

    def total_steps(self, steps_per_epoch: int) -> int:
        """Return the step that a run ends at."""
        if self.epochs is None:
            return self.max_steps or 10 * steps_per_epoch
        return min(self.max_steps or math.inf, self.epochs * steps_per_epoch)


class PartCfg(ClassSection):
    """An addition to a training. Further keys are keyword arguments of its class."""

    registry = Registry("part", {}, bases=("plsc.training.part:Part",))

    name: str = Field(...)
    """A class of your own as `package.module:Class` (docs/extend.md)."""


class CheckpointCfg(Section):
    """Checkpoints are folders under `output_dir`/checkpoints, each whole or absent."""

    every_steps: int | None = Field(None, ge=1)
    """Steps between two checkpoints, besides those at the end of the epochs and of the run. Set it when an
    epoch takes hours. null writes at the ends only."""
    keep: int = Field(3, ge=1)
    """Newest checkpoints to keep; older ones are deleted, but for the best one of the main evaluation."""


class ExportCfg(Section):
    """The backbone as a file for other programs; every export is compared with the trained network."""

    formats: list[Literal["paddle", "onnx", "insightface", "paddlex"]] = Field(
        ["paddle", "onnx"], min_length=1
    )
    """paddle: for Paddle Inference; onnx: for ONNX Runtime and others; insightface, paddlex: for these
    packages (docs/export.md). All but paddle and paddlex need Paddle 3, the extra `export` and Python 3.10 to
    3.12; elsewhere they are skipped with a warning."""
