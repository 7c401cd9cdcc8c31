"""Files and folders under their names whole or not at all, though several processes write them."""

import os
import subprocess
import sys

import pytest

from plsc.utils.atomic_write import atomic_write, replace_file
from tests.helpers.refusals import refusal


def test_the_new_content_takes_the_place_of_the_old(tmp_path):
    path = tmp_path / "new" / "a.json"
    replace_file(path, b"old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new" and os.listdir(tmp_path / "new") == ["a.json"]


def test_the_name_beside_is_new_and_the_owners_alone(tmp_path):
    """Nobody can know it, so nobody can put a link there."""
    with atomic_write(tmp_path / "a") as one, atomic_write(tmp_path / "a") as other:
        assert one != other and one.name == other.name == "a"
        assert [folder.parent.stat().st_mode & 0o777 for folder in (one, other)] == [0o700] * 2
        one.write_bytes(b"one")
        other.write_bytes(b"other")
    assert (tmp_path / "a").read_bytes() == b"one" and os.listdir(tmp_path) == ["a"]


KILLED = """
import os, sys
from plsc.utils.atomic_write import atomic_write
with atomic_write(sys.argv[1]) as beside:
    beside.write_bytes(b"half")
    if sys.argv[2] == "die":
        os.kill(os.getpid(), 9)
    print("in it", flush=True)
    input()
"""


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    path = tmp_path / "a"
    command = [sys.executable, "-c", KILLED, str(path)]
    subprocess.run([*command, "die"], check=False)
    assert len(os.listdir(tmp_path)) == 1
    with subprocess.Popen([*command, "live"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as living:
        assert living.stdout.readline() == b"in it\n" and len(os.listdir(tmp_path)) == 1
        replace_file(path, b"ours")
        assert len(os.listdir(tmp_path)) == 2
        living.communicate(b"\n")
    assert path.read_bytes() == b"half" and os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_of_two_who_make_something_new_one_is_refused(tmp_path, kind):
    def make(path, content):
        if kind == "folder":
            path.mkdir()
            path = path / "inner"
        path.write_text(content)

    def make_late():
        with atomic_write(tmp_path / "a", new=True) as late:
            make(late, "late")
            with atomic_write(tmp_path / "a", new=True) as early:
                make(early, "early")

    assert refusal(make_late) == f"{tmp_path}/a: another process has made it meanwhile; nothing was changed"
    made = tmp_path / "a" if kind == "file" else tmp_path / "a" / "inner"
    assert made.read_text() == "early" and os.listdir(tmp_path) == ["a"]


def test_a_block_that_fails_leaves_the_old_content_and_nothing_beside(tmp_path):
    replace_file(tmp_path / "a", b"old")
    with pytest.raises(RuntimeError), atomic_write(tmp_path / "a") as beside:
        beside.write_bytes(b"half of the ne")
        raise RuntimeError
    assert (tmp_path / "a").read_bytes() == b"old" and os.listdir(tmp_path) == ["a"]
