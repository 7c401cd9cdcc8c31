"""Three machines with disks of their own: the run goes on on 3, on 2 and on 1, with the same bits or losses; real processes."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from plsc.checkpoint.saved import Checkpoint
from plsc.config import load
from plsc.errors import UserError
from plsc.training.resume import build_saved_backbone, build_saved_head
from tests.bounds import assert_within
from tests.checkpoints import flip
from tests.distributed import run_local_disks
from tests.distributed.run_pairs import END, STOP, loss_bound
from tests.launch import launch
from tests.tiny_runs import TINY, arrays, assert_same_arrays, checkpoint, rows

PROGRAM = Path(run_local_disks.__file__)
HEADS = [f"head-{number:05d}-of-00003.safetensors" for number in range(3)]


def gather(run, target):
    """Copy the checkpoints of all machines of a run into one folder, as `cp -n` does."""
    for machine in sorted(path for path in run.iterdir() if path.name.isdigit()):
        shutil.copytree(machine / "checkpoints", target, dirs_exist_ok=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Saved on three disks, and where the runs below have gone on."""
    folder = tmp_path_factory.mktemp("disks")
    launch(PROGRAM, 3, folder, folder, "save")
    gather(folder / "saved", folder / "together")
    return folder


def give(folder, name, *disks):
    """Make the folders of the machines of a new launch: of each the machines of the former launch whose folders it gets."""
    for number, machines in enumerate(disks):
        (folder / name / str(number)).mkdir(parents=True)
        for machine in machines:
            source = folder / name.split("-")[0] / str(machine) / "checkpoints"
            shutil.copytree(source, folder / name / str(number) / "checkpoints", dirs_exist_ok=True)


def losses(output):
    return [row["loss"] for row in rows(output) if row["step"] > STOP]


def assert_same_losses(folder, name):
    """Compare what followed with the run that nothing has disturbed; there is only rounding between them."""
    found, undisturbed = (np.array(losses(folder / run)) for run in (f"{name}/0", "undisturbed"))
    assert_within(found, undisturbed, loss_bound(folder / f"{name}-rounded")[STOP:], paths=2)


def test_each_disk_has_the_rows_of_its_ranks(folder):
    for rank in range(3):
        path = checkpoint(folder / "saved" / str(rank), STOP)
        assert [file.name for file in path.glob("head-*")] == [HEADS[rank]]
        assert Checkpoint.open(path).manifest.hosts == {HEADS[k]: f"node{k}" for k in range(3)}
    assert_same_arrays(folder / "together" / path.name, checkpoint(folder / "undisturbed", STOP))


def test_an_earlier_run_is_set_aside_on_each_disk(folder):
    for rank in range(3):
        assert checkpoint(folder / f"norm/{rank}/previous-1", 1).is_dir()
    assert "is on 3 disks, of the ranks 0; 1; 2" in (folder / "norm/0/train.log").read_text()


def test_three_go_on_on_the_same_on_other_and_on_new_machines(folder):
    give(folder, "saved-same", [0], [1], [2])
    give(folder, "saved-moved", [1], [2], [0])
    give(folder, "saved-new", [0, 2], [1], [])
    give(folder, "saved-mixed", [0, 1], [2])
    give(folder, "norm-same", [0], [1], [2])
    killed, damaged = (checkpoint(folder / name, STOP) for name in ("saved-same/1", "saved-moved/2"))
    killed.rename(f"{killed}.tmp")  # before this disk had renamed its folder, and after another had
    flip(damaged / "backbone.safetensors")
    names = ["saved-same", "saved-moved", "saved-new", "saved-mixed", "norm-same"]
    said = launch(PROGRAM, 3, folder, folder, *names).stdout
    for name in names[:-1]:
        assert [loss.hex() for loss in losses(folder / name / "0")] == [
            loss.hex() for loss in losses(folder / "undisturbed")
        ]
        gather(folder / name, folder / f"{name}-together")
        assert_same_arrays(
            folder / f"{name}-together" / f"step-{END:08d}", checkpoint(folder / "undisturbed", END)
        )
    for rank in range(3):
        (line,) = [line for line in said.splitlines() if f"rank {rank} of saved-same had" in line]
        assert [word for word in line.split() if word in HEADS] == [HEADS[rank]]
    assert (damaged / "backbone.safetensors.bad").exists()
    assert said.index("rank 0 of saved-same had") < said.index(" goes from host "), (
        "nothing was to be handed over"
    )
    gather(folder / "norm-same", folder / "norm-together")
    assert_same_arrays(folder / "norm-together/step-00000006", checkpoint(folder / "norm-undisturbed", 6))
    path = folder / "norm-same/0/checkpoints/step-0000000"
    from_each = rf"(?s)reading checkpoint {path}3 .newest.*reading checkpoint {path}\d .best.*{path}3\n"
    assert re.search(from_each, said) and "ERROR" not in said


def test_two_go_on_with_the_third_ones_folder(folder):
    """And then go back to where they started, as after a divergence."""
    give(folder, "saved-two-back", [0], [1, 2])
    launch(PROGRAM, 2, folder, folder, "saved-two-back")
    assert_same_losses(folder, "saved-two-back")


def test_two_without_the_third_ones_folder_end_with_a_line_that_names_it(folder):
    give(folder, "norm-without", [0], [1])
    said = launch(PROGRAM, 2, folder, folder, "norm-without").stdout
    lines = [line for line in said.splitlines() if line.startswith("ERROR")]
    assert len(lines) == 2 and lines[0] == lines[1]
    assert (
        f"checkpoint of step 3: {HEADS[2]} (classes 16 to 22), written on host node2, is not on the disk of"
        in lines[0]
    )


def test_one_goes_on_with_all_folders(folder):
    give(folder, "saved-one", [0, 1, 2])
    launch(PROGRAM, 1, folder, folder, "saved-one")
    assert_same_losses(folder, "saved-one")


def test_the_folder_of_one_machine_gives_the_network_but_not_the_head(folder):
    path = checkpoint(folder / "norm/0", 3)
    cfg = load(TINY)
    network = build_saved_backbone(cfg, Checkpoint.open(path)).state_dict()
    whole = arrays(checkpoint(folder / "norm-undisturbed", 3))
    assert all(array.numpy().tobytes() == whole[f"ema: {name}"].tobytes() for name, array in network.items())
    with pytest.raises(UserError, match=rf"needs {HEADS[1]} .classes 8 to 15. on host node1; copy"):
        build_saved_head(cfg, Checkpoint.open(path))
