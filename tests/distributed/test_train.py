"""Real launches: through tools/train.py and `plsc train --ranks`, resumed, on other numbers of ranks, and
ended by a mistake."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from plsc.checkpoint.store import Checkpoint
from plsc.entry import Entry
from plsc.training.load_weights import load_network
from tests.helpers.bounds import assert_within, rounded
from tests.helpers.head_names import HEADS
from tests.helpers.launch import ROOT, launch, run_forked, run_python
from tests.helpers.tiny_runs import (
    TINY,
    arrays,
    assert_same_arrays,
    assert_takes_over,
    checkpoint,
    checkpoints,
    columns,
    linear,
    make_trainer,
    rounded_run,
    rows,
    steps,
    train_linear,
    train_sets,
)
from tests.training.test_evaluator import evaluator_of
from tests.training.test_losses import run_on_ranks

TRAIN = ROOT / "tools/train.py"
HALF = "DataLoader.Train.batch_size=6"  # on two ranks, the global batch of one
IN_A_PROCESS_WITH_PADDLE = """
import os, sys, paddle
from plsc.cli import main
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # a rank has one thread on every machine
sys.exit(main(["train", "--ranks", "2", "-c", sys.argv[1], "-o", *sys.argv[2:]]))
"""


def said_by(folder, rank=0):
    return (folder / f"log/workerlog.{rank}").read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Train on two ranks, 12 steps without a break. Return the output folder, and what rank 0 printed."""
    folder = tmp_path_factory.mktemp("whole")
    launch(TRAIN, 2, folder, "-c", TINY, "-o", HALF, "Global.output_dir=out")
    return folder / "out", said_by(folder)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The same for 8 steps, launched from a Python process. Return the process's folder, and what it
    printed."""
    folder = tmp_path_factory.mktemp("stopped")
    overrides = [HALF, "Global.output_dir=out", "Global.max_steps=8"]
    command = ["-c", IN_A_PROCESS_WITH_PADDLE, TINY, *overrides]
    return folder, run_python(*command, cwd=folder, OMP_NUM_THREADS=None).stdout


def test_a_launch_ends_with_report_rows_and_a_last_line(whole):
    output, said = whole
    assert (output / "report.html").is_file() and checkpoints(output) == [8, 10, 12]
    found = rows(output)
    assert steps(found) == list(range(1, 13)) and {"step", "epoch", "loss", "lr"} <= found[0].keys()
    (last,) = rows(output, evaluations=True)
    assert last["eval"] == "noise pairs" and {"accuracy", "std", "threshold"} <= last.keys()
    accuracy = f"{100 * last['accuracy']:.2f} % ± {100 * last['std']:.2f}"
    checkpoints_said = f"newest checkpoint step 12, best step 12 (accuracy {last['accuracy']:.4f})"
    files = "results in out, report out/report.html\n"
    assert said.endswith(f"done: accuracy {accuracy} on noise pairs, {checkpoints_said}, {files}")
    assert said.count("done: ") == 1
    assert "11 or 12 classes per rank" in said


def test_ranks_are_started_from_a_process_that_has_imported_paddle(stopped):
    folder, said = stopped
    assert "\ndone: accuracy " in said
    assert "step 8/8 loss" in said_by(folder / "out")


def test_a_resumed_launch_equals_an_uninterrupted_one(whole, stopped):
    """Bit for bit. The stopped run has shown before that a seed decides a launch."""
    output = stopped[0] / "out"
    assert rows(output) == rows(whole[0])[:8]
    assert_same_arrays(checkpoint(output, 8), checkpoint(whole[0], 8))
    command = ["-c", TINY, "-o", HALF, "Global.output_dir=out", "Global.resume=true"]
    assert "resuming at step 8 from" in launch(TRAIN, 2, stopped[0], *command).stdout
    assert rows(output) == rows(whole[0])
    assert_same_arrays(checkpoint(output), checkpoint(whole[0]))


def test_what_is_verified_is_what_is_saved(whole):
    """Each rank's batch norm has its own statistics. The checkpoint's must be those of the verification."""
    entry = Entry(TINY, [f"Global.output_dir={whole[0]}"])
    found = entry.evaluate()
    (last,) = rows(whole[0], evaluations=True)
    backbone = load_network(Checkpoint.open(checkpoint(whole[0])), entry.config)
    evaluator = evaluator_of(entry.config, backbone)

    def evaluate():
        evaluator.evaluate()
        return {name: evaluator.row[name] for name in found if isinstance(found[name], (int, float))}

    want, bound = rounded(backbone, evaluate)
    assert len(want) > 5 and found.keys() <= last.keys()
    for numbers in (found, last):
        assert_within({name: numbers[name] for name in want}, want, bound, paths=2)


def test_one_process_takes_over_two_ranks(whole, tmp_path):
    assert_takes_over(make_trainer(tmp_path), checkpoint(whole[0]))


@pytest.fixture(scope="module")
def one_process(whole, tmp_path_factory):
    """By its name what three steps of each kind leave on one process, and how far ranks may lie from it."""
    folder = tmp_path_factory.mktemp("one")
    trainings = {name: lambda output, net, name=name: train_linear(output, name, 12, net) for name in HEADS}
    trainings["sets"] = lambda output, net: train_sets(output, 12, net)
    trainings["extra loss"] = lambda output, net: run_on_ranks(output, net=net)
    return {name: rounded_run(folder / name, train, linear()) for name, train in trainings.items()}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_train_every_head_as_one_process_does(whole, one_process, tmp_path, ranks):
    """run_training.py holds further checks, which every rank makes for itself."""
    script = Path(__file__).with_name("run_training.py")
    said = launch(script, ranks, tmp_path, tmp_path / "runs", checkpoint(whole[0])).stdout
    assert said.count("training ok") == ranks
    for name in [*HEADS, "extra loss"]:
        found = rows(tmp_path / "runs" / name)
        assert steps(found) == [1, 2, 3]
        saved = arrays(checkpoint(tmp_path / "runs" / name, 3))
        assert_within([columns(found), saved], *one_process[name], paths=2)
    folder, resumed = tmp_path / "runs/extra loss", tmp_path / "runs/extra loss, resumed"
    assert_same_arrays(checkpoint(resumed, 3), checkpoint(folder, 3))
    assert rows(resumed) == rows(folder)[2:]
    found, (want, bound) = columns(rows(tmp_path / "runs/sets")), one_process["sets"]
    assert len(found["loss"]) == 3
    assert_within(found, want[0], bound[0], paths=2)


@pytest.mark.slow
def test_plain_processes_and_a_launch_without_a_number_of_ranks(tmp_path):
    """All of one process, so both trainings must end with the same numbers."""
    short = ["-c", TINY, "-o", "Global.max_steps=2"]
    plain = run_python(TRAIN, *short, "Global.output_dir=plain", cwd=tmp_path)
    assert plain.stdout.splitlines()[-1].startswith("done: accuracy ")
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((12, 10), np.uint8))
    (tmp_path / "list.txt").write_text("a.png\n")
    command = ["-c", TINY, "list.txt", "-o", "Global.output_dir=plain"]
    said = run_forked(ROOT / "tools/predict.py", *command, cwd=tmp_path).stdout
    assert said.endswith("done: 1 embeddings of 8 numbers in plain/predict/embeddings.npy\n")
    assert np.load(tmp_path / "plain/predict/embeddings.npy").shape == (1, 8)
    launch(TRAIN, None, tmp_path, *short, "Global.output_dir=launched")
    assert "plan: ranks    1," in said_by(tmp_path)
    assert_same_arrays(checkpoint(tmp_path / "plain", 2), checkpoint(tmp_path / "launched", 2))


@pytest.mark.slow
def test_the_trouble_of_one_rank_ends_all_of_them(tmp_path):
    """With a code that the launcher picks: the other rank has lost its peer, or is terminated."""
    shape = "num_classes: 23, image_shape: [1, 12, 10]"
    broken = f'DataLoader.Train.dataset={{name: "tests.helpers.tiny_runs:OneBadSample", {shape}}}'
    command = ["-c", TINY, "-o", HALF, "Global.output_dir=out", broken]
    done = launch(TRAIN, 2, tmp_path, *command, check=False, timeout=60)
    assert done.returncode != 0 and "done: " not in done.stdout
    assert "ERROR sample 7: the picture is broken" in said_by(tmp_path, 1).splitlines()


def test_a_centre_of_rank_1_that_is_not_finite_ends_both_by_one_line(tmp_path):
    part = 'Parts=[{name: "tests.helpers.broken_weights:Break", place: centres, rank: 1}]'
    words = ["train", "--ranks", "2", "-c", TINY, "-o", HALF, "Global.output_dir=out", part]
    done = run_forked("-m", "plsc", *words, cwd=tmp_path, check=False, timeout=60)
    (line,) = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
    assert done.returncode == 2
    assert "step 3: the centre of class 12, on rank 1, is not finite; the checkpoints were" in line


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["1", "0"])
def test_all_ranks_skip_what_one_cannot_use(tmp_path, kernels):
    """run_divergence.py holds the checks, which every rank makes for itself."""
    script = Path(__file__).with_name("run_divergence.py")
    said = launch(script, 2, tmp_path, tmp_path / "runs", PLSC_KERNELS=kernels).stdout
    assert said.count("divergence ok") == 2
