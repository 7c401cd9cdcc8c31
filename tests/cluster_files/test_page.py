"""The commands in docs/cluster.md, read as plsc run reads them, or started with stand-ins."""

import shlex

import pytest

from tests.cluster_files.stand_ins import calls, examples, put_stand_ins, read_command, run
from tests.helpers.launch import ROOT

PAGE = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")
TYPED = examples(PAGE, "plsc run")
STARTED = examples(PAGE, "tools/cluster/ssh.sh") + examples(PAGE, "sbatch")


@pytest.mark.parametrize("command", TYPED)
def test_plsc_run_accepts_the_commands_that_are_typed(command):
    assert len(TYPED) == 3
    options, _ = read_command(shlex.split(command)[2:])
    assert options.machines and options.ranks == 8


@pytest.mark.parametrize("command, machines", list(zip(STARTED, [2, 4])))
def test_the_scripts_start_plsc_run_on_each_machine(tmp_path, command, machines):
    assert len(STARTED) == 2
    env = put_stand_ins(tmp_path / "programs", FOLDER=str(tmp_path))
    assert run(command, env).returncode == 0
    numbers = [read_command(call["argv"])[0].machines[1:3] for call in calls(env)]
    assert numbers == [(machines, number) for number in range(machines)]
