"""plsc run around programs that die, hang, err and are stopped; with a stand-in for Paddle's launcher, so no
Paddle."""

import json
import os
import re
import signal
import socket
import time

import pytest

from plsc.apps.supervise.options import read_options, split_command
from plsc.apps.supervise.postmortem import Watch
from plsc.apps.supervise.supervisor import Supervisor, main
from plsc.checkpoint.store import newest_step
from plsc.distributed import launcher
from plsc.distributed.lock import hold
from plsc.errors import UserError
from tests.helpers.fake_launch import supervise, write
from tests.helpers.warm import all_ended

pytestmark = pytest.mark.slow

COMMAND = ["--nproc_per_node", "2", "program.py", "-o", "Global.output_dir=out"]


@pytest.fixture
def folder(tmp_path):
    write(tmp_path)
    return tmp_path


def ended(process, timeout=60):
    """Exit code, and the lines that plsc run said, without the time."""
    _, said = process.communicate(timeout=timeout)
    lines = [re.sub(r"^[-\d]+ [:\d]+ ", "", line) for line in said.splitlines()]
    return process.returncode, [line for line in lines if re.match("INFO|WARNING|ERROR", line)]


def starts(folder, rank=0):
    lines = (folder / "starts").read_text().splitlines()
    return [line for line in lines if line.startswith(str(rank))]


def test_a_run_that_ends_well_is_left_alone(folder):
    process = supervise(folder)
    assert ended(process) == (0, []) and len(starts(folder)) == len(starts(folder, 1)) == 1
    assert "Global.resume" not in starts(folder)[0] and newest_step(folder / "out/checkpoints") == 6
    assert not list((folder / "out/errors").glob("*.alive"))
    logs = sorted(path.name for path in (folder / "out/log").iterdir())
    assert logs == ["launcher.log", "workerlog.0"]  # no file a start


@pytest.mark.parametrize("log, shown", [("cut", "\n"), ("whole\n", ""), ("", "")])
def test_a_line_that_a_full_disk_has_cut_is_ended(tmp_path, capsys, log, shown):
    """The launcher shows the first rank's log, and then plsc run says its own lines."""
    (tmp_path / "workerlog.0").write_text(log)
    launcher.finish_line(tmp_path)
    launcher.finish_line(tmp_path / "none")
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_named_and_the_run_goes_on_from_the_newest_checkpoint(folder, rank):
    """With the command that can be run again, and without the secret of the machines, in the ranks'
    environment."""
    process = supervise(folder, FAULT=f"{rank}:4:kill", PLSC_RUN_SECRET="sixteen letters.", OTHER="as it is")
    code, said = ended(process)
    assert code == 0
    assert said == [f"WARNING rank {rank} was killed (signal 9) at step 4; restart 1 from step 2"]
    assert len(starts(folder)) == 2
    assert starts(folder)[1].endswith("-o Global.resume=true Global.checkpoint=newest")
    assert all_ended(folder)
    environment = (folder / "out/log/workerlog.0").read_text()  # which the stand-in writes there
    assert "as it is" in environment and "sixteen letters." not in environment
    command = re.search(r"'PLSC_COMMAND': '(.*?)'", environment)[1]
    assert command.endswith("--nproc_per_node 2 program.py -o Global.output_dir=out")


@pytest.mark.parametrize(
    "fault, env, line",
    [
        ("1:4:segv", {}, r"rank 1 crashed at step 4 \(Segmentation fault\) in .*program.py:\d+; restart 1 "),
        ("1:3:defect", {}, "rank 1 failed at step 3: RuntimeError: a defect; restart 1 from step 2"),
        ("0:4:launcher", {}, r"the launcher was killed \(signal 9\); restart 1 from step 2"),
        # By the watchdogs, its own and that of its peer, whichever is first; and by the peer, which gives up
        # before.
        ("1:4:hang", {"HANG": "0.5"}, r"no progress for \d s: rank 1 is at step 4 in .*program.py:\d+; "),
        (
            "0:4:hang",
            {},
            r"no progress for \d s: rank 0 is at step 4 in .*program.py:\d+; restart 1 from step 2",
        ),
    ],
)
def test_who_failed_first_and_why(folder, fault, env, line):
    process = supervise(folder, FAULT=fault, **env)
    code, said = ended(process)
    assert code == 0 and len(said) == 1
    assert re.match(f"WARNING {line}", said[0]), said
    assert all_ended(folder)


@pytest.mark.parametrize(
    "fault, said",
    [
        ("1:3:mistake", "labels.txt:17: label 1000"),  # rank 0 lost its peer: the launcher's code is 1
        ("all:start:exit", "the ranks ended with exit code 2 before the training began, see out/log"),
    ],
)
def test_a_mistake_of_the_user_is_not_restarted(folder, fault, said):
    code, lines = ended(supervise(folder, FAULT=fault, OFTEN="1"))
    assert code == 2 and len(starts(folder)) == 1
    (line,) = lines
    assert said in line and line.endswith("not restarted, the logs are in out/log")


def test_it_gives_up_after_failures_without_a_new_checkpoint(folder):
    code, said = ended(supervise(folder, "--max_failures", "2", FAULT="1:4:kill", OFTEN="1"))
    assert (
        code == 1 and len(starts(folder)) == 3
    )  # the first death came after a new checkpoint, the second did not
    assert said[-1] == (
        "ERROR rank 1 was killed (signal 9) at step 4; giving up after 2 failures without a new checkpoint, "
        "the logs are in out/log"
    )


def test_a_signal_is_passed_on_and_the_same_command_resumes(folder):
    code, (said,) = ended(supervise(folder, FAULT="1:3:supervisor"))
    assert code == 128 + signal.SIGTERM
    step = newest_step(folder / "out/checkpoints")
    assert step < 6 and said == f"INFO stopped on SIGTERM at step {step}; resume with the same command"
    code, (said,) = ended(supervise(folder))
    assert code == 0 and said == f"INFO resuming the unfinished run from step {step}"
    assert newest_step(folder / "out/checkpoints") == 6


def test_a_finished_run_is_not_resumed_nor_is_one_against_the_users_word(folder, monkeypatch):
    (folder / "out/checkpoints/step-00000006").mkdir(parents=True)
    (folder / "out/checkpoints/step-00000006/manifest.json").touch()
    (folder / "out/results.json").write_text('{"step": 6}')
    assert ended(supervise(folder)) == (0, [])
    (folder / "out/results.json").unlink()
    assert ended(supervise(folder, overrides=["Global.resume=false"])) == (0, [])
    assert not any("Global.resume=true" in line for line in starts(folder)) and len(starts(folder)) == 2
    monkeypatch.chdir(folder)
    job = Supervisor(read_options(COMMAND))._job
    for results, unfinished in (('{"step": 6}', False), ('{"step": 4}', True), ("[]", True), ("{", True)):
        (folder / "out/results.json").write_text(results)
        assert job.is_unfinished(6) is unfinished and not job.is_unfinished(None)


def test_what_a_rank_has_left_forges_no_line_of_the_log(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    (folder / "out").mkdir()
    (folder / "out/train.log").touch()
    supervisor = Supervisor(read_options(COMMAND))
    supervisor._job.say("WARNING rank 0 failed: x\n2026-01-01 00:00:00 INFO all is well\x1b[2J")
    for said in ((folder / "out/train.log").read_text(), capsys.readouterr().err):
        assert said.count("\n") == 1 and "\x1b" not in said and "all is well" in said


def test_a_signal_that_was_ignored_stays_ignored(folder):
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = supervise(folder)
    finally:
        signal.signal(signal.SIGHUP, before)
    while not (folder / "starts").exists():
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGHUP)
    assert ended(process) == (0, []) and newest_step(folder / "out/checkpoints") == 6


def test_the_launcher_imports_nothing_from_the_working_folder_and_its_words_go_to_its_log(folder):
    (folder / "beside.py").touch()
    starter = folder / "fake/paddle/distributed/launch/__main__.py"
    look = "import importlib.util, sys\nprint('found', importlib.util.find_spec('beside'), file=sys.stderr)\n"
    starter.write_text(look + starter.read_text())
    process = supervise(folder)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")
    assert (folder / "out/log/launcher.log").read_text() == "found None\n"


def test_what_keeps_the_launcher_from_starting_is_shown(folder):
    starter = folder / "fake/paddle/distributed/launch/__main__.py"
    starter.write_text("import sys\nsys.exit('LAUNCH INFO as ever\\nno such option')")
    process = supervise(folder, "--max_failures", "1")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1 and said.startswith("no such option\n") and "as ever" not in said


@pytest.mark.parametrize("known", [True, False])
def test_a_full_disk_is_named_and_waited_for(folder, monkeypatch, known):
    """A rank that cannot write why it ends has said nothing."""
    monkeypatch.chdir(folder)
    supervisor = Supervisor(read_options(COMMAND))
    pauses, said = [], []
    record = {"time": 1.0, "host": socket.gethostname(), "step": 3, "type": "OSError", "user": False}

    class Start:
        """Of a launcher whose rank has failed."""

        code = 1

        def __init__(self, *_):
            self.watch = Watch(folder / "out/errors")
            write_record()

        def failure(self):
            failed = self.watch.failure(1, "out/log")
            return failed if failed.rank is not None else supervisor._job.explain_full_disk()

    def write_record():
        (folder / "out/errors").mkdir(parents=True, exist_ok=True)
        text = json.dumps({**record, "message": "[Errno 28] No space left on device"}) if known else ""
        (folder / "out/errors/rank0.json").write_text(text)

    monkeypatch.setattr(supervisor, "_start", Start)
    monkeypatch.setattr(supervisor, "_pause", pauses.append)
    monkeypatch.setattr(supervisor._job, "say", said.append)
    if not known:
        monkeypatch.setattr("plsc.utils.disk.free_bytes", lambda folder: 4096)
    assert supervisor._run() == 1 and pauses == [60, 120]
    why = (
        r"rank 0 failed at step 4: OSError: \[Errno 28\] No space"
        if known
        else r"the disk of out is full \(4,096"
    )
    assert len(said) == 3 and all(re.match(rf"(WARNING|ERROR) {why}", line) for line in said), said


@pytest.mark.parametrize("overrides", [[], ["Global.resume=false"]])
def test_a_new_run_that_dies_while_it_starts_does_not_go_on_from_an_older_one(folder, overrides):
    old = folder / "out/checkpoints/step-00000009"
    old.mkdir(parents=True)
    (old / "manifest.json").touch()
    (folder / "out/results.json").write_text('{"step": 9}')
    code, (said,) = ended(supervise(folder, FAULT="all:start:kill", overrides=overrides))
    assert code == 0 and said.endswith("; restart 1 from the beginning")
    assert len(starts(folder)) == 2 and not any("Global.resume=true" in line for line in starts(folder))


def test_a_killed_supervisor_leaves_no_process_and_the_next_start_works(folder):
    process = supervise(folder, FAULT="1:4:supervisor-dies")
    assert process.wait(timeout=60) == -signal.SIGKILL
    assert all_ended(folder)
    process.stderr.close()
    code, said = ended(supervise(folder))
    assert (code, said) == (0, ["WARNING previous run ended without closing; resuming from step 2"])


def test_a_second_run_is_refused_before_anything_starts(folder):
    with hold(folder / "out"):
        code, said = ended(supervise(folder))
    assert code == 2 and not (folder / "starts").exists()
    assert said[0].startswith(f"ERROR out/ is in use by pid {os.getpid()} on host ")


def test_a_signal_before_anything_has_begun_ends_it(folder):
    process = supervise(folder, FAULT="all:start:hang", OFTEN="1")
    while not (folder / "starts").exists():
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    code, said = ended(process)
    assert code == 128 + signal.SIGTERM and all_ended(folder)
    assert said == ["INFO stopped on SIGTERM before the training began; nothing is lost"]


@pytest.mark.parametrize(
    "override, line",
    [
        ("Head.name=x", "Head.name"),
        (
            "DataLoader.Train.dataset={name: ImageList, list: no.txt}",
            "DataLoader.Train.dataset.list: .*no.txt",
        ),
    ],
)
def test_a_wrong_config_and_missing_data_are_refused_before_anything_starts(override, line):
    with pytest.raises(UserError, match=line):
        main(["--nproc_per_node", "2", "train", "-o", override])


def test_noise_needs_no_data():
    missing = "DataLoader.Train.dataset={name: ImageList, list: no.txt}"
    Supervisor(read_options(["train", "--stand-in", "-o", missing]))


def test_the_command_is_split_at_the_program():
    options = ["--nproc_per_node", "2", "--log_dir=a", "--devices", "0,1"]
    values = {"--nproc_per_node": "2", "--log_dir": "a", "--devices": "0,1"}
    assert split_command([*options, "t.py", "-c", "x"]) == (values, ["t.py", "-c", "x"])
    _, program = split_command([*options, "train", "-c", "x"])
    assert program[0].endswith("plsc/__main__.py") and program[1:] == ["train", "-c", "x"]
    with pytest.raises(UserError, match="plsc run: no program to run; usage: plsc run "):
        split_command(options)


def test_a_script_that_is_not_there_is_no_failure_of_a_rank(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = "^plsc run: there is no script none.py; after the options, each with its value, comes train, or a script"
    with pytest.raises(UserError, match=line):
        main(["--nproc_per_node", "2", "none.py", "-o", "Global.output_dir=out"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["-n", "2", "train"], "has no option -n, did you mean '--nproc_per_node'?; its"),
        (["--nproc", "2", "train"], "has no option --nproc, did you mean '--nproc_per_node'?; its"),
        (
            ["--nproc-per-node", "2", "train"],
            "has no option --nproc-per-node, did you mean '--nproc_per_node'?",
        ),
        (["--maxfailures=2", "train"], "has no option --maxfailures, did you mean '--max_failures'?"),
        (["-c", "a.yaml", "train"], "has no option -c; its options stand before `train`"),
        (["--nproc_per_node", "train", "-c", "a.yaml"], "has no option -c; its options stand before `train`"),
        (["trian", "-c", "a.yaml"], "there is no script trian, did you mean 'train'?; after the options"),
        (["--nproc_per_node", "2", "trian"], "there is no script trian, did you mean 'train'?"),
        (["eval", "-c", "a.yaml"], "there is no script eval; after the options"),
    ],
)
def test_a_mistyped_command_is_a_line(tmp_path, monkeypatch, arguments, line):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"^plsc run: {re.escape(line)}"):
        main(arguments)


def test_the_help_explains_the_options(capsys):
    for arguments in ([], ["-h"], ["--help"]):
        assert main(arguments) == 0
        said = capsys.readouterr().out
        assert said.startswith("usage: plsc run [--nproc_per_node N] [options] train -c ")
        for option in ("--nproc_per_node", "--max_failures", "--devices", "--nnodes", "--master", "--wait"):
            assert re.search(rf"^  {option} +\S", said, re.MULTILINE)
