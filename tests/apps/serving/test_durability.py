"""Galleries on the disk: processes that are killed, disks that are full, and two that write at once."""

import errno
import os
import shutil
import threading

import numpy as np
import pytest

from plsc import Gallery
from plsc.apps.serving.gallery import files, log
from plsc.checkpoint.tensorfile import crc32_of, layout
from plsc.distributed.lock import hold
from plsc.errors import MissingFileError, UserError
from tests.apps.serving.fake_embedder import FakeEmbedder, pictures, units
from tests.apps.serving.kill_adders import kill_again_and_again

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


@pytest.mark.parametrize(
    ("fields", "embeddings"),
    [
        ({"add": "Cy", "sources": []}, None),
        ({"add": "Cy", "sources": []}, np.full((1, 8), np.nan)),
        ({"remove": "Ann"}, units(1)),
    ],
)
def test_a_change_without_its_embeddings_is_refused(gallery, fields, embeddings):
    log_of(gallery).write_bytes(log.encode(fields, embeddings))
    with pytest.raises(UserError, match="the record at byte 0 fails its checksum"):
        Gallery.open(gallery.folder)


def test_a_log_that_is_a_link_is_not_written_through(gallery, tmp_path):
    (tmp_path / "other").write_bytes(b"")
    log_of(gallery).unlink()
    log_of(gallery).symlink_to(tmp_path / "other")
    with pytest.raises(UserError, match="cannot be written"):
        Gallery.open(gallery.folder).add("Cy", units(1))
    assert (tmp_path / "other").read_bytes() == b""


def test_a_pipe_in_the_place_of_a_file_is_refused(gallery):
    gallery.add("Cy", units(1))
    for path in (gallery.folder / ".lock", log_of(gallery), gallery.folder / files.HEADER):
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(UserError, match="is a pipe"):
            Gallery.open(gallery.folder)


def test_an_array_that_is_no_embedding_is_refused(gallery):
    log_of(gallery).write_bytes(log.encode({"add": "Cy", "sources": [], "trained": False}, units(1, size=7)))
    with pytest.raises(UserError, match="the record at byte 0"):
        Gallery.open(gallery.folder)


@pytest.mark.parametrize(
    "people",
    [
        "[]",
        "{}",
        "no JSON",
        "[" * 100_000,
        '{"names": ["Ann", "Ann"], "sources": [[], []]}',
        '{"names": [1, 2], "sources": [[], []]}',
        '{"names": "ab", "sources": [[], []]}',
        '{"names": ["Ann", "Bob"], "sources": [[1], []]}',
        '{"names": ["Ann", "Bob", "of no row"], "sources": [[], [], []]}',
    ],
)
def test_people_who_do_not_fit_the_rows_are_refused(gallery, people):
    path = gallery.folder / gallery.header.people_file
    path.write_text(people)
    _state_sums(gallery, path)
    with pytest.raises(UserError, match="does not fit people-1.json; restore the gallery"):
        Gallery.open(gallery.folder)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e30])
def test_rows_that_are_no_embeddings_are_refused(gallery, wrong):
    """Compared with NaN no other row of its block would be the nearest."""
    path = gallery.folder / gallery.header.rows_file
    content = files.read(gallery.folder, gallery.header)
    embeddings = content.embeddings.copy()
    embeddings[1, 3] = wrong
    arrays = {"embeddings": embeddings, "owners": content.owners, "lengths": content.lengths}
    path.write_bytes(b"".join(map(bytes, layout(arrays))))
    _state_sums(gallery, path)
    with pytest.raises(UserError, match="does not fit people-1.json; restore the gallery"):
        Gallery.open(gallery.folder)


def _state_sums(gallery, path):
    """State a file's size and checksum in gallery.json, as somebody does who means to deceive."""
    sums = {"bytes": path.stat().st_size, "crc32": crc32_of(path)}
    changed = {**gallery.header.files, path.name: files.FileSum(**sums)}
    files.write_header(gallery.folder, gallery.header.model_copy(update={"files": changed}))


def test_searching_goes_on_while_another_process_has_the_lock(gallery, monkeypatch):
    """A thread that waits to write does not stop those that read."""
    monkeypatch.setattr("plsc.apps.serving.gallery.gallery._WAIT", 20.0)
    with hold(gallery.folder):
        writer = threading.Thread(target=gallery.add, args=("Cy", units(1)))
        writer.start()
        for _ in range(20):
            gallery.refresh()
            assert gallery.search(units(1), top=1, threshold=0.5)[0][0].name == "Ann" and writer.is_alive()
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

    monkeypatch.setattr(f"plsc.apps.serving.gallery.log.os.{name}", full)
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
    assert not (gallery.folder / "rows-2.safetensors").exists(), "a part of it must not fill the disk"
    opened = Gallery.open(gallery.folder)
    assert (
        opened.names() == ["Ann", "Bob", "Cy"]
        and opened.pair_threshold == 0.5
        and opened.header.generation == 1
    )
    opened.upgrade(FakeEmbedder(threshold=0.1))
    assert Gallery.open(gallery.folder).pair_threshold == 0.1
    assert len(list(gallery.folder.iterdir())) == 5


def test_a_full_disk_does_not_take_back_what_is_in_the_log(gallery, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("plsc.apps.serving.gallery.gallery._LEAST_LOG", 1)
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


def test_a_build_leaves_what_another_one_is_writing(tmp_path, monkeypatch):
    """Two that began at the same time: neither has found anything there."""
    monkeypatch.setattr(files, "refuse_existing", lambda _: None)
    (tmp_path / "g.tmp" / "rows").mkdir(parents=True)
    with pytest.raises(UserError, match=r"g\.tmp: cannot be written: File exists"):
        Gallery.from_embeddings(tmp_path / "g", FakeEmbedder(), NAMES, units(2), np.arange(2))
    assert (tmp_path / "g.tmp" / "rows").exists()


def test_a_gallery_that_was_removed_is_not_made_again(gallery):
    shutil.rmtree(gallery.folder)
    for change in (lambda: gallery.add("Cy", units(1)), gallery.refresh, lambda: gallery.remove("Ann")):
        with pytest.raises(MissingFileError, match="is no gallery"):
            change()
    assert not gallery.folder.exists()


@pytest.mark.parametrize("size", [8, 12])
def test_a_writer_that_waited_for_an_upgrade_adds_nothing(gallery, size):
    """Its embeddings are of the network before."""
    before, after = FakeEmbedder(), FakeEmbedder(seed=1, size=size)
    others = [Gallery.open(gallery.folder) for _ in range(2)]
    gallery.upgrade(after, {name: pictures(1) for name in NAMES})
    with pytest.raises(UserError, match=r"of the network run 1 .*, these are of run 0"):
        others[0].add("Cy", units(1))
    with pytest.raises(UserError, match=r"of the network run 1 .*, these are of run 0"):
        others[1].add("Cy", units(1), embedder=before)
    opened = Gallery.open(gallery.folder)
    assert opened.names() == NAMES
    opened.add("Cy", units(1, size), embedder=after)


def test_a_threshold_that_is_set_while_the_gallery_is_read_is_seen_later(gallery, monkeypatch):
    real, other = files.read_header, Gallery.open(gallery.folder)

    def read_header(folder):
        header = real(folder)
        monkeypatch.undo()
        other.set_threshold(0.9)
        return header

    monkeypatch.setattr(files, "read_header", read_header)
    opened = Gallery.open(gallery.folder)
    opened.refresh()
    assert opened.threshold == 0.9


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
                (found,) = gallery.search(units(1), top=1, threshold=0.5)
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
    monkeypatch.setattr("plsc.apps.serving.gallery.gallery._WAIT", 0.05)
    with (
        hold(gallery.folder),
        pytest.raises(UserError, match=rf"is in use by pid {os.getpid()} on host .*try again"),
    ):
        gallery.add("Cy", units(1))
    with hold(gallery.folder):
        assert Gallery.open(gallery.folder).search(units(1), threshold=0.5)[0][0].name == "Ann", (
            "reading needs no lock"
        )
    gallery.add("Cy", units(1))


def test_nobody_acknowledged_is_lost_when_a_writer_is_killed(tmp_path):
    said = kill_again_and_again(tmp_path / "g", kills=4, rows=20, size=8, least_log=1500, seconds=0.25)
    assert "nobody lost" in said


def test_a_gallery_that_may_only_be_read(gallery, monkeypatch):
    def refuse(_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("plsc.distributed.lock._open", refuse)
    with pytest.raises(
        UserError, match=r"^\S+/g/\.lock: cannot be written: Read-only file system; name another"
    ):
        gallery.add("Cy", units(1))
    assert Gallery.open(gallery.folder).search(units(1), threshold=0.5)[0][0].name == "Ann"
