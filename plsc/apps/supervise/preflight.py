"""Compare the machines of a run before it starts: versions, addresses, clocks, memory, disks, config and
data.

    facts = {0: collect(cfg, ranks=8, machines=2), 1: ...}      # each machine its own; JSON between them
    print(format_table(facts))
    problems = compare(facts)                                   # a line each; none: the run may start

The majority is right; of two machines, the first. Imports no Paddle.
"""

from __future__ import annotations

import csv
import hashlib
import json
import operator
import os
import platform
import socket
import subprocess
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np

from plsc import native as kernels
from plsc.apps.supervise.facts import DataFacts, DataMistake, Facts, Row, Same, gigabytes, rows_of, text_of
from plsc.config import Config
from plsc.config.optimizer import moments_of
from plsc.data.build import build_dataset, keys_of_sets
from plsc.errors import UserError
from plsc.evaluation.sets import EvalSet, eval_set
from plsc.heads.config import rows_bytes
from plsc.utils.disk import free_bytes
from plsc.utils.memory import available_bytes
from plsc.utils.section import is_run
from plsc.utils.sharding import split
from plsc.utils.text import table
from plsc.utils.version import __version__

CLOCKS = 5.0  # seconds by which clocks may differ: more confuses who failed first, and the logs
_NAMES = 1000  # of a data set, evenly spaced, that are compared
_KEYS = 3  # of the config that a line names
_SLOW = 5.0  # seconds of reading after which a line says what is read

Fleet = Mapping[int, Facts]  # by the number of the machine
Values = Mapping[int, Any]  # of a fact

_ROWS = rows_of(Facts)

# Keys of the config that may differ: folders and resources of a machine, on which no result depends.
_OF_MACHINE = (
    *("Global.output_dir", "Global.threads", "Head.bank_folder", "Head.logits_budget_mb"),
    "DataLoader.Train.num_workers",
)

# -- this machine
# -------------------------------------------------------------------------------------------------------------


def collect(
    cfg: Config,
    *,
    ranks: int,
    machines: int,
    address: str = "",
    interface: str = "",
    say: Callable[[str], object] = lambda line: None,
) -> Facts:
    """Collect the facts of this machine.

    Args:
        ranks: of this machine. machines: of the run.
        address, interface: by which the others reach this machine.
        say: is called with a line if a data set takes long to read.
    """
    data = {key: _data_facts(cfg, key, say) for key in keys_of_sets(cfg.DataLoader)}
    needed_memory, needed_disk = _needs(cfg, data, machines)
    facts = Facts(
        host=socket.gethostname(),
        address=address,
        interface=interface,
        python=platform.python_version(),
        plsc=__version__,
        paddle=_version("paddlepaddle-gpu", "paddlepaddle"),
        numpy=np.__version__,
        kernels=kernels.describe(),
        ranks=ranks,
        processors=len(os.sched_getaffinity(0)),
        free_memory=available_bytes(),
        free_disk=free_bytes(cfg.Global.output_dir),
        config=_config_facts(cfg),
        data=data,
        needed_memory=needed_memory,
        needed_disk=needed_disk,
    )
    return with_gpus(facts, cfg)


def with_gpus(facts: Facts, cfg: Config) -> Facts:
    """Return the facts of this machine with those of its GPUs, of which one may have failed since an earlier
    start."""
    names, driver = _gpus() if cfg.Global.device != "cpu" else ([], None)
    nccl = _version("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11") if names else None
    models = ", ".join(sorted(set(names))) or None
    return facts.model_copy(update={"gpus": len(names), "gpu": models, "driver": driver, "nccl": nccl})


def _version(*packages: str) -> str | None:
    """Return name and version of the first of these packages that is installed; imports none."""
    for package in packages:
        try:
            return f"{metadata.version(package)} ({package})"
        except metadata.PackageNotFoundError:
            continue
    return None


def _gpus() -> tuple[list[str], str | None]:
    """Return the names of the visible GPUs and the version of their driver, by nvidia-smi; [], None
    without."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, check=True, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return [], None
    rows = [row for row in csv.reader(said.splitlines(), skipinitialspace=True) if len(row) == 2]
    labels = os.environ.get("CUDA_VISIBLE_DEVICES")  # which nvidia-smi does not heed
    count = (
        len(rows) if labels is None else sum(label.strip() not in ("", "-1") for label in labels.split(","))
    )
    return [name for name, _ in rows[:count]], rows[0][1] if rows else None


def _config_facts(cfg: Config) -> dict[str, Any]:
    """Return the values of the keys that must agree, without paths of data: what is there is compared."""
    sets = tuple(f"{key}." for key in keys_of_sets(cfg.DataLoader))
    values = {}
    for key, value in cfg.values().items():
        if key in _OF_MACHINE or key.startswith(sets) and isinstance(value, str) and os.path.exists(value):
            continue
        # A machine may have another run elsewhere: the last part of the path counts.
        values[key] = os.path.basename(value) if is_run(Config, key.split(".")) and value else value
    return json.loads(json.dumps(values))  # as the others' come


def _data_facts(cfg: Config, key: str, say: Callable[[str], object]) -> DataFacts | DataMistake:
    """Describe a data set: numbers of samples and classes, checksums of its labels and of some names."""
    slow = threading.Timer(_SLOW, say, [f"INFO reading {key} to compare it with the other machines' ..."])
    slow.daemon = True
    slow.start()
    try:
        data = eval_set(build_dataset(cfg.DataLoader, cfg.Global.seed, cfg.place, key))
        return DataFacts(
            samples=int(data.count),
            classes=None if data.num_classes is None else int(data.num_classes),
            labels=_checksum([array for array in data.arrays().values() if array.dtype.kind in "bi"]),
            names=_checksum([np.array(_some_names(data))]),
        )
    except UserError as error:
        return DataMistake(error=" ".join(str(error).split()))
    except Exception as error:  # noqa: BLE001 (a user's own class may raise anything: the other machines must learn of it)
        traceback.print_exc()
        return DataMistake(error=f"{key}: {type(error).__name__}: {' '.join(str(error).split())}")
    finally:
        slow.cancel()


def _some_names(data: EvalSet) -> list[str]:
    """Return names of samples, at most _NAMES, without what all have in front: a machine may have the data
    elsewhere."""
    chosen = np.linspace(0, data.count - 1, min(data.count, _NAMES)).astype(np.int64)
    names = [data.name_of(index) for index in chosen.tolist()]
    shared = len(os.path.commonprefix(names))
    return [name[shared:] for name in names]


def _checksum(arrays: Sequence[np.ndarray]) -> str:
    total = hashlib.blake2b(digest_size=6)
    for array in arrays:
        total.update(f"{array.dtype} {array.shape}".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def _needs(cfg: Config, data: Mapping[str, DataFacts | DataMistake], machines: int) -> tuple[int, int]:
    """Compute the bytes of memory and of disk that the class centres of this machine's ranks take at
    least."""
    sets = [of for key, of in data.items() if key.startswith("DataLoader.Train.")]
    classes = sum(of.classes or 0 for of in sets if isinstance(of, DataFacts))
    several = isinstance(cfg.DataLoader.Train.dataset, list)  # they may have classes in common
    if not cfg.Head.sharded or several or not classes:
        return 0, 0
    start, stop = split(classes, machines)[-1]
    arrays = 1 + moments_of(cfg.Optimizer.of_head.name)
    stored = rows_bytes(cfg.Head, arrays, stop - start, cfg.Model.embedding_size)
    in_memory = cfg.Head.bank == "host" or cfg.Head.bank == "device" and cfg.Global.device == "cpu"
    return stored if in_memory else 0, stored


# -- all machines
# -------------------------------------------------------------------------------------------------------------


def compare(facts: Fleet) -> list[str]:
    """Compare the facts of all machines, by their numbers; return a line for each problem: machine, fact and
    remedy."""
    problems = _address_problems(facts)
    for name, row in _ROWS.items():
        if row.remedy:
            problems += _differences(
                facts, {machine: getattr(of, name) for machine, of in facts.items()}, row
            )
    problems += _config_problems(facts) + _data_problems(facts)
    return problems + _clock_problems(facts) + _space_problems(facts)


def _title(facts: Fleet, machine: int) -> str:
    return f"machine {machine} ({facts[machine].host})"


def _usual(values: Values, same: Same = operator.eq) -> Any:
    """Return the value that most machines have, the first of several."""
    return max(values.values(), key=lambda value: sum(same(value, other) for other in values.values()))


def _others(facts: Fleet, values: Values, same: Same = operator.eq) -> str:
    """Say who has the usual value, and what it is."""
    usual = _usual(values, same)
    alike = [machine for machine, value in values.items() if same(value, usual)]
    who = f"{len(alike)} machines have" if len(alike) > 1 else f"{_title(facts, alike[0])} has"
    return f"{who} {text_of(usual)}"


def _differences(facts: Fleet, values: Values, row: Row) -> list[str]:
    """Format a line for each machine whose value is not the usual one."""
    usual = _usual(values, row.same)
    others = _others(facts, values, row.same)
    return [
        f"{_title(facts, machine)}: {row.title} {text_of(value)}, {others}; {row.remedy}"
        for machine, value in values.items()
        if not row.same(value, usual)
    ]


def _config_problems(facts: Fleet) -> list[str]:
    """Format a line for each machine with other values of the config, which names the first keys of them."""
    wrong: dict[int, list[str]] = {}
    for key in dict.fromkeys(key for of in facts.values() for key in of.config):
        values = {machine: of.config.get(key, "not set") for machine, of in facts.items()}
        for machine, value in values.items():
            if value != _usual(values):
                line = f"{key} is {text_of(value)}, {_others(facts, values)}"
                wrong.setdefault(machine, []).append(line)
    problems = []
    for machine, keys in sorted(wrong.items()):
        if len(keys) > _KEYS:
            keys = [*keys[:_KEYS], f"and {len(keys) - _KEYS} more keys"]
        same = "give all machines the same -c and -o"
        problems.append(f"{_title(facts, machine)}: the config differs: {'; '.join(keys)}; {same}")
    return problems


def _data_problems(facts: Fleet) -> list[str]:
    """Format a line for each machine and data set that cannot be read there, or is another than elsewhere."""
    sets: dict[str, dict[int, DataFacts]] = {}
    problems = []
    for machine, of in facts.items():
        for key, described in of.data.items():
            if isinstance(described, DataMistake):
                problems.append(f"{_title(facts, machine)}: {described.error}")
            else:
                sets.setdefault(key, {})[machine] = described
    for key, alike in sets.items():
        for name, row in rows_of(DataFacts).items():
            values = {machine: getattr(described, name) for machine, described in alike.items()}
            problems += _differences(facts, values, row._replace(title=f"{key}: {row.title}"))
            usual = _usual(values)
            alike = {machine: described for machine, described in alike.items() if values[machine] == usual}
    return problems


def _address_problems(facts: Fleet) -> list[str]:
    """Format a line for each machine that the others cannot reach by its address."""
    addresses = {machine: of.address for machine, of in facts.items() if of.address}
    reachable = {machine: text for machine, text in addresses.items() if not _is_loopback(text)}
    problems = []
    for machine, text in addresses.items():
        owners = [other for other in reachable if other != machine]
        if _is_loopback(text) and owners:
            has = f"{_title(facts, owners[0])} has {addresses[owners[0]]}"
            problems.append(
                f"{_title(facts, machine)}: address {text}, which no other machine reaches, {has}; give --master an address "
                "of machine 0 that all machines reach, or correct /etc/hosts"
            )
        same = [other for other in owners if other < machine and addresses[other] == text]
        if same and facts[same[0]].host != facts[machine].host:
            problems.append(
                f"{_title(facts, machine)}: address {text}, which {_title(facts, same[0])} has too; give each machine its own"
            )
    return problems


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("::1", "localhost")


def _clock_problems(facts: Fleet) -> list[str]:
    """Format a line for each machine whose clock is off."""
    ahead = {machine: of.clock_offset for machine, of in facts.items()}
    usual = _usual(ahead, lambda first, second: abs(first - second) <= CLOCKS)
    return [
        f"{_title(facts, machine)}: clock {abs(offset - usual):.0f} s {'ahead of' if offset > usual else 'behind'} the others', "
        f"at most {CLOCKS:g} s are allowed; synchronise the clocks by NTP (chronyd, systemd-timesyncd)"
        for machine, offset in ahead.items()
        if abs(offset - usual) > CLOCKS
    ]


def _space_problems(facts: Fleet) -> list[str]:
    """Format a line for each machine whose memory or disk cannot hold its class centres."""
    problems = []
    for machine, of in facts.items():
        for kind, free, needed, remedy in (
            ("memory", of.free_memory, of.needed_memory, "take more machines, or Head.bank=disk"),
            ("disk", of.free_disk, of.needed_disk, "free some, or set Global.output_dir"),
        ):
            if needed > free:
                what = f"free {kind} {gigabytes(free)}, its class centres take {gigabytes(needed)}"
                problems.append(f"{_title(facts, machine)}: {what}; {remedy}")
    return problems


def format_table(facts: Fleet) -> str:
    """Format the facts as a table: a row for each, a column for each machine; * marks what differs."""
    keys = dict.fromkeys(key for of in facts.values() for key in of.data)
    rows = [(row, [getattr(of, name) for of in facts.values()]) for name, row in _ROWS.items()]
    rows += [(Row(key, text=_describe), [of.data.get(key) for of in facts.values()]) for key in keys]
    cells = []
    for row, values in rows:
        usual = _usual(dict(zip(facts, values)), row.same)
        marks = ["" if row.same(value, usual) else " *" for value in values]
        cells.append([row.title, *(row.text(value) + mark for value, mark in zip(values, marks))])
    return table(cells, ["", *(f"machine {machine}" for machine in facts)])


def _describe(data: DataFacts | DataMistake | None) -> str:
    if not isinstance(data, DataFacts):
        return "none" if data is None else "cannot be read"
    classes = "" if data.classes is None else f" of {data.classes:,} classes"
    return f"{data.samples:,}{classes}, {data.labels} {data.names}"
