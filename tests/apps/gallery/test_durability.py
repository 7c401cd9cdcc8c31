"""Galleries whose process is killed, whose disk is full, and that several processes write at once."""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from plsc import Gallery
from plsc.apps.gallery import store
from plsc.errors import UserError
from tests.apps.gallery.people import Pixels, people, picture
from tests.helpers.launch import ROOT

# Adds and removes people, and prints each name when it is done. Or builds one gallery after another.
WORK = """
import sys
from pathlib import Path
from plsc import Gallery
from tests.apps.gallery.people import Pixels, people, picture
path, what, seed = sys.argv[1:]
print("ready", flush=True)
if what == "build":
    for turn in range(1000):
        print("building", flush=True)  # before the old file goes: "built" as the last line promises a file
        Path(path).unlink(missing_ok=True)
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


def names_in(path):
    """The people of a good gallery. Everybody who is searched for is found."""
    gallery = Gallery.open(path, Pixels())
    with gallery._store._sql() as sql:
        assert sql.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    found = {*gallery}
    assert gallery.pictures == 3 * len(found)
    for name in [*found][:3]:
        assert gallery.search([picture(name, 0)])[0].matches[0].name == name
    gallery.close()
    return found


def check(path, names, doing):
    """The gallery contains everybody who was acknowledged. The last change is complete or absent."""
    found = names_in(path)
    assert len(found ^ names) <= 1 * doing, sorted(found ^ names)[:5]
    return found


# How often a process is killed while it changes or builds a gallery. pytest -m slow: sixty times.
KILLS = [pytest.param(2), pytest.param(30, marks=pytest.mark.slow)]


@pytest.mark.parametrize("kills", KILLS)
def test_a_killed_process_loses_nothing_that_it_has_acknowledged(tmp_path, kills):
    path, names, draw = tmp_path / "a.gallery", {f"p{number}" for number in range(12)}, random.Random(0)
    Gallery.build(path, people(12), Pixels()).close()
    for turn in range(kills):
        lines = kill(start(path, "change", f"r{turn}"), draw.uniform(0.05, 0.4))
        names = check(path, after_lines(lines, names), doing=True)
    Gallery.open(path, Pixels()).add("last", picture("last"))
    assert os.listdir(tmp_path) == ["a.gallery"], "what killed processes left is removed"


@pytest.mark.parametrize("kills", KILLS)
def test_a_killed_build_leaves_a_whole_gallery_or_none(tmp_path, kills):
    path, draw = tmp_path / "a.gallery", random.Random(1)
    for turn in range(kills):
        lines = kill(start(path, "build", str(turn)), draw.uniform(0.02, 0.3))
        if path.exists():
            check(path, {f"p{number}" for number in range(40)}, doing=False)
        else:
            assert lines[-1:] != ["built"]
        path.unlink(missing_ok=True)
    Gallery.build(path, people(3), Pixels()).close()
    assert [file.name for file in tmp_path.iterdir()] == ["a.gallery"]


@pytest.mark.parametrize("seconds", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_every_copy_of_a_gallery_that_is_written_is_a_state_that_was_acknowledged(tmp_path, seconds):
    """Two writers and a searching object at once, and a plain copy every 50 ms."""
    path = tmp_path / "a.gallery"
    reader = Gallery.build(path, people(12), Pixels())
    writers = [start(path, "change", seed) for seed in "ab"]
    copies, counts, next_copy = [], set(), 0.0
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        if now >= next_copy:
            next_copy = now + 0.05
            copy = tmp_path / f"copy {len(copies)}"
            done = subprocess.run(["cp", path, copy], capture_output=True, text=True, check=False)
            if done.returncode:  # cp compares the inode that it opens with the one that it saw before
                assert "replaced while being copied" in done.stderr and not copy.exists()
            else:
                copies.append(copy)
        counts.add(len(reader))
        assert reader.pictures % 3 == 0
        assert reader.search([picture("p3", 0)])[0].matches[0].name == "p3"
    first = {f"p{number}" for number in range(12)}
    lines = [kill(writer, 0) for writer in writers]
    assert all(lines) and len(counts) > 3 and len(copies) > 5 * seconds
    expected = after_lines(lines[1], after_lines(lines[0], {*first}))
    assert len({*reader} ^ expected) <= 2  # what each was doing when it was killed
    assert names_in(path) == {*reader}
    # What the gallery held for each writer after each change. The last change may not be acknowledged.
    states = []
    for seed, acknowledged in zip("ab", lines):
        turn = sum(line.startswith("+") for line in acknowledged)
        doing = [f"+ {seed}-{turn}", f"- {seed}-{turn - 1}"]
        of_writer = [set()]
        for line in acknowledged:
            of_writer.append(after_lines([line], {*of_writer[-1]}))
        states.append(of_writer + [after_lines([line], {*of_writer[-1]}) for line in doing])
    for copy in copies:
        found = names_in(copy)
        assert first <= found
        for seed, of_writer in zip("ab", states):
            assert {name for name in found if name.startswith(seed)} in of_writer


def test_of_two_builds_at_once_one_is_made_and_the_other_is_refused(tmp_path):
    path = tmp_path / "a.gallery"
    work = f"""
from plsc import Gallery
from plsc.errors import UserError
from tests.apps.gallery.people import Pixels, people
class Slow(Pixels):
    def trained_on(self):
        print("embedded", flush=True)
        input()
        return frozenset()
try:
    Gallery.build({str(path)!r}, people(3), Slow())
    print("made")
except UserError as error:
    print(error)
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": env}
    both = [subprocess.Popen([sys.executable, "-c", work], **pipes) for _ in range(2)]
    for process in both:
        while "embedded" not in (line := process.stdout.readline()):
            assert line, "it has ended"
    for process in both:
        process.stdin.write("\n")
        process.stdin.flush()
    said = sorted(process.communicate()[0].strip() for process in both)
    refused, made = said if said[1] == "made" else said[::-1]
    assert made == "made" and refused.startswith(f"{path}: ")
    assert "another process has made it meanwhile" in refused or "exists already" in refused
    assert len(Gallery.open(path, Pixels())) == 3 and os.listdir(tmp_path) == ["a.gallery"]


def test_a_search_does_not_wait_for_a_writer(tmp_path):
    """Neither for one of the same object nor for another process, however long they take."""
    gallery = Gallery.build(tmp_path / "a.gallery", people(3), Pixels())
    other = Gallery.open(tmp_path / "a.gallery", Pixels())
    with other._store.transaction():
        waiting = threading.Thread(target=gallery.add, args=("Dan", picture("Dan")))
        waiting.start()
        assert gallery.search([picture("p1", 0)])[0].matches[0].name == "p1" and len(gallery) == 3
        assert waiting.is_alive()
    waiting.join()
    assert len(gallery) == len(other) == 4


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
        assert "nothing was changed" in str(error.value) and "\n" not in str(error.value)
        assert len(gallery) == turn + 3 and gallery.search([picture("p1", 0)])[0].matches[0].name == "p1"
        gallery.close()
        again = Gallery.open(disk / "a.gallery", Pixels())
        assert len(again) == turn + 3
        again.close()
        with pytest.raises(UserError, match=r"b\.gallery: .*(full|No space)"):
            Gallery.build(disk / "b.gallery", people(300), Pixels())
        assert os.listdir(disk) == ["a.gallery"]
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_what_is_written_is_synced_before_it_has_its_name(tmp_path, monkeypatch):
    calls = []
    for module, name in ((os, "fsync"), (os, "replace"), (store, "sync_folder")):
        real = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *given, real=real, name=name: [calls.append(name), real(*given)][1]
        )
    gallery = Gallery.build(tmp_path / "a.gallery", people(1), Pixels())
    calls.clear()
    gallery.add("Dan", picture("Dan"))
    assert calls[:2] == ["fsync", "replace"] and calls[2] == "sync_folder"
