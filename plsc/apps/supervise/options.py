"""Read the command line of plsc run: its options, and the program with its arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from plsc.distributed.launcher import MAIN
from plsc.errors import UserError
from plsc.utils.registry import did_you_mean

USAGE = "plsc run [--nproc_per_node N] [options] train -c ... -o ..."
_OPTIONS = {
    "--nproc_per_node": "N: ranks of this machine (1)",
    "--max_failures": "R: give up after so many failures without a new checkpoint between them (3)",
    "--devices": "0,1,...: the GPUs (all)",
    "--log_dir": "FOLDER: of the ranks' logs (log in Global.output_dir)",
    "--nnodes": "N, or the fewest and the most as N:M: train on several machines, this command on each",
    "--rank": "R: number of this machine, from 0",
    "--master": "HOST:PORT: machine 0, as all machines reach it, and a free port there",
    "--wait": "SECONDS: for the other machines (600)",
}
HELP = "\n".join(
    [
        f"usage: {USAGE}",
        "",
        "Train on several ranks, and restart what died. In place of `train` a script of yours may stand.",
        "",
        "options, each with its value:",
        *(f"  {option:18}{what}" for option, what in _OPTIONS.items()),
        "",
        "example: plsc run --nproc_per_node 2 train -c configs/",
        "docs/resume.md explains it, docs/cluster.md several machines",
    ]
)


class Machines(NamedTuple):
    """The machines of a run as one of them was started.

    least, most: numbers of machines to train on. number: of this one, from 0. host, port: where the first
    machine, number 0, listens. wait: seconds that a start waits for all of them.
    """

    least: int
    most: int
    number: int
    host: str
    port: int
    wait: float

    @property
    def elastic(self) -> bool:
        """Whether the run may go on with fewer machines than it has."""
        return self.least < self.most


class Options(NamedTuple):
    """What a supervisor runs, and how.

    program: the script and its arguments. ranks: of this machine; None: what Paddle's launcher takes by
    itself.
    devices, log_dir: as the launcher takes them. machines: None on a single one.
    """

    program: list[str]
    ranks: int | None = None
    max_failures: int = 3
    devices: str | None = None
    log_dir: str | None = None
    machines: Machines | None = None


def read_options(argv: Sequence[str]) -> Options:
    """Read the arguments of plsc run. Raises UserError for what is missing or wrong."""
    values, program = split_command(argv)
    machines = _machines(values)
    ranks = None
    if (
        machines or "--nproc_per_node" in values
    ):  # machines compare their ranks, and compute the batch of a step from them
        ranks = _positive("--nproc_per_node", values.get("--nproc_per_node", "none"))
    failures = _positive("--max_failures", values.get("--max_failures", "3"))
    return Options(program, ranks, failures, values.get("--devices"), values.get("--log_dir"), machines)


def split_command(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split a command into values of options, and the script with arguments; `train` is plsc's own
    program."""
    values: dict[str, str] = {}
    words = list(argv)
    while words and words[0].startswith("-"):
        option, equals, text = words.pop(0).partition("=")
        _check_name(option)
        if not equals and words:
            text = words.pop(0)
        values[option] = text
    if not words:
        raise UserError(f"plsc run: no program to run; usage: {USAGE}")
    if words[0] == "train":
        words.insert(0, str(MAIN))
    return values, words


def _check_name(option: str) -> None:
    if option in _OPTIONS:
        return
    begun = [name for name in _OPTIONS if name.startswith(f"--{option.lstrip('-')}")]
    hint = f", did you mean '{begun[0]}'?" if begun else did_you_mean(option, _OPTIONS)
    raise UserError(
        f"plsc run: has no option {option}{hint}; its options stand before `train`, those of the training after it"
    )


def _positive(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"{name}: must be a number of 1 or more (got {text})")
    return int(text)


def _machines(values: Mapping[str, str]) -> Machines | None:
    text = values.get("--nnodes", "1")
    numbers = re.fullmatch(r"(\d{1,5})(?::(\d{1,5}))?", text, re.ASCII)
    if not numbers:
        raise UserError(
            f"--nnodes: must be a number of machines, such as 2, or a range, such as 2:4 (got {text})"
        )
    least, most = int(numbers[1]), int(numbers[2] or numbers[1])
    if not 1 <= least <= most:
        raise UserError(f"--nnodes: must be 1 or more, the smaller number first (got {text})")
    if most == 1:
        return None
    rank = values.get("--rank")
    if rank is None or not rank.isdecimal() or int(rank) >= most:
        raise UserError(
            f"--rank: with --nnodes {text} each machine needs its number, 0 to {most - 1}, and keeps it "
            f"(got {rank or 'none'})"
        )
    host, _, port = values.get("--master", "").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or "/" in host:
        raise UserError(
            f"--master: with --nnodes {text} give host:port of machine 0, such as 10.0.0.1:8090, the same on all "
            f"machines (got {values.get('--master', 'none')})"
        )
    wait = values.get("--wait", "600")
    if not re.fullmatch(r"\d{1,7}(\.\d{1,3})?", wait, re.ASCII):
        raise UserError(f"--wait: must be a number of seconds, 0 or more (got {wait})")
    return Machines(least, most, int(rank), host, int(port), float(wait))
