"""Checkpoints on the disks of several machines: what each disk has, and which is the newest that is whole together."""

from __future__ import annotations

import errno
import json
import shutil

import pytest

from plsc.checkpoint.pieces import choose, find_whole, survey
from plsc.errors import UserError
from tests.checkpoints import content, flip, reseal, save_one, save_ranks

HEADS = [f"head-{number:05d}-of-00003.safetensors" for number in range(3)]


@pytest.fixture
def disks(tmp_path):
    """The folders of three machines after the steps 4 and 8, each with the backbone and its own rows of 11 classes."""

    def make(*steps):
        whole = tmp_path / "whole"
        for step in steps:
            save_ranks(whole, step, content(step), 3)
            reseal(whole / f"step-{step:08d}", name_hosts)
        roots = [tmp_path / f"disk{number}" for number in range(3)]
        for number, root in enumerate(roots):
            shutil.copytree(whole, root)
            for file in root.glob("step-*/head-*"):
                if file.name != HEADS[number]:
                    file.unlink()
        return roots

    def name_hosts(fields):
        fields.update(format=4, hosts={name: f"node{number}" for number, name in enumerate(HEADS)})

    return make


def surveys(roots):
    return [json.loads(json.dumps(survey(root))) for root in roots]


def test_the_newest_whose_files_are_all_somewhere(disks):
    roots = disks(4, 8)
    pieces = find_whole(surveys(roots))
    assert pieces.step == 8 and choose(surveys(roots)) == 8
    assert [pieces.holders[name] for name in HEADS] == [[0], [1], [2]]
    assert pieces.holders["backbone.safetensors"] == [0, 1, 2]
    assert find_whole(surveys(roots), before=8).step == 4 and find_whole(surveys(roots), before=4) is None
    assert find_whole(surveys(roots), step=4).step == 4


def test_none_at_all(tmp_path):
    assert choose(surveys([tmp_path, tmp_path / "nothing"])) is None


def test_one_folder_of_a_single_disk_is_enough(tmp_path):
    save_one(tmp_path / "a", 3, content(3))
    assert choose(surveys([tmp_path / "a"])) == choose(surveys([tmp_path / "b", tmp_path / "a"])) == 3


def test_a_missing_machine_is_one_line_that_names_host_file_and_classes(disks):
    roots = disks(4, 8)
    with pytest.raises(UserError) as error:
        choose(surveys(roots[:2]))
    text = str(error.value)
    assert "\n" not in text and "checkpoint of step 8" in text
    assert f"{HEADS[2]} (classes 8 to 10), written on host node2, is not on the disk of" in text


def test_an_older_one_is_taken_with_a_warning(disks, caplog):
    roots = disks(4, 8)
    shutil.copy(roots[2] / "step-00000004" / HEADS[2], roots[0] / "step-00000004")
    assert choose(surveys(roots[:2])) == 4
    (line,) = caplog.messages
    assert "checkpoint of step 8" in line and "node2" in line and line.endswith("taking step 4 instead")


def test_a_file_of_the_wrong_size_is_missing(disks):
    roots = disks(8)
    with open(roots[1] / "step-00000008" / HEADS[1], "ab") as file:
        file.write(b"x")
    with pytest.raises(UserError, match="node1"):
        choose(surveys(roots))


def test_folders_of_one_step_with_other_manifests_are_not_mixed(disks):
    """As when a machine that was away has kept its part of a step that the others have taken anew since."""
    roots = disks(8)
    reseal(roots[2] / "step-00000008", lambda fields: fields.update(epoch=77))
    with pytest.raises(UserError, match="node2"):
        choose(surveys(roots))


@pytest.mark.parametrize("renamed", [0, 1, 2, 3])
def test_killed_while_the_disks_rename(disks, renamed):
    """All is written before the first disk renames, so what is on any disk then is a part of the new one."""
    roots = disks(4, 8)
    for root in roots[renamed:]:
        (root / "step-00000008").rename(root / "step-00000008.tmp")
    assert choose(surveys(roots)) == 8


def test_killed_before_all_manifests_were_written(disks):
    roots = disks(4, 8)
    for root in roots:
        (root / "step-00000008").rename(root / "step-00000008.tmp")
    (roots[2] / "step-00000008.tmp" / "manifest.json").unlink()
    assert choose(surveys(roots)) == 4


def test_the_rest_of_a_first_save_is_no_checkpoint(disks):
    roots = disks(8)
    for root in roots:
        (root / "step-00000008").rename(root / "step-00000008.tmp")
    assert choose(surveys(roots[:2])) is None


def test_an_unfinished_folder_of_a_single_disk_is_none(tmp_path):
    save_one(tmp_path, 3, content(3)).rename(tmp_path / "step-00000003.tmp")
    assert choose(surveys([tmp_path])) is None


def test_damaged_and_set_aside_ones_are_not_started_over(tmp_path):
    path = save_one(tmp_path, 3, content(3))
    flip(path / "manifest.json")
    with pytest.raises(UserError, match="step 3 .*fails its checksum"):
        choose(surveys([tmp_path]))
    path.rename(tmp_path / "step-00000003.bad")
    with pytest.raises(UserError, match="none of the 1 checkpoints is usable"):
        choose(surveys([tmp_path]))


def test_names_of_a_hostile_manifest_stay_on_one_line(disks):
    roots = disks(8)
    reseal(roots[0] / "step-00000008", lambda fields: fields["hosts"].update({HEADS[2]: "a\nb\x1b[2J"}))
    with pytest.raises(UserError) as error:
        choose(surveys(roots[:1]))
    assert str(error.value).isprintable()


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESTALE])
def test_a_folder_that_is_deleted_while_it_is_read_is_left_out(disks, monkeypatch, number):
    """The ranks of another machine may still save and delete on a shared disk."""
    first = disks(4, 8)[0]

    def crc32_of(path):
        if path.parent.name == "step-00000004":
            raise OSError(number, "gone", str(path))
        return "0"

    monkeypatch.setattr("plsc.checkpoint.pieces.crc32_of", crc32_of)
    assert [entry["name"] for entry in survey(first)["checkpoints"]] == ["step-00000008"]


def test_a_disk_that_is_gone_is_not_taken_for_a_deleted_folder(disks, monkeypatch):
    def crc32_of(path):
        raise OSError(errno.EIO, "Input/output error", str(path))

    first = disks(4)[0]
    monkeypatch.setattr("plsc.checkpoint.pieces.crc32_of", crc32_of)
    with pytest.raises(UserError, match="cannot be read now"):
        survey(first)
