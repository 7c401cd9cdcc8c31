"""Read the command line of plsc run: its own options, those of Paddle's launcher, and the program with its arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
_OWN = ("--max_failures", "--wait", "--nnodes", "--rank", "--master")
# The launcher's others, of Paddle 2.6 and 3.3.
_LAUNCHER = (
    *(
        "--gpus",
        "--npus",
        "--xpus",
        "--host",
        "--ips",
        "--start_port",
        "--job_id",
        "--run_mode",
        "--legacy",
        "--sort_ip",
    ),
    *(
        "--log_level",
        "--log_overwrite",
        "--enable_gpu_log",
        "--auto_parallel_config",
        "--auto_cluster_config",
    ),
    *(
        "--auto_tuner_json",
        "--servers",
        "--trainers",
        "--trainer_num",
        "--server_num",
        "--gloo_port",
        "--with_gloo",
    ),
    *("--max_restart", "--elastic_level", "--elastic_timeout"),
)
HELP = "\n".join(
    [
        f"usage: {USAGE}",
        "",
        "Train on several ranks, and restart what died. In place of `train` a script of yours may stand.",
        "",
        "options, each with its value:",
        *(f"  {option:18}{what}" for option, what in _OPTIONS.items()),
        "  others are Paddle's launcher's",
        "",
        "example: plsc run --nproc_per_node 2 train -c configs/",
        "docs/reliability.md explains it, docs/cluster.md several machines",
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
    """launcher: options of Paddle's launcher, each with its value. program: the script and its arguments.
    machines: None on a single one."""

    launcher: list[str]
    program: list[str]
    max_failures: int
    machines: Machines | None

    @property
    def ranks(self) -> int:
        """Ranks on this machine."""
        return int(value(self.launcher, "--nproc_per_node") or "1")


def read_options(argv: Sequence[str]) -> Options:
    """Read the arguments of plsc run. Raises UserError for what is missing or wrong."""
    launcher, program = split_command(argv)
    given = {name: value(launcher, name) for name in _OWN}
    launcher = without(launcher, _OWN)
    failures = _positive("--max_failures", given["--max_failures"] or "3")
    machines = _machines(given)
    ranks = value(launcher, "--nproc_per_node")
    if (
        machines or ranks is not None
    ):  # machines compare their ranks, and compute the batch of a step from them
        _positive("--nproc_per_node", ranks or "none")
    return Options(launcher, program, failures, machines)


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command into options, and the script with arguments; `train` is plsc's own program."""
    cut = 0
    while cut < len(argv) and argv[cut].startswith("-"):
        _check_name(argv[cut].partition("=")[0])
        cut += 1 if "=" in argv[cut] else 2
    options, program = list(argv[:cut]), list(argv[cut:])
    if not program:
        raise UserError(f"plsc run: no program to run; usage: {USAGE}")
    if program[0] == "train":
        program.insert(0, str(MAIN))
    return options, program


def _check_name(option: str) -> None:
    known = (*_OPTIONS, *_LAUNCHER)
    if option in known:
        return
    begun = [name for name in known if name.startswith(f"--{option.lstrip('-')}")]
    hint = f", did you mean '{begun[0]}'?" if begun else did_you_mean(option, known)
    raise UserError(
        f"plsc run: has no option {option}{hint}; its options stand before `train`, those of the training after it"
    )


def value(options: Sequence[str], name: str) -> str | None:
    """Return the value of the option `name` in `options`, as "name value" or name=value."""
    last = None
    for option, following in zip(options, [*options[1:], None]):
        if option == name:
            last = following
        elif option.startswith(f"{name}="):
            last = option.partition("=")[2]
    return last


def without(options: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return `options` without those of these names and their values."""
    kept = list(options)
    for place in reversed([i for i, option in enumerate(kept) if option.partition("=")[0] in names]):
        del kept[place : place + (1 if "=" in kept[place] else 2)]
    return kept


def _positive(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"{name}: must be a number of 1 or more (got {text})")
    return int(text)


def _machines(given: dict[str, str | None]) -> Machines | None:
    text = given["--nnodes"] or "1"
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
    rank = given["--rank"]
    if rank is None or not rank.isdecimal() or int(rank) >= most:
        raise UserError(
            f"--rank: with --nnodes {text} each machine needs its number, 0 to {most - 1}, and keeps it "
            f"(got {rank or 'none'})"
        )
    host, _, port = (given["--master"] or "").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or "/" in host:
        raise UserError(
            f"--master: with --nnodes {text} give host:port of machine 0, such as 10.0.0.1:8090, the same on all "
            f"machines (got {given['--master'] or 'none'})"
        )
    wait = given["--wait"] or "600"
    if not re.fullmatch(r"\d{1,7}(\.\d{1,3})?", wait, re.ASCII):
        raise UserError(f"--wait: must be a number of seconds, 0 or more (got {wait})")
    return Machines(least, most, int(rank), host, int(port), float(wait))
