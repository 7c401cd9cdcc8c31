"""Galleries on the disk: processes that are killed, logs that are cut, disks that are full, and several that
write at once.

PLSC_KILLS=60 kills more often, PLSC_EVERY_BYTE=1 cuts at each byte.
"""

import contextlib
import os
import random
import resource
import shutil
import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest

from plsc import Gallery
from plsc.apps.serving.gallery import index, store
from plsc.errors import MissingFileError, UserError
from tests.apps.serving.fake_embedder import FakeEmbedder, pictures, units
from tests.apps.serving.killing import child, kill_again_and_again, name_of, number_of, sound, traces

NAMES = ["Ann", "Bob"]
FRAME = 24 + 16_384  # bytes of a page in SQLite's log


@pytest.fixture
def gallery(tmp_path):
    return Gallery.from_embeddings(tmp_path / "g", FakeEmbedder(), NAMES, units(2), np.arange(2))


@pytest.fixture
def writes(gallery):
    """Another process's connection, which writes."""
    with contextlib.closing(sqlite3.connect(gallery.path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection


@contextlib.contextmanager
def full_from(size):
    """Let no file grow beyond this size, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_nobody_acknowledged_is_lost_when_a_process_is_killed(tmp_path):
    kills = int(os.environ.get("PLSC_KILLS", "4"))
    said = kill_again_and_again(tmp_path / "g", kills, rows=40, size=64, seconds=0.5)
    assert "nobody acknowledged was lost" in said
    print(said)


def test_a_log_that_is_cut_off_has_all_before(gallery, tmp_path):
    """Cut within its last frame: the last person is not there, and nothing is damaged. With all of it he
    is."""
    for number in range(3):
        gallery.add(f"p{number}", units(1, seed=number))
    whole = Path(f"{gallery.path}-wal").read_bytes()
    end = len(whole)
    if os.environ.get("PLSC_EVERY_BYTE"):
        cuts = range(end - FRAME, end + 1)
    else:
        cuts = sorted({end - FRAME, end - FRAME + 24, end - 1, end, *range(end - FRAME, end, 1021)})
    for cut in cuts:
        copy = tmp_path / f"copy {cut}"
        shutil.copyfile(gallery.path, copy)
        Path(f"{copy}-wal").write_bytes(whole[:cut])
        opened = Gallery.open(copy)
        last = ["p2"] if cut == end else []
        assert opened.names() == [*NAMES, "p0", "p1", *last], cut
        opened.add("Eve", units(1))
        opened.close()
        sound(copy)
        assert Gallery.open(copy).names()[-1] == "Eve"
        copy.unlink()


def test_a_log_with_bytes_of_a_power_failure_has_all_before(gallery, tmp_path):
    for number in range(5):
        gallery.add(f"p{number}", units(1, seed=number))
    whole = bytearray(Path(f"{gallery.path}-wal").read_bytes())
    draws = random.Random(0)
    for turn in range(30):
        at = draws.randrange(32, len(whole))
        copy = tmp_path / f"copy {turn}"
        shutil.copyfile(gallery.path, copy)
        Path(f"{copy}-wal").write_bytes(whole[:at] + draws.randbytes(100) + whole[at + 100 :])
        opened = Gallery.open(copy)
        assert opened.names() == [*NAMES, "p0", "p1", "p2", "p3", "p4"][: len(opened)]
        opened.close()
        sound(copy)


def test_a_full_disk_leaves_the_gallery_as_it_was(gallery):
    acknowledged = [*NAMES]
    log = Path(f"{gallery.path}-wal")
    gallery.add("Cy", units(1))
    with full_from(log.stat().st_size + 20 * FRAME + 7):
        with pytest.raises(UserError, match="cannot be read or written: .*; the gallery is as it was"):
            for number in range(100):
                gallery.add(f"p{number}", units(1, seed=number))
                acknowledged.append(f"p{number}")
        assert gallery.names() == [*NAMES, "Cy", *acknowledged[2:]] == Gallery.open(gallery.path).names()
        assert gallery.search(units(1), threshold=0.5)[0][0].name == "Ann"
    gallery.add("Eve", units(1))
    gallery.close()
    sound(gallery.path)
    assert Gallery.open(gallery.path).names() == [*NAMES, "Cy", *acknowledged[2:], "Eve"]


def test_a_removal_on_a_full_disk_says_what_is_left(gallery):
    gallery.add("Dee", units(1, seed=4))
    with (
        full_from(os.path.getsize(f"{gallery.path}-wal") + 8 * FRAME),
        pytest.raises(
            UserError, match="removed, and found no more; .* run plsc gallery remove .* without names"
        ),
    ):
        gallery.remove("Dee")
    assert gallery.names() == NAMES
    assert gallery.remove() == []
    assert traces(gallery.path, "Dee", units(1, seed=4)[0]) == []


def test_what_cannot_be_finished_leaves_nothing(gallery, tmp_path, monkeypatch):
    """A build, a backup, and an index on a full disk."""
    big = units(3000), np.arange(3000)
    names = [f"p{number}" for number in range(3000)]
    with full_from(100_000), pytest.raises(UserError, match="new: cannot be read or written"):
        Gallery.from_embeddings(tmp_path / "new", FakeEmbedder(), names, *big)
    assert [path.name for path in tmp_path.glob("new*")] == []
    made = Gallery.from_embeddings(tmp_path / "big", FakeEmbedder(), names, *big)
    with full_from(100_000):
        with pytest.raises(UserError, match="copy.*: cannot be .*written"):
            made.backup(tmp_path / "copy")
        monkeypatch.setattr(index, "FILE_ROWS", 10)
        opened = Gallery.open(made.path)  # a warning
    assert len(opened) == 3000 and not [*tmp_path.glob("copy*"), *tmp_path.glob("big.index*")]
    made.backup(tmp_path / "copy")
    sound(tmp_path / "copy")


def test_a_gallery_that_was_deleted_is_not_made_again(gallery):
    for path in gallery.files():
        path.unlink()
    for change in (lambda: gallery.add("Cy", units(1)), gallery.refresh, lambda: gallery.remove("Ann")):
        with pytest.raises(MissingFileError, match="is not there any more; restore a backup"):
            change()
    assert not gallery.path.exists()


def test_a_backup_that_takes_the_gallerys_place_is_read(gallery, tmp_path):
    gallery.backup(tmp_path / "copy")
    gallery.add("Cy", units(1, seed=3))
    gallery.close()
    os.replace(tmp_path / "copy", gallery.path)
    assert gallery.names() == NAMES and len(gallery) == 2
    gallery.add("Dee", units(1, seed=4))
    assert Gallery.open(gallery.path).names() == [*NAMES, "Dee"]


@pytest.mark.parametrize("size", [8, 12])
def test_a_writer_that_waited_for_an_upgrade_adds_nothing(gallery, size):
    """Its embeddings are of the network before."""
    before, after = FakeEmbedder(), FakeEmbedder(seed=1, size=size)
    others = [Gallery.open(gallery.path) for _ in range(2)]
    gallery.upgrade(after, {name: pictures(1) for name in NAMES})
    for change in (
        lambda: others[0].add("Cy", units(1)),
        lambda: others[1].add("Cy", units(1), embedder=before),
        lambda: others[0].search(units(1), threshold=0.5),
    ):
        with pytest.raises(UserError, match="was upgraded to another network, run 1 .*; open it again"):
            change()
    opened = Gallery.open(gallery.path)
    assert opened.names() == NAMES
    with pytest.raises(UserError, match=r"of the network run 1 .*, these are of run 0"):
        opened.add("Cy", units(1, size), embedder=before)
    opened.add("Cy", units(1, size), embedder=after)
    gallery.add("Dee", units(1, size))
    assert opened.names() == [*NAMES, "Cy", "Dee"]


def test_an_upgrade_that_fails_changes_nothing(gallery, monkeypatch):
    before = gallery.search(units(3), threshold=0.5), gallery.facts

    def fails(*_):
        raise OSError("no")

    monkeypatch.setattr(store.SqliteStore, "set_facts", fails)
    with pytest.raises(OSError, match="no"):
        gallery.upgrade(FakeEmbedder(seed=1), {name: pictures(1) for name in NAMES})
    monkeypatch.undo()
    for each in (gallery, Gallery.open(gallery.path)):
        assert (each.search(units(3), threshold=0.5), each.facts) == before


def test_two_processes_write_while_others_read(gallery):
    """Nobody is lost, and every answer is whole."""
    writers = [child(gallery.path, first, count=40, least_rows=10) for first in (100, 200)]
    answers = 0
    while any(writer.poll() is None for writer in writers):
        (found,) = gallery.search(units(1), top=1, threshold=0.5)
        assert found[0].name == "Ann" and found[0].similarity > 0.9999
        answers += 1
    assert [writer.returncode for writer in writers] == [0, 0] and answers > 1
    expected = {name_of(first + number) for first in (100, 200) for number in range(40) if number % 5 != 4}
    for each in (gallery, Gallery.open(gallery.path)):
        assert set(each.names()) == {*NAMES, *expected}
    assert all(gallery.verify(name, units(1, seed=number_of(name))).similarity > 0.9999 for name in expected)
    for writer in writers:
        writer.stdout.close()
    gallery.close()
    sound(gallery.path)
    removed = [name_of(first + number) for first in (100, 200) for number in range(4, 40, 5)]
    assert not [name for name in removed if traces(gallery.path, name, units(1, seed=number_of(name))[0])]


def test_threads_write_and_read(gallery):
    errors, done = [], threading.Event()

    def search():
        try:
            while not done.is_set():
                (found,) = gallery.search(units(1), top=1, threshold=0.5)
                assert found[0].name == "Ann" and found[0].similarity > 0.9999
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    def write(first):
        try:
            own = gallery if first else Gallery.open(gallery.path)
            for number in range(first, first + 12):
                own.add(f"p{number}", units(1, seed=50 + number))
                own.add(f"gone {number}", units(1, seed=50 + number))
                own.remove(f"gone {number}")
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    readers = [threading.Thread(target=search) for _ in range(3)]
    writers = [threading.Thread(target=write, args=(100 * writer,)) for writer in range(3)]
    for thread in readers + writers:
        thread.start()
    for writer in writers:
        writer.join()
    done.set()
    for reader in readers:
        reader.join()
    assert not errors
    assert set(gallery.names()) == {
        *NAMES,
        *(f"p{100 * writer + n}" for writer in range(3) for n in range(12)),
    }


def test_searching_goes_on_while_another_process_writes(gallery, writes):
    """A thread that waits to write does not stop those that read."""
    writer = threading.Thread(target=gallery.add, args=("Cy", units(1)))
    writer.start()
    for _ in range(20):
        assert gallery.search(units(1), top=1, threshold=0.5)[0][0].name == "Ann" and writer.is_alive()
    writes.execute("ROLLBACK")
    writer.join()
    assert "Cy" in gallery.names()


def test_a_writer_that_takes_too_long_is_given_up(gallery, writes, monkeypatch):
    monkeypatch.setattr(store, "_WAIT", 0.05)
    opened = Gallery.open(gallery.path)
    for change in (lambda: opened.add("Cy", units(1)), lambda: opened.remove("Ann")):
        with pytest.raises(UserError, match="g: is in use by another process that writes; try again"):
            change()
    assert opened.search(units(1), threshold=0.5)[0][0].name == "Ann", "reading waits for nobody"
    writes.execute("ROLLBACK")
    opened.add("Cy", units(1))


def test_a_gallery_that_may_only_be_read(gallery, monkeypatch):
    gallery.close()
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and real(path, mode))
    opened = Gallery.open(gallery.path)
    assert opened.search(units(1), threshold=0.5)[0][0].name == "Ann"
    with pytest.raises(UserError, match="g: cannot be read or written: attempt to write a readonly database"):
        opened.add("Cy", units(1))
    assert [path.name for path in gallery.path.parent.iterdir()] == ["g"]


def test_a_pipe_in_the_place_of_the_file_is_refused(gallery):
    gallery.close()
    gallery.path.unlink()
    os.mkfifo(gallery.path)
    with pytest.raises(UserError, match="is a pipe"):
        Gallery.open(gallery.path)
