"""Define a run's sections: Global, LRScheduler, Checkpoint, Export, and the items in Parts.

They are not in plsc/training, because training takes a Config and is therefore above this package (see
CONTRIBUTING.md).
"""

import math
import re
from typing import Literal

from pydantic import Field, field_validator

from plsc.distributed import environment
from plsc.utils.registry import Registry
from plsc.utils.section import ClassSection, Section


class GlobalCfg(Section):
    """The run's length, seed, device, and where the results go."""

    epochs: int | None = Field(None, ge=1)
    """Passes over the training set. null means 10, or as many as `max_steps` takes."""
    max_steps: int | None = Field(None, ge=1)
    """Optimizer steps after which the run ends, also within an epoch."""
    seed: int = Field(0, ge=0, le=2**31 - 1)
    """Seed of everything random. The same seed gives the same run on the same machine and the same number of
    ranks. On GPUs this needs some environment variables (docs/running.md)."""
    output_dir: str = Field("output", min_length=1)
    """Folder for config, `metrics.jsonl`, checkpoints, exported models and `report.html`.

    Give each run its own folder: a finished run is not overwritten.
    """
    resume: bool = False
    """Continue a finished run in `output_dir` with more epochs. An unfinished run is resumed without this
    key. The world size may differ from before."""
    overwrite: bool = False
    """Delete an earlier run in `output_dir`, unless `resume` is set, and start from the beginning."""
    folders: list[str] = []
    """Folders that are searched for data sets' relative paths and for the modules with your own classes,
    before the current folder and the config's folder. A run's `config.yaml` lists these two folders of its
    training here, so that the run can be used from any folder."""
    device: str = "auto"
    """`cpu`, a device kind that Paddle lists, such as `gpu`, `npu`, `xpu` or `mlu`, or one card, such
    as `gpu:1`. `auto` takes Paddle's device if every rank has a card, and the CPU if no rank has one
    (docs/running.md)."""
    checkpoint: str | None = None
    """The checkpoint that eval, predict, export and `resume` read: a folder, or `newest` or `best` in
    `output_dir`. The best one has the best accuracy or rank-1 in the main evaluation. null is `newest`, the
    newest undamaged one."""
    init_from: str | None = None
    """A run's folder, whose newest checkpoint is taken, or a checkpoint's folder, such as `plsc import`
    writes. Training starts with its weights, and with its centres for classes with the same name
    (docs/training.md). A resumed run ignores this key."""
    log_every: int = Field(10, ge=1)
    """Steps between two progress lines, which are also the rows in `metrics.jsonl`."""
    eval_every: int = Field(1, ge=0)
    """Epochs between two evaluations. 0 evaluates only at the end. Raise it if evaluation takes long."""
    eval_every_steps: int | None = Field(None, ge=1)
    """Steps between two evaluations, in addition to `eval_every`. Set it if an epoch takes hours."""
    loggers: list[Literal["visualdl", "tensorboard", "wandb"]] = ["visualdl"]
    """Programs that get a copy of the numbers in `metrics.jsonl` in `output_dir`. `metrics.jsonl` itself
    is always written. tensorboard and wandb need the extra `loggers`. wandb works offline, and obeys its
    own environment variables, such as `WANDB_MODE` and `WANDB_PROJECT`. To look at the numbers: `visualdl
    --logdir output/visualdl`, `tensorboard --logdir output/tensorboard`, `wandb sync --append
    output/wandb/offline-run-*`. A logger that fails later costs a warning and its own copy, not the run.
    If a run returns to an earlier step twice, the copies may have some steps twice."""
    hang_seconds: int = Field(600, ge=0, le=31_536_000)
    """How long a step in a launch may take. A rank that exceeds it writes where it is stuck, and ends. The
    run then ends, or is restarted (`plsc train --ranks`). Evaluations and checkpoints may take six times as
    long. 0 waits for ever."""
    max_skipped: int = Field(10, ge=1)
    """How many consecutive skipped steps end the run. A step is skipped if the head's loss or a
    gradient is NaN or infinite. If this only halves float16's loss scale, the step does not count. 1 ends
    the run at the first step that counts (docs/running.md)."""
    amp: Literal["bfloat16", "float16"] | None = None
    """Mixed precision: the 16-bit dtype for convolutions and matrix products in training (docs/training.md).
    Activations take about half the memory. CPUs with AVX512-BF16 or AMX take about half the time, too.
    bfloat16 has float32's range, and needs an A100 or a later GPU. float16 has more digits, needs scaled
    gradients, and is refused on CPUs. Weights, sums, checkpoints and evaluations are always float32. null:
    float32."""
    ema: float | None = Field(None, gt=0, lt=1)
    """How much of a running average an optimizer step keeps. 0.9999 averages the backbone's weights and the
    batch norms' running statistics over about the last 10,000 steps. Take 0.999 for runs shorter than
    50,000 steps. Evaluations, the best checkpoint, `plsc eval`, `predict`, `export` and `Global.init_from`
    use the average. Class centres have no average. A checkpoint stores it in `ema.safetensors`. It costs one
    more copy of the weights. A run that is resumed without this key drops the average. A run that is resumed
    with it for the first time starts the average from its weights. null means no average."""
    threads: int | None = Field(None, ge=1, le=1024)
    """CPU threads per rank. null divides the processors among the ranks. Set it if other programs need
    some."""

    @field_validator("device")
    @classmethod
    def _device_or_card(cls, value: str) -> str:
        kind, *card = value.split(":", 1)
        if kind == "cuda":
            raise ValueError(f"is no device of Paddle, did you mean '{':'.join(['gpu', *card])}'?")
        if not re.fullmatch(environment.DEVICES, value):
            raise ValueError(
                "must be a device that Paddle lists, such as cpu, gpu, npu, or one card, gpu:1; auto "
                "chooses one"
            )
        return value

    def total_steps(self, steps_per_epoch: int) -> int:
        """Return after how many steps the run ends."""
        if self.epochs is None:
            return self.max_steps or 10 * steps_per_epoch
        return min(self.max_steps or math.inf, self.epochs * steps_per_epoch)


class PartCfg(ClassSection):
    """An addition to a training. Further keys are keyword arguments of its class."""

    registry = Registry("part", {}, bases=("plsc.training.part:Part",))

    name: str = Field(...)
    """Your own class as `package.module:Class` (docs/extend.md)."""


class CheckpointCfg(Section):
    """Checkpoints are folders in `output_dir`/checkpoints. Each is either complete or absent."""

    every_steps: int | None = Field(None, ge=1)
    """Steps between two checkpoints, in addition to those at each epoch's end and the run's end. Set it if
    an epoch takes hours. null adds none."""
    keep: int = Field(3, ge=1)
    """How many of the newest checkpoints to keep. Older ones are deleted, except the best one in the main
    evaluation."""


class ExportCfg(Section):
    """The backbone as a file for other programs. Every export is compared with the trained network."""

    formats: list[Literal["paddle", "onnx", "insightface", "paddlex"]] = Field(
        ["paddle", "onnx"], min_length=1
    )
    """`paddle` is for Paddle Inference, `onnx` for ONNX Runtime and others, and `insightface` and
    `paddlex` for the packages with these names (docs/export.md). onnx and insightface need Paddle 3, the
    extra `export`, and Python 3.10 to 3.12. They are skipped with a warning elsewhere."""
