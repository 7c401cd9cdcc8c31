"""Launches that are killed, stopped and started again. The result must equal, bit for bit, an undisturbed
run.

A plan for tests/helpers/faults.py says what happens to whom. All launches are forks of a warm process
(tests/helpers/warm.py), except in one test, which shows that real starts have the same bits. Partial FC is
always used.
"""

import os
import re
import signal
import subprocess
import time

import pytest

from plsc.apps import restart
from plsc.checkpoint.store import newest_step
from plsc.config import load
from plsc.training import watchdog
from tests.helpers.launch import ROOT, free_port, launch, start_python
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import TINY, assert_equal_runs, checkpoint, checkpoints, rows, steps
from tests.helpers.warm import all_ended, lines, shared

TRAIN = ROOT / "tools/train.py"
SETTINGS = [
    *("Head.sample_rate=0.3", "DataLoader.Train.batch_size=6", "Global.eval_every_steps=6"),
    "Global.ema=0.9",
]
WORKERS = ["DataLoader.Train.num_workers=2"]  # the processes end with their ranks, and change no bit
KILLED = r"WARNING rank {} was killed \(signal 9\) in step {}; restarting from {}"


def training(folder, *plan, more=()):
    net = ["Model.name=tests.helpers.faults:FaultyNet", f"Model.plan={list(plan)}", f"Model.marks={folder}"]
    return [TRAIN, "-c", TINY, "-o", "Global.output_dir=out", *SETTINGS, *net, *more]


def command(folder, *plan, more=(), ranks=2):
    script, *words = training(folder, *plan, more=more)
    return [script, "--ranks", str(ranks), *words]


def test_a_run_is_overwritten_by_its_own_config(tmp_path, monkeypatch):
    (tmp_path / "checkpoints/step-00000008").mkdir(parents=True)
    (tmp_path / "checkpoints/step-00000008/manifest.json").touch()
    cfg = load(TINY, [f"Global.output_dir={tmp_path}", "Global.overwrite=true"])
    monkeypatch.setattr(restart, "_run", lambda *_: {0: 0})
    assert restart.how_to_resume(cfg.Global) == "rerun the same command without Global.overwrite to resume"
    monkeypatch.setattr(watchdog, "STOPPING", ())  # leaves this process's signals as they are
    itself = load(cfg, {"Global.init_from": str(tmp_path)})
    assert "is in the run that would be deleted" in refusal(restart.supervise, itself, [], 2)
    assert (tmp_path / "checkpoints").exists()
    assert restart.supervise(cfg, [], 2) == 0 and not (tmp_path / "checkpoints").exists()
    # The ranks read it if it was given by -c. It lists the folders of its data and modules.
    assert load(tmp_path) == load(cfg, {"Global.overwrite": False, "Global.folders": cfg.folders})


@pytest.fixture(scope="module")
def warm():
    return shared()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nothing happens to, under the plain launcher."""
    folder = tmp_path_factory.mktemp("whole").resolve()
    launch(*[TRAIN, 2, folder, *training(folder)[1:]])
    return folder / "out"


@pytest.fixture
def run(warm, tmp_path):
    """Runs plsc train on two ranks with a plan: exit code, and its own lines."""

    def run(*plan, **keywords):
        code = warm.start(command(tmp_path, *plan, **keywords), tmp_path).wait(120)
        assert all_ended(tmp_path)
        return code, lines(tmp_path)

    return run


def assert_said(said, *patterns):
    assert len(said) == len(patterns), said
    for line, pattern in zip(said, patterns):
        assert re.fullmatch(pattern, line), (line, pattern)


@pytest.mark.slow
def test_kill_and_ctrl_c_by_real_starts(warm, whole, tmp_path):
    """Start ranks as a user does, and send one signal to all processes of the terminal. The end is as with
    any other start."""
    started = command(tmp_path, "1:3:SIGKILL", "0:4:terminal SIGINT", more=WORKERS)
    with open(tmp_path / "stderr", "wb") as said:
        streams = {"stdout": subprocess.DEVNULL, "stderr": said, "start_new_session": True}
        real = start_python(*started, cwd=tmp_path, env={"OMP_NUM_THREADS": "1"}, **streams)
    assert real.wait(timeout=120) == 128 + signal.SIGINT
    assert_said(lines(tmp_path), KILLED.format(1, 3, "the beginning"))
    assert "Traceback" not in (tmp_path / "stderr").read_text()
    assert newest_step(tmp_path / "out/checkpoints") < 12
    assert warm.start(started, tmp_path).wait(120) == 0
    assert lines(tmp_path) == []
    assert_equal_runs(tmp_path / "out", whole)


def test_a_kill_restarts_from_the_newest_checkpoint(whole, run, tmp_path):
    code, said = run("1:6:SIGKILL", more=WORKERS)
    assert code == 0
    assert_said(said, KILLED.format(1, 6, "step 4"))
    assert "Traceback" not in (tmp_path / "stderr").read_text()
    assert {path.name for path in (tmp_path / "out/log").iterdir()} == {"workerlog.0", "workerlog.1"}
    assert "rank 0 failed in step 6: RuntimeError: " in (tmp_path / "out/log/workerlog.0").read_text()
    assert_equal_runs(tmp_path / "out", whole)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_kill_on_one_and_on_four_ranks(warm, tmp_path, ranks):
    for plan in ([], [f"{ranks - 1}:6:SIGKILL"]):
        folder = tmp_path / f"{len(plan)}"
        folder.mkdir()
        size = f"DataLoader.Train.batch_size={12 // ranks}"
        started = command(folder, *plan, more=[size], ranks=ranks)
        assert warm.start(started, folder).wait(120) == 0
        assert_said(lines(folder), *(KILLED.format(ranks - 1, 6, "step 4") for _ in plan))
    assert_equal_runs(tmp_path / "1/out", tmp_path / "0/out")


IN_A_SAVE = ["0:1:SIGKILL@before write_synced backbone", "1:1:SIGKILL@after write_synced head"]
IN_A_SAVE += [
    f"0:1:SIGKILL@{place}" for place in ("before rename .tmp", "after rename .tmp", "before rmtree .tmp")
]


@pytest.mark.slow
def test_a_kill_inside_a_save_leaves_the_newest_whole_checkpoint(whole, run, tmp_path):
    """A failure happens at each point in turn, from a first checkpoint on. Then the run reaches its end.
    Three failures without a newer checkpoint end it, and the same command resumes it."""
    plan = ["0:2:SIGKILL", *IN_A_SAVE]
    keep = ["Checkpoint.every_steps=1", "Checkpoint.keep=1"]
    code, said = run(*plan, more=keep)
    assert code == 1 and len(said) == 4 and newest_step(tmp_path / "out/checkpoints") == 1
    assert re.search("; 3 failures without a newer checkpoint, the logs are in out/log$", said[-1])
    code, said = run(*plan, more=keep)
    assert code == 0 and [re.search("from (.*)", line)[1] for line in said] == ["step 2", "step 3"]
    best = rows(tmp_path / "out", evaluations=True)
    assert not list((tmp_path / "out/checkpoints").glob("*.tmp")) and len(best) == 2
    assert len(checkpoints(tmp_path / "out")) <= 2  # the last one and the best one
    assert_equal_runs(tmp_path / "out", whole)


STOPS = {  # in this order, each after a start with the same command
    "0:0:supervisor SIGTERM": "while it starts",
    "0:2:supervisor SIGINT": "in a step",
    "1:1:supervisor SIGTERM@after write_synced head": "in the save of step 4",
    "0:1:supervisor SIGTERM@before score": "in the evaluation of step 6",
    "1:1:SIGTERM": "to one rank",
}


@pytest.mark.slow
def test_a_stop_saves_its_step_and_the_same_launcher_resumes(whole, run, tmp_path):
    before = 0
    for item, where in STOPS.items():
        code, said = run(*STOPS)
        step, name = newest_step(tmp_path / "out/checkpoints"), re.search("SIG[A-Z]+", item)[0]
        assert (code, said) == (128 + signal.Signals[name], []), where
        assert before < step < 12 and steps(rows(tmp_path / "out")) == list(range(1, step + 1)), where
        stopped = f"stopped on {name} at step {step}; rerun the same command to resume\n"
        assert (tmp_path / "out/train.log").read_text().count(stopped) == 1
        before = step
    assert run(*STOPS) == (0, [])
    assert_equal_runs(tmp_path / "out", whole)


def test_a_killed_supervisor_leaves_no_process(whole, run, tmp_path):
    plan = ["1:7:supervisor SIGKILL"]
    assert run(*plan) == (-signal.SIGKILL, [])
    assert run(*plan) == (0, [])
    assert_equal_runs(tmp_path / "out", whole)


@pytest.mark.slow
def test_a_full_disk_want_of_memory_and_an_error_on_one_rank(whole, run, tmp_path):
    code, said = run("1:1:full@before write_synced head", "0:6:memory", "1:3:raise")
    log = (tmp_path / "out/log/workerlog.0").read_text()
    assert re.search(
        r"ERROR out/checkpoints: checkpoint of step 4 not written.* rank 1: OSError: \[Errno 27\]", log
    )
    assert code == 0
    remedy = "lower DataLoader.Train.batch_size; restarting .*"
    memory = rf"WARNING rank 0 failed in step \d: MemoryError: .*; {remedy}"
    assert_said(
        said, memory, r"WARNING rank 1 failed in step \d: OSError: the network is down; restarting .*"
    )
    assert "raise OSError" in (tmp_path / "stderr").read_text()
    assert_equal_runs(tmp_path / "out", whole)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_bank_on_disk_is_that_in_memory_and_kills_change_nothing(warm, tmp_path, dtype):
    """Killed between two saves, and inside step 8's save while that step's update is on its way to the
    disk."""
    kills = ["1:6:SIGKILL", "0:4:SIGKILL@after write_synced head"]
    rows_in = {"host": [], "disk": ["Head.bank_folder=rows"]}
    for bank, more in rows_in.items():
        (tmp_path / bank).mkdir()
        more = [f"Head.bank={bank}", f"Head.bank_dtype={dtype}", *more]
        words = command(tmp_path / bank, *(kills if bank == "disk" else ()), more=more)
        assert warm.start(words, tmp_path / bank).wait(120) == 0 and all_ended(tmp_path / bank)
    assert [re.search("from (.*)", line)[1] for line in lines(tmp_path / "disk")] == ["step 4", "step 6"]
    host, disk = (tmp_path / bank / "out" for bank in rows_in)
    assert_equal_runs(disk, host)
    assert os.listdir(tmp_path / "disk/rows") == []
    for file in checkpoint(host).glob("*.safetensors"):
        assert (checkpoint(disk) / file.name).read_bytes() == file.read_bytes()


def test_one_process_stops_on_a_signal_and_resumes(warm, tmp_path):
    words = training(tmp_path, "0:7:SIGHUP")
    assert warm.start(words, tmp_path).wait(60) == 128 + signal.SIGHUP
    stopped = "stopped on SIGHUP at step 7; rerun the same command to resume\n"
    assert (tmp_path / "out/train.log").read_text().endswith(stopped)
    assert newest_step(tmp_path / "out/checkpoints") == 7
    assert warm.start(words, tmp_path).wait(60) == 0
    assert steps(rows(tmp_path / "out")) == list(range(1, 13))


def test_a_finished_run_is_refused_before_ranks_start_and_overwritten_once(warm, tmp_path):
    short = ["Global.max_steps=2", "DataLoader.Eval.dataset=null"]
    assert warm.start(command(tmp_path, more=short), tmp_path).wait(60) == 0
    assert warm.start(command(tmp_path, more=short), tmp_path).wait(60) == 2
    assert "Global.output_dir: out contains a finished run, step 2; " in lines(tmp_path)[0]
    (tmp_path / "out/log/mine").touch()
    more = ["Global.overwrite=true", "Checkpoint.every_steps=1", *short]
    assert warm.start(command(tmp_path, "1:2:SIGKILL", more=more), tmp_path).wait(60) == 0
    assert (tmp_path / "out/log/workerlog.0").read_text().count("plan: ranks") == 2  # none of the first run's
    assert (tmp_path / "out/log/mine").exists()
    assert re.search("restarting from step 1$", lines(tmp_path)[0])
    assert steps(rows(tmp_path / "out")) == [1, 2]


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (
            "DataLoader.Train.global_batch=116",
            "DataLoader.Train.global_batch: 116 samples per step are more",
        ),
        ("Model.recompute=[layer9]", "Model.recompute: 'layer9' is not a layer of FaultyNet, which has"),
        ("Global.amp=float16", "Global.amp: float16 is for GPUs, a CPU trains in bfloat16"),
    ],
)
def test_a_mistake_is_reported_once(warm, tmp_path, override, line):
    """With the place of the key, which a rank knows."""
    words = command(tmp_path, more=[override])
    assert warm.start(words, tmp_path, str(tmp_path / "stdout")).wait(60) == 2
    assert lines(tmp_path)[0].startswith(f"ERROR -o {override}: {line}")
    said = (tmp_path / "stderr").read_text() + (tmp_path / "stdout").read_text()
    assert said.count(" ERROR ") == said.count("\n") == 1


@pytest.mark.slow
def test_a_rank_that_does_not_answer_is_named_and_ended(run, whole, tmp_path):
    """After Gloo's 30 s."""
    code, said = run("1:3:SIGSTOP")
    assert code == 0
    assert_said(said, "WARNING rank 1 did not answer in step 3; restarting from the beginning")
    assert_equal_runs(tmp_path / "out", whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "what, said, code",
    [
        ("SIGKILL", "failed in step 4: RuntimeError: .*; the traceback", 256 - signal.SIGKILL),
        # Whichever is noticed first: it sends no beat, and the step takes too long.
        (
            "SIGSTOP",
            r"(stopped|took too long) in step 4( \(Global|: rank 1 has given no sign).*; where it waits",
            None,
        ),
    ],
)
def test_of_two_machines_started_by_hand_the_other_ends_soon_with_one_line(warm, tmp_path, what, said, code):
    """Both are this one. A rank that is stopped stays so, and its launcher waits."""
    hang, master = 4, f"127.0.0.1:{free_port()}"
    words = training(tmp_path, f"1:4:{what}", more=[f"Global.hang_seconds={hang}"])
    launches = []
    for machine in ("0", "1"):
        options = ["--nnodes", "2", "--rank", machine, "--host", "127.0.0.1", "--master", master]
        launcher = ["-m", "paddle.distributed.launch", *options, "--log_dir", f"log{machine}", *words]
        launches.append(warm.start(launcher, tmp_path, stderr=str(tmp_path / "stderr")))
    give_up = time.monotonic() + 120
    while not list(tmp_path.glob("1:4:*")):
        assert time.monotonic() < give_up, (tmp_path / "log1/workerlog.0").read_text()
        time.sleep(0.1)
    assert launches[0].wait(60) == watchdog.LOST
    (line,) = re.findall("ERROR .*", (tmp_path / "log0/workerlog.0").read_text())
    assert re.fullmatch(f"ERROR rank 0 {said} is in out/log/rank0.txt", line)
    if code is None:
        launches[1].kill()
    else:
        assert launches[1].wait(30) == code
    assert all_ended(tmp_path)
