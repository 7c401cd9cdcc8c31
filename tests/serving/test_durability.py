"""Galleries on the disk: processes that are killed, disks that are full, and two that write at once."""

import errno
import json
import os
import threading

import numpy as np
import pytest

from plsc import Gallery
from plsc.checkpoint.tensorfile import crc32_of
from plsc.distributed.lock import hold
from plsc.errors import UserError
from plsc.serving.gallery import files, log
from tests.serving.fake_embedder import FakeEmbedder, units
from tests.serving.kill_adders import kill_again_and_again

NAMES = ["Ann", "Bob"]


@pytest.fixture
def gallery(tmp_path):
    return Gallery.from_embeddings(tmp_path / "g", FakeEmbedder(), NAMES, units(2), np.arange(2))


def log_of(gallery):
    return gallery.folder / gallery.header.log_file


def test_a_log_that_ends_anywhere_has_all_before(gallery, capsys):
    """Cut at every byte: what was whole is there, the rest is said, and the next change takes its place."""
    path, ends = log_of(gallery), [0]
    changes = [("Cy", 1), ("Ann", 2), ("Dee", 1)]
    for name, count in changes:
        gallery.add(name, units(count, seed=count))
        ends.append(path.stat().st_size)
    gallery.remove("Bob")
    whole = path.read_bytes()
    assert len(ends) == 4 and ends[-1] < len(whole)
    expected = {0: NAMES, 1: [*NAMES, "Cy"], 2: [*NAMES, "Cy"], 3: [*NAMES, "Cy", "Dee"]}
    for cut in range(len(whole)):
        capsys.readouterr()
        path.write_bytes(whole[:cut])
        opened = Gallery.open(gallery.folder)
        done = sum(end <= cut for end in ends) - 1
        assert opened.names() == expected[done]
        assert ("a change that was not finished" in capsys.readouterr().out) == (cut not in ends)
        opened.add("Eve", units(1))
        assert Gallery.open(gallery.folder).names() == [*expected[done], "Eve"]


def test_zeros_at_the_end_are_left_by_a_power_failure(gallery):
    gallery.add("Cy", units(1))
    with open(log_of(gallery), "ab") as file:
        file.write(bytes(100))
    opened = Gallery.open(gallery.folder)
    opened.add("Dee", units(1))
    assert Gallery.open(gallery.folder).names() == ["Ann", "Bob", "Cy", "Dee"]


def test_an_altered_record_is_not_taken_for_an_unfinished_one(gallery):
    gallery.add("Cy", units(1))
    gallery.add("Dee", units(1))
    whole = log_of(gallery).read_bytes()
    for at in (0, 5, 9, 13, 20, 60):
        log_of(gallery).write_bytes(whole[:at] + bytes([whole[at] ^ 64]) + whole[at + 1 :])
        with pytest.raises(UserError, match="the record at byte 0 fails its checksum"):
            Gallery.open(gallery.folder)


@pytest.mark.parametrize(
    "fields",
    [[], {}, {"add": "Cy"}, {"add": 1, "sources": []}, {"add": "Cy", "sources": [1]}, {"remove": ["Ann"]}],
)
def test_a_log_of_somebody_who_can_compute_checksums_is_refused(gallery, fields):
    log_of(gallery).write_bytes(log.encode(fields, units(1)))
    with pytest.raises(UserError, match="the record at byte 0 fails its checksum"):
        Gallery.open(gallery.folder)


def test_an_array_that_is_no_embedding_is_refused(gallery):
    log_of(gallery).write_bytes(log.encode({"add": "Cy", "sources": []}, units(1, size=7)))
    with pytest.raises(UserError, match="the record at byte 0"):
        Gallery.open(gallery.folder)


@pytest.mark.parametrize(
    "people", [[], {}, {"names": ["Ann", "Ann"], "sources": [[], []]}, {"names": [1, 2]}]
)
def test_people_who_do_not_fit_the_rows_are_refused(gallery, people):
    path = gallery.folder / gallery.header.people_file
    path.write_text(json.dumps(people))
    sums = {"bytes": path.stat().st_size, "crc32": crc32_of(path)}
    changed = {**gallery.header.files, path.name: files.FileSum(**sums)}
    files.write_header(gallery.folder, gallery.header.model_copy(update={"files": changed}))
    with pytest.raises(UserError, match="does not fit people-1.json; restore the gallery"):
        Gallery.open(gallery.folder)


def test_searching_goes_on_while_another_process_has_the_lock(gallery, monkeypatch):
    """A thread that waits to write does not stop those that read."""
    monkeypatch.setattr("plsc.serving.gallery.gallery._WAIT", 20.0)
    with hold(gallery.folder):
        writer = threading.Thread(target=gallery.add, args=("Cy", units(1)))
        writer.start()
        for _ in range(20):
            gallery.refresh()
            assert gallery.search(units(1), top=1)[0][0].name == "Ann" and writer.is_alive()
    writer.join()
    assert "Cy" in gallery.names()


@pytest.mark.parametrize("name", ["fsync", "write"])
def test_a_full_disk_leaves_the_gallery_as_it_was(gallery, monkeypatch, name):
    gallery.add("Cy", units(1))
    real, written = getattr(os, name), []

    def full(file, *data):
        if name == "write" and not written:  # some of it fits
            written.append(real(file, data[0][:9]))
            return written[0]
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(f"plsc.serving.gallery.log.os.{name}", full)
    with pytest.raises(
        UserError, match="cannot be written: No space left on device; the gallery is as it was"
    ):
        gallery.add("Dee", units(1))
    monkeypatch.undo()
    assert Gallery.open(gallery.folder).names() == gallery.names() == ["Ann", "Bob", "Cy"]
    gallery.add("Eve", units(1))
    assert Gallery.open(gallery.folder).names() == ["Ann", "Bob", "Cy", "Eve"]


@pytest.mark.parametrize("step", range(5))
def test_a_new_generation_that_is_not_finished_leaves_the_old_one(gallery, monkeypatch, step):
    """An error, as a kill, at each of the steps of writing a generation."""
    gallery.add("Cy", units(1))
    real, calls = files.write_synced, []

    def fails(*args):
        if len(calls) == step:
            raise OSError(errno.ENOSPC, "No space left on device")
        calls.append(args)
        return real(*args)

    monkeypatch.setattr(files, "write_synced", fails)
    if step == 4:
        monkeypatch.setattr(files.os, "replace", lambda *_: fails())
    with pytest.raises(UserError, match="cannot be written"):
        gallery.upgrade(FakeEmbedder(threshold=0.1))
    monkeypatch.undo()
    opened = Gallery.open(gallery.folder)
    assert opened.names() == ["Ann", "Bob", "Cy"] and (opened.threshold, opened.header.generation) == (0.5, 1)
    opened.upgrade(FakeEmbedder(threshold=0.1))
    assert Gallery.open(gallery.folder).threshold == 0.1
    assert len(list(gallery.folder.iterdir())) == 5


def test_a_full_disk_does_not_take_back_what_is_in_the_log(gallery, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("plsc.serving.gallery.gallery._LEAST_LOG", 1)
    monkeypatch.setattr(files, "write_synced", full)
    gallery.add("Cy", units(50))
    assert "the log could not be made part of the rows" in capsys.readouterr().out
    monkeypatch.undo()
    opened = Gallery.open(gallery.folder)
    assert opened.names() == ["Ann", "Bob", "Cy"] and opened.header.generation == 1


def test_a_build_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_synced", fails)
    with pytest.raises(UserError, match="cannot be written: No space left"):
        Gallery.from_embeddings(tmp_path / "g", FakeEmbedder(), NAMES, units(2), np.arange(2))
    assert not [*tmp_path.iterdir()]


def test_writers_wait_for_each_other(gallery):
    """Objects that know nothing of each other, as those of processes: each opens the lock's file itself."""

    def add(first):
        own = Gallery.open(gallery.folder)
        for number in range(first, first + 15):
            own.add(f"p{number}", units(1, seed=number))

    threads = [threading.Thread(target=add, args=(100 * writer,)) for writer in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gallery.refresh()
    expected = {f"p{100 * writer + number}" for writer in range(3) for number in range(15)}
    assert set(gallery.names()) == {"Ann", "Bob"} | expected
    assert all(gallery.verify(name, units(1, seed=int(name[1:]))).similarity > 0.9999 for name in expected)


def test_readers_search_while_one_thread_writes(gallery):
    errors, done = [], threading.Event()

    def search():
        try:
            while not done.is_set():
                (found,) = gallery.search(units(1), top=1)
                assert found[0].name == "Ann" and found[0].similarity > 0.9999
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    readers = [threading.Thread(target=search) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(50):
        gallery.add(f"p{number}", units(1, seed=50 + number))
        gallery.remove(f"p{number}")
    done.set()
    for reader in readers:
        reader.join()
    assert not errors


def test_a_writer_that_takes_too_long_is_named(gallery, monkeypatch):
    monkeypatch.setattr("plsc.serving.gallery.gallery._WAIT", 0.05)
    with (
        hold(gallery.folder),
        pytest.raises(UserError, match=rf"is in use by pid {os.getpid()} on host .*try again"),
    ):
        gallery.add("Cy", units(1))
    with hold(gallery.folder):
        assert Gallery.open(gallery.folder).search(units(1))[0][0].name == "Ann", "reading needs no lock"
    gallery.add("Cy", units(1))


def test_nobody_acknowledged_is_lost_when_a_writer_is_killed(tmp_path):
    said = kill_again_and_again(tmp_path / "g", kills=4, rows=20, size=8, least_log=1500, seconds=0.25)
    assert "nobody lost" in said
