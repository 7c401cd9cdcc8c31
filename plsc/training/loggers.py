"""Copy a run's numbers to VisualDL, TensorBoard and Weights & Biases (Global.loggers).

Each logger has a folder with its name in the run's folder. It imports its package when it is made. Nothing is
sent over a network unless the user's environment asks for it (WANDB_MODE=online).

Try it: `plsc train -c configs/ -o 'Global.loggers=[tensorboard]'`.
"""

import contextlib
import importlib.util
import io
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from plsc.errors import UserError
from plsc.utils.atomic_write import replace_file
from plsc.utils.files import temporary_home


class VisualDL:
    """Writes one file in <folder>/visualdl. A resumed run appends to it."""

    def __init__(self, folder: Path):
        with contextlib.redirect_stdout(io.StringIO()), temporary_home():  # VisualDL prints a greeting
            from visualdl import LogWriter

            # A fixed name: with a second file in the folder, VisualDL would show only the newest.
            self._writer = LogWriter(str(folder / "visualdl"), file_name="vdlrecords.train.log")

    def write(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # otherwise a killed process loses the last two minutes

    def close(self) -> None:
        self._writer.close()


class TensorBoard(VisualDL):
    """Writes a file for each start in <folder>/tensorboard. TensorBoard shows the files as one run."""

    def __init__(self, folder: Path):
        from tensorboardX import SummaryWriter

        place = folder / "tensorboard"
        # A number in the name prevents two starts in the same second from overwriting each other's file.
        self._writer = SummaryWriter(str(place), filename_suffix=f".{len(list(place.glob('events.*')))}")


class Wandb:
    """Writes a folder for each start in <folder>/wandb, offline.

    All starts have the same run id, so that `wandb sync --append` can join them.

    The user's WANDB_MODE, WANDB_PROJECT, WANDB_NAME, WANDB_RUN_ID and WANDB_DIR take precedence.
    """

    def __init__(self, folder: Path):
        import wandb

        kept = folder / "wandb" / "plsc-run-id"
        if not kept.exists():
            replace_file(kept, secrets.token_hex(4).encode())
        given = {
            "mode": "offline",
            "project": "plsc",
            "name": folder.resolve().name,
            "dir": str(folder),
            "run_id": kept.read_text(),
        }
        given = {key: os.environ.get(f"WANDB_{key.upper()}", value) for key, value in given.items()}
        self._run = wandb.init(
            id=given.pop("run_id"),
            resume="allow",
            settings=wandb.Settings(silent=True, console="off", disable_git=True),
            **given,
        )

    def write(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


LOGGERS = {"visualdl": VisualDL, "tensorboard": TensorBoard, "wandb": Wandb}
_PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb"}  # VisualDL comes with plsc


def check_packages(names: Iterable[str]) -> None:
    """Raise UserError if a logger's package is not installed."""
    for name in names:
        package = _PACKAGES.get(name)
        if package and importlib.util.find_spec(package) is None:
            raise UserError(
                f"{name} needs a package that is not installed: pip install {package}, or remove {name}",
                key="Global.loggers",
            )
