"""The files of tools/cluster: the stand-ins for a cluster's programs, and what plsc run makes of the commands
in the files."""

import argparse
import json
import os
import re
import subprocess
from pathlib import Path

from plsc import config
from plsc.apps.supervise.options import Options, read_options
from tests.helpers.launch import ROOT

FOLDER = ROOT / "tools/cluster"

# Each notes what it was called with, and does its program's work on this machine.
STAND_INS = {
    "plsc": """#!/usr/bin/env python3
import json, os, signal, sys, time
signals = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: signals.append(number))
with open(os.environ["CALLS"], "a") as file:
    file.write(json.dumps({"argv": sys.argv[2:], "folder": os.getcwd(), "env": dict(os.environ)}) + "\\n")
print("step 1", flush=True)
end = time.monotonic() + float(os.environ.get("SECONDS_TO_RUN", "0"))
while time.monotonic() < end and not signals:
    time.sleep(0.02)
print("stopped" if signals else "done", flush=True)
sys.exit(128 + signals[0] if signals else int(os.environ.get("CODE", "0")))
""",
    "ssh": """#!/usr/bin/env bash
while [[ $1 == -o ]]; do shift 2; done
[[ $1 != unreachable ]] || exit 255
exec sh -c "${*:2}"
""",
    "scontrol": """#!/usr/bin/env bash
if [[ $1 == show ]]; then printf 'node%s\\n' 0 1 2 3; else echo "scontrol $*"; fi
""",
    "srun": """#!/usr/bin/env bash
while [[ $1 == -* ]]; do
    case $1 in
    --kill-on-bad-exit=0 | --no-kill | --wait=0 | --cpus-per-task=* | --label) shift ;;
    *) echo "srun: unrecognized option $1" >&2; exit 1 ;;
    esac
done
worst=0
for ((node = 0; node < SLURM_NNODES; node++)); do
    SLURM_NODEID=$node "$@" || worst=$?
done
exit "$worst"
""",
    "sbatch": """#!/usr/bin/env bash
export SLURM_JOB_ID=7 SLURM_JOB_NODELIST='node[0-3]' SLURM_NNODES=2 SLURM_CPUS_PER_TASK=4
while [[ $1 == -* ]]; do
    case $1 in
    --nodes) SLURM_NNODES=$2; shift 2 ;;
    *) shift ;;
    esac
done
exec bash "$@"
""",
}


def put_stand_ins(folder: Path, **env: str) -> dict:
    """Write the stand-ins to `folder`; return the environment in which they are found, with `env`."""
    folder.mkdir()
    for name, text in STAND_INS.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "CALLS": str(folder / "calls"), **env}


def calls(env: dict) -> list[dict]:
    """What plsc run was called with, in the order of --rank."""
    noted = [json.loads(line) for line in Path(env["CALLS"]).read_text().splitlines()]
    return sorted(noted, key=lambda call: call["argv"][call["argv"].index("--rank") + 1])


def run(command: str, env: dict) -> subprocess.CompletedProcess:
    """Run a command as a user types it in the clone."""
    return subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False
    )


def examples(text: str, program: str) -> list[str]:
    """The commands in indented lines of `text` that call `program`, with variables before it or without."""
    return re.findall(rf"^(?:#  )?   +((?:\w+=\S+ )*{program} .*)$", text, re.MULTILINE)


def read_command(argv: list[str]) -> tuple[Options, config.Config]:
    """What plsc run reads from its arguments, and the config; fails where it would refuse them."""
    options = read_options(argv)
    script, *rest = options.program
    assert (Path(script).name, rest.pop(0)) == ("__main__.py", "train")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    config.add_arguments(parser)
    given = parser.parse_args(rest)
    cfg = config.load(ROOT / given.config, given.override)
    assert options.machines.elastic or cfg.DataLoader.Train.global_batch in (None, batch_of(options, cfg))
    return options, cfg


def batch_of(options: Options, cfg: config.Config) -> int:
    """The samples that the ranks of all machines take in a step."""
    train = cfg.DataLoader.Train
    return train.batch_size * train.accumulate * options.ranks * options.machines.most
