"""Launches that are killed, stopped and started again: what is left must equal, bit for bit, a run that was
not.

What happens, and to whom, is the plan of tests/helpers/faults.py. But for the start of one test all are forks
of a warm process (tests/helpers/warm.py); that one shows that real ones have the same bits. Partial FC
throughout.
"""

import os
import random
import re
import signal

import pytest

from plsc.checkpoint.store import newest_step
from tests.helpers import soak
from tests.helpers.faults import CGROUP, LATE
from tests.helpers.launch import ROOT, launch
from tests.helpers.tiny_runs import TINY, assert_equal_runs, checkpoint, checkpoints, rows, steps
from tests.helpers.warm import all_ended, lines, shared

TRAIN, RUN = ROOT / "tools/train.py", ROOT / "tools/run.py"
SETTINGS = [
    *("Head.sample_rate=0.3", "DataLoader.Train.batch_size=6", "Global.eval_every_steps=6"),
    "Global.ema={decay: 0.9, every: 2}",
]
FAULTS = ROOT / "tests/helpers/faults.py"
SLOW = {"stopped": "1:3:SIGSTOP", "late": "1:3:late", "evaluation": "0:1:late@before score"}


def training(folder, *plan, more=()):
    net = ["Model.name=tests.helpers.faults:FaultyNet", f"Model.plan={list(plan)}", f"Model.marks={folder}"]
    return [TRAIN, "-c", TINY, "-o", "Global.output_dir=out", *SETTINGS, *net, *more]


def command(folder, *plan, options=(), more=()):
    return [RUN, "--nproc_per_node", "2", *options, *training(folder, *plan, more=more)]


@pytest.fixture(scope="module")
def warm():
    return shared()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nothing happens to, under the plain launcher."""
    folder = tmp_path_factory.mktemp("whole").resolve()
    launch(*[TRAIN, 2, folder, *training(folder)[1:]])
    return folder / "out"


@pytest.fixture(scope="module")
def slow(warm, tmp_path_factory):
    """Runs that wait for half a minute, started together and first: name -> folder, process."""
    found = {}
    for name, plan in SLOW.items():
        folder = tmp_path_factory.mktemp(name).resolve()
        found[name] = folder, warm.start(command(folder, plan), folder)
    return found


@pytest.fixture
def run(warm, tmp_path):
    """Runs plsc run on two ranks with a plan: exit code, and its own lines."""

    def run(*plan, **keywords):
        code = warm.start(command(tmp_path, *plan, **keywords), tmp_path).wait(120)
        assert all_ended(tmp_path)
        return code, lines(tmp_path)

    return run


@pytest.mark.slow
def test_kill_and_ctrl_c_by_real_starts(slow, warm, whole, tmp_path):
    """As a user starts them, with one signal to all processes of the terminal; the end is as by any other
    start."""
    train = [ROOT / "plsc/__main__.py", "train", "--ranks", "2"]
    started = [*train, *training(tmp_path, "1:3:SIGKILL", "0:4:terminal SIGINT")[1:]]
    assert soak.real(started, tmp_path).wait(timeout=120) == 128 + signal.SIGINT
    killed, stopped = lines(tmp_path)
    assert re.fullmatch(
        r"WARNING rank 1 was killed \(signal 9\) at step 3; restart 1 from the beginning", killed
    )
    step = newest_step(tmp_path / "out/checkpoints")
    assert stopped == f"INFO stopped on SIGINT at step {step}; resume with the same command" and step < 12
    assert warm.start(started, tmp_path).wait(120) == 0
    assert lines(tmp_path) == [f"INFO resuming the unfinished run from step {step}"]
    assert_equal_runs(tmp_path / "out", whole)


@pytest.mark.parametrize("ranks, rate, seed", [(2, 1.0, 1), pytest.param(4, 0.3, 2, marks=pytest.mark.slow)])
def test_kills_of_random_ranks_at_random_moments_change_nothing(
    warm, tmp_path, monkeypatch, ranks, rate, seed
):
    """Two of them. `python -m tests.helpers.soak kills 20` has more, in longer runs by real starts."""
    monkeypatch.setattr(soak, "STEPS", 24)
    expected = soak.whole(warm.start, tmp_path / "whole", ranks, rate)
    killed = soak.kill_run(warm.start, tmp_path / "killed", ranks, rate, 2, random.Random(seed))
    assert len(killed) == 2
    assert_equal_runs(tmp_path / "killed/out", expected)


IN_A_SAVE = {  # of step 1, 2, 3, ...: where, by whom, whether that step is whole
    "before write_synced backbone": (0, False),
    "before write_synced head": (1, False),
    "after write_synced head": (1, False),
    "before write_synced manifest": (0, False),
    "before rename .tmp": (0, False),
    "after rename .tmp": (0, True),
    "before rmtree .tmp": (0, True),
    "after rmtree .tmp": (0, False),  # of what the kill before it has left, so before step 4 is written
}


@pytest.mark.slow
def test_a_kill_inside_a_save_leaves_the_newest_whole_checkpoint(whole, run, tmp_path):
    """At each point in turn, from a first checkpoint on; then the run goes to its end."""
    plan = ["0:2:SIGKILL", *(f"{rank}:1:SIGKILL@{place}" for place, (rank, _) in IN_A_SAVE.items())]
    keep = ["Checkpoint.every_steps=1", "Checkpoint.keep=1"]
    code, said = run(*plan, options=["--max_failures", "20"], more=keep)
    newest, expected = 1, ["rank 0 was killed (signal 9) at step 2; restart 1 from step 1"]
    for number, (rank, whole_now) in enumerate(IN_A_SAVE.values(), start=2):
        step, newest = newest + 1, newest + whole_now
        expected.append(
            f"rank {rank} was killed (signal 9) at step {step}; restart {number} from step {newest}"
        )
    assert (code, said) == (0, [f"WARNING {line}" for line in expected])
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
    "0:2:launcher SIGTERM": "to the launcher",
    "1:1:SIGINT": "Ctrl-C to one rank",
}


@pytest.mark.slow
def test_a_stop_saves_its_step_and_the_same_command_goes_on(whole, run, tmp_path):
    before = 0
    for item, where in STOPS.items():
        code, said = run(*STOPS)
        step, name = newest_step(tmp_path / "out/checkpoints"), re.search("SIG[A-Z]+", item)[0]
        resuming = [f"INFO resuming the unfinished run from step {before}"] if before else []
        stopped = f"stopped on {name} at step {step}; resume with the same command"
        assert (code, said) == (128 + signal.Signals[name], [*resuming, f"INFO {stopped}"]), where
        assert before < step < 12 and steps(rows(tmp_path / "out")) == list(range(1, step + 1)), where
        assert stopped in (tmp_path / "out/train.log").read_text()
        before = step
    assert run(*STOPS) == (0, [f"INFO resuming the unfinished run from step {before}"])
    assert_equal_runs(tmp_path / "out", whole)


@pytest.mark.slow
def test_a_killed_launcher_and_a_killed_supervisor_leave_no_process(whole, run, tmp_path):
    plan = ["1:7:launcher SIGKILL", "0:3:supervisor SIGKILL"]
    code, said = run(*plan)
    assert code == -signal.SIGKILL
    assert said == ["WARNING the launcher was killed (signal 9); restart 1 from step 6"]
    code, said = run(*plan)
    assert (code, said) == (0, ["WARNING previous run ended without closing; resuming from step 8"])
    assert_equal_runs(tmp_path / "out", whole)


@pytest.mark.slow
def test_a_full_disk_a_dead_worker_want_of_memory_and_an_error_on_one_rank(whole, run, tmp_path):
    plan = ["1:1:full@before write_synced head", "1:5:worker", "0:2:memory", "1:3:raise"]
    code, said = run(*plan, options=["--max_failures", "9"], more=["DataLoader.Train.num_workers=1"])
    log = (tmp_path / "out/log/workerlog.0").read_text()
    full = r"ERROR out/checkpoints: checkpoint of step 4 not written, earlier ones untouched: rank 1: OSError: \[Errno 27\]"
    assert re.search(
        rf"{full} File too large.* \(need .* MB, free .* MB\); last good: none; training goes on\n", log
    )
    worker, memory, error = said
    died = r"WorkerDied: data worker 0 \(pid \d+\) was killed by SIGKILL; .*; restart 1 from "
    assert code == 0 and re.match(rf"WARNING rank 1 failed at step \d: {died}", worker)
    assert re.match(
        r"WARNING rank 0 failed at step \d: MemoryError: .*; lower DataLoader.Train.batch_size; restart 2 ",
        memory,
    )
    assert re.match(r"WARNING rank 1 failed at step \d: OSError: the network is down; restart 3 from ", error)
    assert_equal_runs(tmp_path / "out", whole)


def banked(start, folder, bank, dtype, *plan, supervised=False):
    """A run with its rows there, under the plain launcher or plsc run: its folder and process."""
    folder.mkdir()
    more = [
        f"Head.bank={bank}",
        f"Head.bank_dtype={dtype}",
        *(["Head.bank_folder=rows"] if bank == "disk" else []),
    ]
    words = command(folder, *plan, more=more)
    plain = ["-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir", "log", *words[3:]]
    return folder, start(words if supervised else plain, folder)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_bank_on_disk_is_that_in_memory_and_kills_change_nothing(warm, tmp_path, dtype):
    """Killed between two saves, and inside the save of step 8 with the update of that step on its way to the
    disk."""
    kills = ["1:6:SIGKILL", "0:4:SIGKILL@after write_synced head"]
    runs = [
        banked(warm.start, tmp_path / "host", "host", dtype),
        banked(warm.start, tmp_path / "killed", "disk", dtype, *kills, supervised=True),
    ]
    assert [(process.wait(120), all_ended(folder)) for folder, process in runs] == [(0, True)] * 2
    host, killed = (folder for folder, _ in runs)
    assert [line.split("; ")[1] for line in lines(killed)] == [
        "restart 1 from step 4",
        "restart 2 from step 6",
    ]
    assert_equal_runs(killed / "out", host / "out")
    assert os.listdir(killed / "rows") == []
    for file in checkpoint(host / "out").glob("*.safetensors"):
        assert (checkpoint(killed / "out") / file.name).read_bytes() == file.read_bytes()


IN_16_BITS = {
    "bfloat16": [
        "Global.amp={dtype: bfloat16}"
    ],  # where the processor has none the network computes in float32
    # Its network has overflows by itself; rows of the metrics hold scale and overflows, and are compared.
    "float16": [
        "Model.name=tests.helpers.faults:HalfNet",
        "Global.amp={dtype: float16}",
        "Global.log_every=1",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", IN_16_BITS)
def test_a_kill_changes_no_bit_in_16_bits(warm, tmp_path, dtype):
    kernels = {"PLSC_KERNELS": "0"} if dtype == "float16" else {}
    started = []
    for name, plan in (("whole", ()), ("killed", ("1:6:SIGKILL", "0:3:SIGKILL"))):
        folder = tmp_path / name
        folder.mkdir()
        words = command(folder, *plan, more=IN_16_BITS[dtype])
        started.append((folder, warm.start(words, folder, **kernels)))
    assert [(process.wait(120), all_ended(folder)) for folder, process in started] == [(0, True)] * 2
    whole, killed = (folder for folder, _ in started)
    assert len(lines(killed)) == 2
    assert_equal_runs(killed / "out", whole / "out")
    if dtype == "float16":
        scales = [row["loss_scale"] for row in rows(whole / "out")]
        assert 65536.0 > scales[3] >= scales[-1] > 1.0 and scales.count(scales[-1]) > 1


@pytest.fixture
def cgroup():
    """A group whose processes may have 700 MB, where this user may make one."""
    for path, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = f"{path}/plsc-test-{os.getpid()}"
        try:
            os.mkdir(group)
            with open(f"{group}/{limit}", "w") as file:
                file.write(str(700 << 20))
        except OSError:
            continue
        yield group
        os.rmdir(group)
        return
    pytest.skip("no cgroup with a limit of memory can be made here")


@pytest.mark.slow
def test_a_rank_that_the_kernel_kills_for_want_of_memory(cgroup, warm, whole, tmp_path):
    program = warm.start(command(tmp_path, "1:5:oom"), tmp_path, **{CGROUP: cgroup})
    assert program.wait(120) == 0 and all_ended(tmp_path)
    advice = "the machine is probably out of memory; lower DataLoader.Train.batch_size"
    said = f"WARNING rank 1 was killed (signal 9) at step 5: {advice}; restart 1 from step 4"
    assert lines(tmp_path) == [said]
    assert_equal_runs(tmp_path / "out", whole)


def test_one_process_stops_on_a_signal_and_resumes(warm, tmp_path):
    words = training(tmp_path, "0:7:SIGTERM")
    assert warm.start(words, tmp_path).wait(60) == 128 + signal.SIGTERM
    stopped = "stopped on SIGTERM at step 7; resume with the same command and -o Global.resume=true\n"
    assert (tmp_path / "out/train.log").read_text().endswith(stopped)
    assert newest_step(tmp_path / "out/checkpoints") == 7
    assert warm.start([*words, "Global.resume=true"], tmp_path).wait(60) == 0
    assert steps(rows(tmp_path / "out")) == list(range(1, 13))


def test_a_mistake_is_told_once(run):
    code, said = run(more=["DataLoader.Train.num_classes=22"])
    assert code == 2 and len(said) == 1
    assert re.match(
        r"ERROR rank \d failed at step 1: DataLoader.Train.num_classes: the data has 23 classes", said[0]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_half_a_minute_of_one_rank(slow, whole, name):
    """A rank that Gloo's 30 s do not wait for is named, and where it is; an evaluation on rank 0 may take as
    long as it takes."""
    folder, process = slow[name]
    assert process.wait(120) == 0 and all_ended(folder)
    said, line = lines(folder), 1 + FAULTS.read_text().splitlines().index("    time.sleep(LATE)")
    place = {"late": rf"{FAULTS}:{line}", "stopped": rf"{FAULTS}:\d+ \(the process was stopped, by SIGSTOP\)"}
    if name == "evaluation":
        assert said == [] and LATE > 30
    else:
        assert len(said) == 1 and re.fullmatch(
            rf"WARNING no progress for 3\d s: rank 1 is at step 3 in {place[name]}; restart 1 from the beginning",
            said[0],
        ), said
    assert_equal_runs(folder / "out", whole)


@pytest.mark.slow
def test_a_short_soak(warm, tmp_path):
    """`python -m tests.helpers.soak cycles 500` is the long one."""
    samples = soak.kill_again_and_again(warm, tmp_path, 8, random.Random(0))
    assert max(found["checkpoints"] for found in samples) <= soak.KEEP + 1
    for key in ("fds", "other_files"):  # not "shm", where other tests' files come and go
        assert samples[-1][key] <= max(found[key] for found in samples[:4]), key
