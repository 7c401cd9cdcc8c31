"""Files and folders under their names whole or not at all; links at the temporary name are not followed."""

import os

import pytest

from plsc.utils.atomic_write import atomic_write, replace_file


def test_the_new_content_takes_the_place_of_the_old(tmp_path):
    path = tmp_path / "new" / "a.json"
    replace_file(path, b"old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new" and os.listdir(tmp_path / "new") == ["a.json"]


@pytest.mark.parametrize("leftover", ["file", "folder", "link"])
def test_what_has_the_temporary_name_is_removed_and_no_link_is_followed(tmp_path, leftover):
    victim, beside = tmp_path / "victim", tmp_path / "a.tmp"
    victim.write_bytes(b"mine")
    if leftover == "file":
        beside.write_bytes(b"half")
    elif leftover == "folder":
        (beside / "inner").mkdir(parents=True)
    else:
        beside.symlink_to(victim)
    replace_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new" and not (tmp_path / "a").is_symlink()
    assert victim.read_bytes() == b"mine" and sorted(os.listdir(tmp_path)) == ["a", "victim"]


def test_a_block_that_fails_leaves_the_old_content_and_nothing_beside(tmp_path):
    replace_file(tmp_path / "a", b"old")
    with pytest.raises(RuntimeError), atomic_write(tmp_path / "a") as beside:
        beside.write_bytes(b"half of the ne")
        raise RuntimeError
    assert (tmp_path / "a").read_bytes() == b"old" and os.listdir(tmp_path) == ["a"]
