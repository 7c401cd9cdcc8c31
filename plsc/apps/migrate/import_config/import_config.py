"""Translate another program's training config into one of plsc: `plsc import --config FILE -o out.yaml`.

Reads arcface_torch's Python files, of which nothing is run, and PLSC 2.4's YAML. Every key that has no
counterpart is printed, and stands as a comment at the end of the YAML, and so do those that mean not quite
the same.
"""

from __future__ import annotations

import os

from plsc.apps.migrate.import_config import arcface_torch, plsc24
from plsc.apps.migrate.import_config.translation import Translation, format_config, problems_of
from plsc.errors import UserError, reading, shown, shown_lines, writing
from plsc.utils.atomic_write import replace_file
from plsc.utils.files import read_regular
from plsc.utils.text import table

_MOST_BYTES = 2**16  # of a config file; real ones have up to 20,000


def import_config(path: str, ranks: int | None = None) -> tuple[str, Translation]:
    """Translate a config file; return the YAML and what became of each key.

    Args:
        ranks: GPUs that the config is meant for, which no such file says, for DataLoader.Train.global_batch.

    Raises UserError, MissingFileError.
    """
    text = _read(path)
    if path.endswith(".py"):
        made = arcface_torch.translate(text, path)
        program = "arcface_torch"
    else:
        made = plsc24.translate(text, path)
        program = "PLSC 2.4"
    train = "DataLoader.Train."
    samples = made.changes.get(f"{train}batch_size", 1) * made.changes.get(f"{train}accumulate", 1)
    if ranks:
        made.changes[f"{train}global_batch"] = samples * ranks
    else:
        made.facts.append(
            f"The number of GPUs is not in the file: with N of them a step takes {samples} x N samples. State that number as"
        )
        made.facts.append("DataLoader.Train.global_batch, which the learning rate is meant for.")
    return format_config(made, f"{os.path.basename(path)} of {program}, translated by plsc import"), made


def _read(path: str) -> str:
    with reading(path):
        return read_regular(path, _MOST_BYTES).decode("utf-8-sig")


def main(path: str, output: str | None, ranks: int | None) -> None:
    """Print the translation of `path`, or write it to `output` and print what became of each key. Raises
    UserError."""
    text, made = import_config(path, ranks)
    problems = [f"WARNING the translation is refused as it is: {line}" for line in problems_of(made)]
    if output is None:
        print(text, end="")
    else:
        if os.path.exists(output):
            raise UserError(f"{output}: is there already; name a new file")
        with writing(output):
            replace_file(output, text.encode())
        print(table([[*map(shown, row)] for row in made.rows], ["key", "value", "here", "note"]))
        lost = sum(not row.to for row in made.rows)
        print(
            f"done: {len(made.rows) - lost} of {len(made.rows)} keys in {shown(output)}, {lost} without a counterpart"
        )
    for line in problems:
        print(shown_lines(line))
