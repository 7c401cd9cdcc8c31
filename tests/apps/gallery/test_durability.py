"""Galleries whose process is killed, whose disk is full, and that several processes write at once."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from plsc import Gallery
from plsc.apps.gallery.store import SqliteStore
from plsc.errors import UserError
from tests.apps.gallery.people import Pixels, people, picture
from tests.helpers.launch import ROOT

# Adds and removes people, and prints the name of each when it is done; or builds one gallery after another.
WORK = """
import sys
from pathlib import Path
from plsc import Gallery
from tests.apps.gallery.people import Pixels, people, picture
path, what, seed = sys.argv[1:]
print("ready", flush=True)
if what == "build":
    for turn in range(1000):
        Path(path).unlink(missing_ok=True)
        print("building", flush=True)
        Gallery.build(path, people(40), Pixels())
        print("built", flush=True)
gallery = Gallery.open(path, Pixels())
for turn in range(1000):
    name = f"{seed}-{turn}"
    gallery.add(name, [picture(name, n) for n in range(3)])
    print("+", name, flush=True)
    if turn % 2:
        gallery.remove(f"{seed}-{turn - 1}")
        print("-", f"{seed}-{turn - 1}", flush=True)
"""


def start(path, what, seed):
    command = [sys.executable, "-c", WORK, str(path), what, seed]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=path.parent)
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process, after):
    """Kill a process, and return the lines that it has printed."""
    time.sleep(after)
    process.send_signal(signal.SIGKILL)
    lines = process.stdout.read().split("\n")
    process.wait()
    process.stdout.close()
    return lines[:-1]  # the last one may be cut


def after_lines(lines, names):
    """Replay what was acknowledged."""
    for line in lines:
        sign, name = line.split()
        (names.add if sign == "+" else names.discard)(name)
    return names


def check(path, names, doing):
    """The gallery has whoever was acknowledged; of the last change all or nothing."""
    gallery = Gallery.open(path, Pixels())
    assert gallery._store._all("PRAGMA integrity_check") == [("ok",)]
    found = {*gallery}
    assert len(found ^ names) <= 1 * doing, sorted(found ^ names)[:5]
    assert gallery.pictures == 3 * len(found)
    for name in [*found][:3]:
        assert gallery.search([picture(name, 0)])[0].name == name
    gallery.close()
    return found


def test_a_killed_process_loses_nothing_that_it_has_acknowledged(tmp_path):
    path, names, draw = tmp_path / "a.gallery", {f"p{number}" for number in range(12)}, random.Random(0)
    Gallery.build(path, people(12), Pixels()).close()
    for turn in range(2):
        lines = kill(start(path, "change", f"r{turn}"), draw.uniform(0.05, 0.4))
        names = check(path, after_lines(lines, names), doing=True)


def test_a_killed_build_leaves_a_whole_gallery_or_none(tmp_path):
    path, draw = tmp_path / "a.gallery", random.Random(1)
    for turn in range(2):
        lines = kill(start(path, "build", str(turn)), draw.uniform(0.02, 0.3))
        if path.exists():
            check(path, {f"p{number}" for number in range(40)}, doing=False)
        else:
            assert lines[-1:] != ["built"]
        path.unlink(missing_ok=True)
    Gallery.build(path, people(3), Pixels()).close()
    assert [file.name for file in tmp_path.iterdir()] == ["a.gallery"]


def test_two_writers_and_a_reader_at_once(tmp_path):
    path = tmp_path / "a.gallery"
    reader = Gallery.build(path, people(12), Pixels())
    writers = [start(path, "change", seed) for seed in "ab"]
    counts = set()
    end = time.monotonic() + 2
    while time.monotonic() < end:
        counts.add(len(reader))
        assert reader.pictures % 3 == 0
        assert reader.search([picture("p3", 0)])[0].name == "p3"
    names = {f"p{number}" for number in range(12)}
    lines = [kill(writer, 0) for writer in writers]
    assert all(lines) and len(counts) > 3
    expected = after_lines(lines[1], after_lines(lines[0], names))
    assert len({*reader} ^ expected) <= 2  # what each was at when it was killed
    assert {*Gallery.open(path, Pixels())} == {*reader}


def test_a_full_disk_is_one_line_and_leaves_the_gallery_as_it_was(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        gallery = Gallery.build(disk / "a.gallery", people(3), Pixels())
        with pytest.raises(UserError) as error:
            for turn in range(1000):
                gallery.add(f"more {turn}", [picture("more", n) for n in range(30)])
        assert "disk is full; nothing was changed" in str(error.value) and "\n" not in str(error.value)
        assert len(gallery) == turn + 3 and gallery.search([picture("p1", 0)])[0].matches[0].name == "p1"
        gallery.close()
        again = Gallery.open(disk / "a.gallery", Pixels())
        assert len(again) == turn + 3
        again.close()
        with pytest.raises(UserError, match=r"b\.gallery: .*(full|No space)"):
            Gallery.build(disk / "b.gallery", people(300), Pixels())
        assert not (disk / "b.gallery").exists() and not (disk / "b.gallery.tmp").exists()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_what_is_written_is_synced(tmp_path):
    """FULL: the log is synced after each transaction, whatever SQLite was built with."""
    Gallery.build(tmp_path / "a.gallery", people(1), Pixels()).close()
    store = SqliteStore.open(tmp_path / "a.gallery")
    assert store._all("PRAGMA synchronous") == [(2,)] and store._all("PRAGMA journal_mode") == [("wal",)]
