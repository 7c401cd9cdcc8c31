"""Compare the machines of a run before it starts: versions, addresses, clocks, memory, disks, config and data.

    facts = {0: collect(cfg, ranks=8, machines=2), 1: ...}      # each machine its own; JSON between them
    print(format_table(facts))
    problems = compare(facts)                                   # a line each; none: the run may start

The majority is right; of two machines, the first. Imports no Paddle.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import platform
import re
import socket
import subprocess
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np

from plsc import native as kernels
from plsc.config import Config
from plsc.config.optimizer import moments_of
from plsc.data.build import build_dataset, keys_of_sets
from plsc.errors import UserError, shown
from plsc.evaluation.sets import EvalSet, eval_set
from plsc.heads.config import rows_bytes
from plsc.utils.disk import free_bytes
from plsc.utils.memory import available_bytes
from plsc.utils.sharding import split
from plsc.utils.text import table
from plsc.utils.version import __version__
from plsc.utils.yaml_lines import dump

Facts = dict[str, Any]  # of a machine; only what JSON has

CLOCKS = 5.0  # seconds by which clocks may differ: more confuses who failed first, and the logs
_NAMES = 1000  # of a data set, evenly spaced, that are compared
_KEYS = 3  # of the config that a line names
_SLOW = 5.0  # seconds of reading after which a line says what is read

# Fact -> what to do if a machine has another than most. Of some versions the first two numbers count, see `_comparison_of`.
_EQUAL = {
    "Python": "use the same minor version on all machines",
    "plsc": "install the same version on all machines",
    "Paddle": "install the same version on all machines",
    "numpy": "install the same minor version on all machines: others draw other random numbers",
    "kernels": "build them alike on all machines (python setup.py build_ext --inplace), or set PLSC_KERNELS=0 on all",
    "driver": "install the same driver on all machines",
    "NCCL": "install the same version on all machines",
    "GPUs": "a GPU may have failed (nvidia-smi); leave the machine out, or set CUDA_VISIBLE_DEVICES",
    "ranks": "give the same --nproc_per_node on all machines",
}
# The model of the GPUs may differ, which the table marks: the slowest sets the pace.
_OWN = ("host", "address", "interface", "processors", "free memory", "free disk", "clock")  # of each machine

# Keys of the config that may differ: folders and resources of a machine, on which no result depends.
_OF_MACHINE = (
    *("Global.output_dir", "Global.threads", "Head.bank_folder", "Head.logits_budget_mb"),
    "DataLoader.Train.num_workers",
)
# Folders that a machine may have elsewhere: the last part of the path counts.
_FOLDERS = ("Global.init_from", "Global.compatible_with", "Teacher.checkpoint", "Global.checkpoint")

# -- this machine -------------------------------------------------------------------------------------------------------------


def collect(
    cfg: Config,
    *,
    ranks: int,
    machines: int,
    address: str = "",
    interface: str = "",
    earlier: Facts | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> Facts:
    """Collect the facts of this machine; what it has not, such as a GPU, is None.

    Args:
        ranks: of this machine. machines: of the run.
        address, interface: by which the others reach this machine.
        earlier: facts of an earlier start by the same config; the data are not read again, nor free memory and
            disk: ranks that were just ended may hold some yet.
        say: is called with a line if a data set takes long to read.
    """
    gpus, driver = _gpus() if cfg.Global.device != "cpu" else ([], None)
    space = {"free memory": available_bytes(), "free disk": free_bytes(cfg.Global.output_dir)}
    facts = {
        "host": socket.gethostname(),
        "address": address,
        "interface": interface,
        "Python": platform.python_version(),
        "plsc": __version__,
        "Paddle": _version("paddlepaddle-gpu", "paddlepaddle"),
        "numpy": np.__version__,
        "kernels": kernels.describe(),
        "driver": driver,
        "NCCL": _version("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11") if gpus else None,
        "GPUs": len(gpus),
        "GPU": ", ".join(sorted(set(gpus))) or None,
        "ranks": ranks,
        "processors": len(os.sched_getaffinity(0)),
        **{kind: earlier[kind] if earlier else free for kind, free in space.items()},
    }
    data = (
        earlier["data"]
        if earlier
        else {key: _data_facts(cfg, key, say) for key in keys_of_sets(cfg.DataLoader)}
    )
    return {**facts, "config": _config_facts(cfg), "data": data, **_needs(cfg, data, ranks, machines)}


def _version(*packages: str) -> str | None:
    """Return name and version of the first of these packages that is installed; imports none."""
    for package in packages:
        try:
            return f"{metadata.version(package)} ({package})"
        except metadata.PackageNotFoundError:
            continue
    return None


def _gpus() -> tuple[list[str], str | None]:
    """Return the names of the visible GPUs and the version of their driver, by nvidia-smi; [], None without."""
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
        values[key] = os.path.basename(value) if key in _FOLDERS and value else value
    return json.loads(json.dumps(values))  # as the others' come


def _data_facts(cfg: Config, key: str, say: Callable[[str], object]) -> dict[str, Any]:
    """Describe a data set: numbers of samples and classes, checksums of its labels and of some names."""
    slow = threading.Timer(_SLOW, say, [f"INFO reading {key} to compare it with the other machines' ..."])
    slow.daemon = True
    slow.start()
    try:
        data = eval_set(build_dataset(cfg.DataLoader, cfg.Global.seed, cfg.place, key))
        return {
            "samples": int(data.count),
            "classes": None if data.num_classes is None else int(data.num_classes),
            "labels": _checksum([array for array in data.arrays().values() if array.dtype.kind in "bi"]),
            "names": _checksum([np.array(_some_names(data))]),
        }
    except UserError as error:
        return {"error": " ".join(str(error).split())}
    except Exception as error:  # noqa: BLE001 (a user's own class may raise anything: the other machines must learn of it)
        traceback.print_exc()
        return {"error": f"{key}: {type(error).__name__}: {' '.join(str(error).split())}"}
    finally:
        slow.cancel()


def _some_names(data: EvalSet) -> list[str]:
    """Return names of samples, at most _NAMES, without what all have in front: a machine may have the data elsewhere."""
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


def _needs(cfg: Config, data: Mapping[str, Any], ranks: int, machines: int) -> dict[str, int]:
    """Compute what the class centres of this machine's ranks take at least; {} where that is not known."""
    classes = sum(of.get("classes") or 0 for key, of in data.items() if key.startswith("DataLoader.Train."))
    several = isinstance(cfg.DataLoader.Train.dataset, list)  # they may have classes in common
    if not cfg.Head.sharded or several or not classes:
        return {}
    start, stop = split(classes, machines)[-1]
    arrays = 1 + moments_of(cfg.Optimizer.of_head.name)
    stored = rows_bytes(cfg.Head, arrays, stop - start, cfg.Model.embedding_size)
    in_memory = cfg.Head.bank == "host" or cfg.Head.bank == "device" and cfg.Global.device == "cpu"
    return {"needed memory": stored if in_memory else 0, "needed disk": stored}


# -- all machines -------------------------------------------------------------------------------------------------------------


def compare(facts: Mapping[int, Facts]) -> list[str]:
    """Compare the facts of all machines; return a line for each problem, which names machine, fact and remedy.

    Args:
        facts: of each machine by its number, as `collect` returns them. "clock_offset", where it is there: the
            seconds by which the machine's clock is ahead, as the receiver of its facts has computed them.
    """
    problems = []
    for fact, remedy in _EQUAL.items():
        values = {machine: of.get(fact) for machine, of in facts.items()}
        problems += _differences(facts, values, fact, remedy)
    return [
        *_address_problems(facts),
        *problems,
        *_config_problems(facts),
        *_data_problems(facts),
        *_clock_problems(facts),
        *_space_problems(facts),
    ]


def _usual(values: Mapping[int, Any], same: Callable[[Any, Any], bool]) -> int:
    """Return the first machine whose value most machines have."""
    return max(values, key=lambda machine: sum(same(values[machine], other) for other in values.values()))


def _same(first: Any, second: Any) -> bool:
    return first == second


def _comparison_of(fact: str) -> Callable[[Any, Any], bool]:
    """Return how values of a fact are compared: of Python's and numpy's versions by their first two numbers."""
    if fact not in ("Python", "numpy"):
        return _same
    return lambda first, second: _minor(first) == _minor(second)


def _minor(version: object) -> list[str]:
    return re.findall(r"\d+", str(version))[:2]


def _differences(facts: Mapping[int, Facts], values: Mapping[int, Any], fact: str, remedy: str) -> list[str]:
    """Format a line for each machine whose value is not the usual one."""
    same = _comparison_of(fact)
    usual = _usual(values, same)
    return [
        f"{_title(facts, machine)}: {fact} {_text(value)}, {_others(facts, values, usual, same)}; {remedy}"
        for machine, value in values.items()
        if not same(value, values[usual])
    ]


def _title(facts: Mapping[int, Facts], machine: int) -> str:
    return f"machine {machine} ({shown(facts[machine].get('host'))})"


def _others(
    facts: Mapping[int, Facts], values: Mapping[int, Any], usual: int, same: Callable[[Any, Any], bool]
) -> str:
    """Say who has the usual value, and what it is."""
    count = sum(same(value, values[usual]) for value in values.values())
    who = f"{count} machines have" if count > 1 else f"{_title(facts, usual)} has"
    return f"{who} {_text(values[usual])}"


def _text(value: object) -> str:
    return "none" if value is None else shown(value if isinstance(value, str) else dump(value))


def _config_problems(facts: Mapping[int, Facts]) -> list[str]:
    """Format a line for each machine with other values of the config, which names the first keys of them."""
    configs = {machine: of["config"] for machine, of in facts.items() if "config" in of}
    wrong: dict[int, list[str]] = {}
    for key in dict.fromkeys(key for config in configs.values() for key in config):
        values = {machine: config.get(key, "not set") for machine, config in configs.items()}
        usual = _usual(values, _same)
        for machine, value in values.items():
            if value != values[usual]:
                other = _others(facts, values, usual, _same)
                wrong.setdefault(machine, []).append(f"{shown(key)} is {_text(value)}, {other}")
    return [
        f"{_title(facts, machine)}: the config differs: {'; '.join(keys[:_KEYS])}"
        + f"; and {len(keys) - _KEYS} more keys" * (len(keys) > _KEYS)
        + "; give all machines the same -c and -o"
        for machine, keys in sorted(wrong.items())
    ]


def _data_problems(facts: Mapping[int, Facts]) -> list[str]:
    """Format a line for each machine and data set that cannot be read there, or is another than elsewhere."""
    sets: dict[str, dict[int, dict[str, Any]]] = {}
    problems = []
    for machine, of in facts.items():
        for key, described in of.get("data", {}).items():
            if "error" in described:
                problems.append(f"{_title(facts, machine)}: {shown(described['error'])}")
            else:
                sets.setdefault(key, {})[machine] = described
    for key, described in sets.items():
        for part, what in (
            ("samples", "number of samples"),
            ("classes", "number of classes"),
            ("labels", "labels, checksum"),
            ("names", "names of the samples, checksum"),
        ):
            values = {machine: of.get(part) for machine, of in described.items()}
            lines = _differences(facts, values, f"{shown(key)}: {what}", "give all machines the same data")
            problems += lines
            usual = values[_usual(values, _same)] if values else None
            described = {machine: of for machine, of in described.items() if of.get(part) == usual}
    return problems


def _address_problems(facts: Mapping[int, Facts]) -> list[str]:
    """Format a line for each machine that the others cannot reach by its address."""
    addresses = {machine: of["address"] for machine, of in facts.items() if of.get("address")}
    reachable = {machine: text for machine, text in addresses.items() if not _is_loopback(text)}
    problems = []
    for machine, text in addresses.items():
        owners = [other for other in reachable if other != machine]
        if _is_loopback(text) and owners:
            has = f"{_title(facts, owners[0])} has {shown(addresses[owners[0]])}"
            problems.append(
                f"{_title(facts, machine)}: address {shown(text)}, which no other machine reaches, {has}; give --master an address "
                "of machine 0 that all machines reach, or correct /etc/hosts"
            )
        same = [other for other in owners if other < machine and addresses[other] == text]
        if same and facts[same[0]].get("host") != facts[machine].get("host"):
            problems.append(
                f"{_title(facts, machine)}: address {shown(text)}, which {_title(facts, same[0])} has too; give each machine its own"
            )
    return problems


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("::1", "localhost")


def _clock_problems(facts: Mapping[int, Facts]) -> list[str]:
    """Format a line for each machine whose clock is off."""
    ahead = {machine: of["clock_offset"] for machine, of in facts.items() if "clock_offset" in of}
    if not ahead:
        return []
    usual = ahead[_usual(ahead, lambda first, second: abs(first - second) <= CLOCKS)]
    return [
        f"{_title(facts, machine)}: clock {abs(offset - usual):.0f} s {'ahead of' if offset > usual else 'behind'} the others', "
        f"at most {CLOCKS:g} s are allowed; synchronise the clocks by NTP (chronyd, systemd-timesyncd)"
        for machine, offset in ahead.items()
        if abs(offset - usual) > CLOCKS
    ]


def _space_problems(facts: Mapping[int, Facts]) -> list[str]:
    """Format a line for each machine whose memory or disk cannot hold its class centres."""
    remedies = {
        "memory": "take more machines, or Head.bank=disk",
        "disk": "free some, or set Global.output_dir",
    }
    problems = []
    for machine, of in facts.items():
        for kind, remedy in remedies.items():
            needed, free = of.get(f"needed {kind}", 0), of.get(f"free {kind}", 0)
            if needed > free:
                what = f"free {kind} {_gigabytes(free)}, its class centres take {_gigabytes(needed)}"
                problems.append(f"{_title(facts, machine)}: {what}; {remedy}")
    return problems


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.3g} GB"


def format_table(facts: Mapping[int, Facts]) -> str:
    """Format the facts as a table: a row for each, a column for each machine; * marks what differs."""
    order = ("host", "address", "interface", *_EQUAL, "GPU", "processors")
    rows = {fact: {machine: of.get(fact) for machine, of in facts.items()} for fact in order}
    for fact in ("free memory", "free disk"):
        rows[fact] = {machine: _gigabytes(of.get(fact, 0)) for machine, of in facts.items()}
    rows["clock"] = {
        machine: f"{round(of.get('clock_offset', 0.0), 1) + 0.0:+.1f} s" for machine, of in facts.items()
    }
    rows["config"] = {machine: _short(of.get("config")) for machine, of in facts.items()}
    for key in dict.fromkeys(key for of in facts.values() for key in of.get("data", {})):
        rows[key] = {machine: _describe(of.get("data", {}).get(key)) for machine, of in facts.items()}
    cells = []
    for fact, values in rows.items():
        same = _comparison_of(fact)
        usual = values[_usual(values, same)]
        marked = [fact not in _OWN and not same(value, usual) for value in values.values()]
        texts = [_text(value) + " *" * mark for value, mark in zip(values.values(), marked)]
        cells.append([shown(fact), *texts])
    return table(cells, ["", *(f"machine {machine}" for machine in facts)])


def _short(values: object) -> str | None:
    return None if values is None else hashlib.blake2b(json.dumps(values).encode(), digest_size=4).hexdigest()


def _describe(data: Mapping[str, Any] | None) -> str | None:
    """Describe a data set in a cell."""
    if data is None or "error" in data:
        return data and "cannot be read"
    classes = "" if data.get("classes") is None else f" of {data['classes']:,} classes"
    return f"{data.get('samples'):,}{classes}, {data.get('labels')} {data.get('names')}"
