"""The command line: what it passes to Entry, what it prints, and its exit codes. Wrong configs run in their
own processes."""

import errno
import json
import os
import re
import resource
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import plsc
from plsc import cli
from plsc.cli.mistakes import without_traceback
from plsc.config import Config, load
from plsc.entry import Entry
from plsc.errors import MissingFileError, UserError
from tests.helpers.launch import ROOT, run_python
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import TINY

WRONG = {  # name -> the file, the line. tests/config has more cases
    "a key": ("Head:\n  marge: 1", "a.yaml:2: Head.marge: unknown key, did you mean 'margin'?"),
    "the data": (
        "DataLoader:\n  Train:\n    dataset: {name: ImageList, list: faces/list.txt}",
        "a.yaml:3: DataLoader.Train.dataset.list: file 'faces/list.txt' does not exist (looked in {cwd})",
    ),
}
# Run as one rank of two whose peer does not exist, so that a process group could never start.
RANK = {
    "PADDLE_TRAINER_ID": "0",
    "PADDLE_TRAINERS_NUM": "2",
    "PADDLE_LOCAL_SIZE": "2",
    "PADDLE_CURRENT_ENDPOINT": "127.0.0.1:1",
    "PADDLE_TRAINER_ENDPOINTS": "127.0.0.1:1,127.0.0.1:2",
    "PADDLE_MASTER": "127.0.0.1:1",
}


def processor_seconds():
    """Return the processor time that all child processes have used so far. A busy machine stretches it less
    than the clock."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_config_is_one_line_and_exit_code_2_before_any_group_starts(case, tmp_path):
    text, line = WRONG[case]
    (tmp_path / "a.yaml").write_text(text)
    began = processor_seconds()
    command = [ROOT / "tools/train.py", "-c", "a.yaml"]
    done = run_python(*command, cwd=tmp_path, check=False, timeout=60, **RANK)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"ERROR {line.format(cwd=tmp_path)}\n"
    assert processor_seconds() - began < 5
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


def test_a_dry_run_shows_config_and_plan_and_does_nothing(tmp_path):
    command = [ROOT / "tools/train.py", "-c", TINY, "--dry-run", "-o", "Head.margin=0.3"]
    done = run_python(*command, cwd=tmp_path, **RANK)
    assert done.stderr == "", "what others say at every start is silenced before the config imports Paddle"
    for line in ("  max_steps: 12", "  learning_rate: 0.05", "  margin: 0.3", "  momentum: 0.9"):
        assert f"\n{line}\n" in done.stdout
    *plan, head = done.stdout.splitlines()[-8:-2]
    assert plan == [
        "plan: ranks    2, global batch 24 (12 each)",
        "plan: data     115 images of 23 classes, shape [1, 12, 10]",
        "plan: steps    12, 5 an epoch",
        "plan: lr       0.05 at first, 0.05 in the last step",
        "plan: backbone SmallResNet, 1,392 parameters",
    ]
    assert head == "plan: head     dist_arcface, 11 or 12 classes per rank"
    assert "\nplan: bytes    of a rank: network " in done.stdout
    assert re.search(r"\nplan: room     [\d,]{9,} classes at most fit this machine$", done.stdout.rstrip())
    assert not list(tmp_path.iterdir())


class Recorder:
    """Stands for Entry: remembers how it was made and called."""

    calls: list
    config = Config()

    def __init__(self, config, overrides):
        Recorder.calls = [(config, overrides)]

    def __getattr__(self, verb):
        def record(*arguments, **given):
            Recorder.calls.append((verb, *arguments, *given.items()))
            return {"predict": (0.0, []), "classify": ([], 0.0, [])}.get(verb)

        return record


@pytest.mark.parametrize(
    "verb, arguments, made, called",
    [
        ("train", [], (None, []), ("train",)),
        (
            "train",
            ["-c", "a", "-o", "A.b=1", "C.d=2", "-o", "E.f=3"],
            ("a", ["A.b=1", "C.d=2", "E.f=3"]),
            ("train",),
        ),
        ("eval", ["--config", "a"], ("a", []), ("evaluate",)),
        ("export", ["--override", "A.b=1"], (None, ["A.b=1"]), ("export",)),
        ("predict", ["list.txt"], (None, []), ("predict", "list.txt", "output/predict")),
        ("predict", ["a.png"], (None, []), ("predict", "a.png", "output/predict")),
        ("predict", ["a.png", "--classes"], (None, []), ("classify", "a.png", "output/predict", 1)),
        (
            "predict",
            ["a.png", "--classes", "--top", "5"],
            (None, []),
            ("classify", "a.png", "output/predict", 5),
        ),
        ("predict", ["a.txt", "b.txt", "--output", "o"], (None, []), ("predict", ["a.txt", "b.txt"], "o")),
    ],
)
def test_a_verb_is_a_call_of_entry(monkeypatch, verb, arguments, made, called):
    monkeypatch.setattr("plsc.entry.Entry", Recorder)
    assert cli.main([verb, *arguments]) == 0
    assert Recorder.calls == [made, called]


def test_several_ranks_are_supervised(monkeypatch):
    def supervise(cfg, given, ranks):
        words = ["train", "-c", str(TINY), "-o", "Global.epochs=3", "Head.margin=0.3"]
        assert (cfg.Global.epochs, given, ranks) == (3, words, 3)
        return 143

    monkeypatch.setattr("plsc.apps.restart.supervise", supervise)
    arguments = ["-c", str(TINY), "-o", "Global.epochs=3", "-o", "Head.margin=0.3"]
    assert cli.main(["train", *arguments, "--ranks", "3"]) == 143


@pytest.mark.parametrize("verb", ["train", "selftest"])
def test_no_rank_is_refused(verb, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main([verb, "--ranks", "0"])
    assert "--ranks must be 1 " in capsys.readouterr().err


def test_ranks_are_not_started_by_a_rank_of_another_launcher(monkeypatch, capsys):
    monkeypatch.setenv("PADDLE_TRAINER_ID", "1")
    monkeypatch.setattr("plsc.cli.mistakes.ignore_the_launcher", lambda: None)  # this process is no rank
    assert cli.main(["train", "--ranks", "2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "ERROR --ranks 2: this process is rank 1 of a launch already (PADDLE_TRAINER_ID); omit --ranks"
    )


@pytest.mark.parametrize("error, code", [(UserError("one\ntwo"), 2), (RuntimeError("a defect"), None)])
def test_a_mistake_is_exit_code_2_and_a_defect_keeps_its_traceback(monkeypatch, capsys, error, code):
    class Fails(Recorder):
        def train(self):
            raise error

    monkeypatch.setattr("plsc.entry.Entry", Fails)
    if code is None:
        with pytest.raises(RuntimeError, match="a defect"):
            cli.main(["train"])
        return
    assert cli.main(["train"]) == code
    assert capsys.readouterr().err == "ERROR one\nERROR two\n"
    with pytest.raises(UserError):
        cli.main(["train", "--debug"])


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_finds_its_module(capsys, verb):
    if verb == "serve":
        pytest.importorskip("fastapi", reason="the extra serve is not installed")
    with pytest.raises(SystemExit, match="^0$"):
        cli.main([verb, "--help"])
    said = capsys.readouterr().out
    assert "usage: " in said
    if verb in ("train", "eval", "predict", "export"):
        assert f"example: plsc {verb} -c " in said


@pytest.mark.parametrize("arguments, code", [([], 0), (["--help"], 0), (["help"], 0), (["trane"], 2)])
def test_without_a_verb_there_is_help(capsys, arguments, code):
    assert cli.main(arguments) == code
    said, mistake = capsys.readouterr()
    assert mistake == ("ERROR unknown verb 'trane', did you mean 'train'?\n" if code else "")
    assert said.startswith("usage: plsc VERB ...")
    listed = [line.split(maxsplit=1) for line in said.splitlines() if line.startswith("  ")]
    assert listed == [[name, verb.help] for name, verb in cli.VERBS.items()]
    headings = [line for line in said.splitlines()[1:-1] if line and not line.startswith(" ")]
    assert headings == ["start here", "data", "train", "use", "care"]


def test_help_of_a_verb_and_the_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["help", "eval"])
    assert capsys.readouterr().out.startswith("usage: plsc eval ")
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"plsc {plsc.__version__}\n"


@pytest.mark.parametrize(
    "arguments, option",
    [(["train", "--dry-run", "faces.yaml"], "faces.yaml"), (["eval", "faces"], "faces/config.yaml")],
)
def test_a_config_without_its_option_is_reported(tmp_path, monkeypatch, capsys, arguments, option):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "faces").mkdir()
    (tmp_path / "faces/config.yaml").touch()
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    said = capsys.readouterr().err
    assert said.endswith(f"unrecognized arguments: {arguments[-1]}, did you mean '-c {option}'?\n")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--epochs", "2"], ", did you mean '-o Global.epochs=2'?"),
        (["--batch-size=3"], ", did you mean '-o DataLoader.Train.batch_size=3'?"),
        (["--margin", "--resume"], ", did you mean '-o Head.margin=VALUE'?"),
        (["--fp16"], "; use Global.amp: float16, by -o Section.key=value"),
        (["--nothing", "2"], "--nothing 2"),
    ],
)
def test_a_key_as_an_option_is_told(capsys, arguments, hint):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["train", *arguments])
    assert capsys.readouterr().err.endswith(f"{hint}\n")


def test_a_checkpoint_as_config_names_the_right_call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("output/people/checkpoints/step-00000008").mkdir(parents=True)
    Path("output/people/config.yaml").touch()
    checkpoint = "output/people/checkpoints/step-00000008"
    keys = {"Global.checkpoint": checkpoint}
    line = refusal(Entry, f"{checkpoint}/")
    assert line.endswith(f"in Python Entry({json.dumps('output/people')}, {json.dumps(keys)})")
    assert Entry("output/people", keys).config.Global.checkpoint == checkpoint
    assert cli.main(["predict", "a.png", "-c", checkpoint]) == 2
    assert f": -c output/people -o Global.checkpoint={checkpoint}, in" in capsys.readouterr().err
    assert refusal(Entry, "output/people/checkpoints").endswith("; name the run's folder, output/people")


def test_a_folder_of_pictures_as_config_names_the_config_beside_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "faces").mkdir()
    line = "faces/default.yaml: no such config file, and faces is not a run's folder, since it has no "
    line += "config.yaml"
    assert refusal(load, "faces", kind=MissingFileError) == line
    (tmp_path / "faces.yaml").touch()
    for name in ("faces", "faces/"):
        assert refusal(load, name, kind=MissingFileError).endswith(", did you mean 'faces.yaml'?")
    assert "default.yaml" in refusal(load, ".", kind=MissingFileError)


@pytest.mark.parametrize("verb", ["train", "eval", "predict", "export"])
def test_tools_are_verbs(monkeypatch, verb):
    monkeypatch.setattr(cli, "main", lambda argv: argv)
    monkeypatch.setattr(sys, "argv", ["tool", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / f"tools/{verb}.py"), run_name="__main__")
    assert ended.value.code == [verb, "--help"]


@pytest.mark.parametrize("name, code", [(None, 0), ("SIGINT", 130), ("SIGTERM", 143)])
def test_a_stopped_run_has_the_exit_code_of_its_signal(monkeypatch, name, code):
    class Stops(Recorder):
        def train(self):
            return {"stopped": name} if name else {"accuracy": 1.0}

    monkeypatch.setattr("plsc.entry.Entry", Stops)
    monkeypatch.delenv("PADDLE_TRAINER_ID", raising=False)
    assert cli.main(["train", "-c", "a"]) == code


@pytest.mark.parametrize("module", ["numpy", "paddle"])
def test_ctrl_c_during_the_imports_has_no_traceback(tmp_path, module):
    """A module of that name that is interrupted while it is imported."""
    (tmp_path / f"{module}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    code = "import sys;  from plsc.cli import main; sys.exit(main(['train']))"
    done = run_python("-c", code, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (130, "ERROR interrupted\n")


@pytest.mark.parametrize(
    "call",
    [
        "cli.main(['--help'])",
        "mistakes.without_traceback(lambda: print('line\\n' * 100_000))",
    ],
    ids=["in the buffer", "more than a pipe holds"],
)
def test_a_reader_that_has_left_is_no_mistake(call):
    """As with `plsc ckpt list run | head -1`."""
    code = f"import sys; from plsc import cli; from plsc.cli import mistakes; sys.exit({call})"
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as stdout:
        done = subprocess.run(
            [sys.executable, "-c", code],
            check=False,
            cwd=ROOT,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (errno.EACCES, "ERROR a\\x1b/b: Permission denied; change its rights, or name another folder"),
        (
            errno.ENOSPC,
            "ERROR a\\x1b/b: No space left on device; free some space there, or name another folder",
        ),
        (errno.ENAMETOOLONG, "ERROR a\\x1b/b: File name too long; give it a shorter name"),
        (errno.EISDIR, "ERROR a\\x1b/b: Is a directory; move what is there, or name another folder"),
    ],
)
def test_what_the_machine_refuses_is_one_line(capsys, code, line):
    def fails():
        raise OSError(code, os.strerror(code), "a\x1b/b")

    assert without_traceback(fails) == 2
    assert capsys.readouterr().err == f"{line}\n"
    with pytest.raises(OSError, match="Bad file descriptor"):
        without_traceback(lambda: os.close(-1))


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("plsc help <&- >&-", 0, ""),
        ("plsc doctor ''", 2, "ERROR an argument is empty; is a shell variable not set?\n"),
        ("cd a; rmdir ../a; plsc init b", 2, "ERROR the current folder: was deleted; change into another\n"),
        (
            "export LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0; plsc init ä",
            2,
            "ERROR Python cannot use UTF-8 in file names here; set PYTHONUTF8=1\n",
        ),
        pytest.param(
            "unshare -rn plsc train --ranks 2",
            2,
            "ERROR Network is unreachable; bring the loopback interface up (ip link set lo up)\n",
            marks=pytest.mark.skipif(os.system("unshare -rn true 2>/dev/null") != 0, reason="no namespaces"),
        ),
    ],
)
def test_odd_surroundings_of_a_command(tmp_path, line, code, said):
    (tmp_path / "a").mkdir()
    line = line.replace("plsc", f"env PYTHONPATH={ROOT} {sys.executable} -m plsc")
    done = subprocess.run(["sh", "-c", line], check=False, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (code, said)


def test_without_a_config_it_says_what_it_trains(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("plsc.entry.Entry", Recorder)
    monkeypatch.chdir(tmp_path)
    cli.main(["train", "-c", "a"])
    assert capsys.readouterr().out == ""
    cli.main(["train"])
    assert "no -c: training with the built-in defaults" in capsys.readouterr().out


def test_the_package_runs_as_a_module_and_as_a_file(tmp_path):
    """As a file its folder must not lead the import path: plsc/utils/logging.py would be everybody's
    `logging`."""
    (tmp_path / "a.yaml").write_text("Head: {name: x}")
    for program in (["-m", "plsc"], [ROOT / "plsc/__main__.py"]):
        done = run_python(*program, "train", "-c", "a.yaml", cwd=tmp_path, check=False)
        assert done.returncode == 2 and done.stderr.startswith("ERROR a.yaml:1: Head.name: must be one of")


@pytest.mark.parametrize("words", [["init", "~/faces"], ["train", "--config=~/none.yaml"]])
def test_home_is_expanded_where_no_shell_does(words, monkeypatch, capsys):
    monkeypatch.setenv("HOME", "/home/ann")
    assert cli.main(words) == 2
    assert "/home/ann/" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["train", "selftest", "import"])
def test_a_home_without_a_folder_for_paddle_is_one_line(tmp_path, monkeypatch, capsys, verb):
    (tmp_path / ".cache").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delitem(sys.modules, "paddle", raising=False)
    assert cli.main([verb, "--help"]) == 2
    line = "cannot be made, and Paddle needs it: Not a directory; set HOME to a folder in which this user may"
    assert capsys.readouterr().err == f"ERROR {tmp_path}/.cache/paddle/dataset: {line} write\n"
    assert line in refusal(Entry)
