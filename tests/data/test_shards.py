"""Tar shards: the bits of the folder that they were made of, on any number of ranks and after a kill; what is
damaged or lacks a part."""

import base64
import io
import json
import os
import pickle
import signal
import subprocess
import tarfile
import zlib

import numpy as np
import pytest

from plsc.apps.curate.base64_parts import Base64Parts
from plsc.apps.curate.convert import convert
from plsc.data import shard_index
from plsc.data.autodetect import open_images
from plsc.data.folder import ImageFolder
from plsc.data.image_list import ImageList
from plsc.data.loader import Loader
from plsc.data.pairs import ImagePairs
from plsc.data.rec import RecImages
from plsc.data.shards import Shards
from plsc.errors import MissingFileError, UserError
from tests.helpers.image_files import png, write_folder, write_rec
from tests.helpers.launch import start_python

PEOPLE = {"Ann": 5, "Bob": 7, "Cyé": 4, "J. Dee": 3, "Eve " + 100 * "x": 6, "Fay": 4}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def faces(here):
    """The folder, and shards of it."""
    write_folder(here / "faces", PEOPLE)
    convert("faces", "out", shards=4)


def write_tar(path, members, **options):
    """A .tar with these members, (name, content)."""
    with tarfile.open(path, "w", **options) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def sample(key, label, number, extension=".png"):
    return [(f"{key}{extension}", png(number)), (f"{key}.cls", str(label).encode())]


def batches(data, ranks, steps=range(3), epoch=1):
    """By step, the samples of all ranks in their order: index, label, checksum of the pixels."""
    found = [[] for _ in steps]
    for rank in range(ranks):
        loader = Loader(data, 12, rank, ranks, seed=5, planned_ranks=3)
        for step, (images, labels, indices) in zip(steps, loader.epoch(epoch, steps[0])):
            found[step - steps[0]] += [
                (int(index), int(label), zlib.crc32(image))
                for index, label, image in zip(indices, labels, images)
            ]
    return found


# ---- the same as the folder


@pytest.mark.parametrize("options", [{}, {"hold_out": 0.4}, {"classes": (1, 4)}])
def test_the_bits_are_those_of_the_folder_for_the_same_seed(faces, options):
    options = {**options, "size": (16, 16), "flip": True, "crop": 0.3, "seed": 9}
    folder, shards = ImageFolder("faces", **options), Shards("out", **options)
    assert sorted(os.listdir("out")) == ["00000.tar", "00001.tar", "00002.tar", "00003.tar", "index.npz"]
    assert np.array_equal(folder.identities, shards.identities) and shards.title == "out"
    assert np.array_equal(folder.labels, shards.labels)
    expected = batches(folder, 1)
    assert expected[0] and batches(shards, 1) == batches(shards, 2) == batches(shards, 3) == expected
    assert [shards.encoded(index).tobytes() for index in range(len(shards))] == [
        folder.encoded(index).tobytes() for index in range(len(folder))
    ]


def test_pairs_of_shards_are_those_of_the_folder(faces):
    folder, shards = (ImagePairs(images, hold_out=0.4, num_pairs=10) for images in ("faces", "out"))
    assert np.array_equal(folder.pairs, shards.pairs) and np.array_equal(
        folder.identity_of, shards.identity_of
    )
    assert np.array_equal(folder.images(), shards.images())
    assert shards.image_name(0).startswith("0000") and ".tar: " in shards.image_name(0)


CHILD = """
import os, sys
from tests.data.test_shards import batches
from plsc.data.shards import Shards
data = Shards("out", size=(16, 16), flip=True, seed=9)
print(repr(batches(data, 2, range(1))), flush=True)
sys.stdin.read()
"""


def test_killed_in_mid_epoch_and_resumed_on_other_ranks_the_samples_are_the_same(faces):
    os.remove("out/index.npz")
    child = start_python("-c", CHILD, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    first = eval(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    child.stdin.close()
    child.stdout.close()
    again = Shards("out", size=(16, 16), flip=True, seed=9)
    unbroken = batches(ImageFolder("faces", size=(16, 16), flip=True, seed=9), 1)
    assert first + batches(again, 3, range(1, 3)) == unbroken
    assert sorted(index for step in unbroken for index, _, _ in step) == [*range(29)]


def test_worker_processes_read_them_too(faces):
    made = []
    for workers in (0, 2):
        loader = Loader(Shards("out", size=(16, 16)), 12, 0, 1, seed=5, num_workers=workers)
        made.append(zlib.crc32(b"".join(images.tobytes() for images, _, _ in loader.epoch(0))))
        loader.close()
    assert made[0] == made[1]
    assert len(pickle.loads(pickle.dumps(Shards("out"))).encoded(3)) == len(png(3))


def test_of_many_shards_few_are_open(faces, monkeypatch):
    monkeypatch.setattr(shard_index, "_MOST_OPEN", 2)
    shards, opened = Shards("out"), len(os.listdir("/proc/self/fd"))
    for index in [*range(len(shards))] * 2:
        assert shards.encoded(index).tobytes() == png(index_of(index))
    assert len(os.listdir("/proc/self/fd")) <= opened + 2


def index_of(index):
    """The picture of an index: write_folder numbers them by PEOPLE, the folder sorts the names."""
    numbers = dict(zip(PEOPLE, np.split(np.arange(29), np.cumsum([*PEOPLE.values()])[:-1])))
    return int(np.concatenate([numbers[name] for name in sorted(PEOPLE)])[index])


# ---- written from every format, the same bytes each time


def test_every_format_is_converted_and_comes_back(faces, here):
    write_rec(here / "a.rec", [0, 1, 1, 0, 2])
    lines = "".join(f"faces/Ann/Ann_000{n}.png\t{n % 2}\n" for n in (1, 2, 3, 4))
    (here / "list.txt").write_text(lines)
    sources = {"a.rec": RecImages("a.rec"), "list.txt": ImageList("list.txt"), "out": Shards("out")}
    (here / "parts").mkdir()
    (here / "parts" / "part").write_bytes(
        b"".join(b"%d\t%s\n" % (n // 2, base64.b64encode(png(n))) for n in range(4))
    )
    sources["parts"] = Base64Parts("parts")
    for source, images in sources.items():
        target = f"to-{source[:3]}"
        said = convert(source, target, shards=2)
        assert said == f"{target}: {len(images):,} images of {images.num_classes:,} identities"
        shards = open_images(target)
        assert type(shards) is Shards and shards.labels.tolist() == images.labels.tolist()
        for index in range(len(images)):
            assert shards.encoded(index).tobytes() == images.encoded(index).tobytes()
    with tarfile.open("to-a.r/00000.tar") as tar:
        assert tar.getnames() == ["00000000.png", "00000000.cls", "00000001.png", "00000001.cls", "00000002.png", "00000002.cls"]  # fmt: skip
    assert Shards("to-a.r").identities is None, "held out by their numbers, as those of the .rec"
    for name in os.listdir("out"):
        assert (here / "to-out" / name).exists() == (name in ("00000.tar", "00001.tar", "index.npz"))
    convert("faces", "again", shards=4)
    for name in os.listdir("out"):
        if name.endswith(".tar"):
            assert (here / "again" / name).read_bytes() == (here / "out" / name).read_bytes()
    convert("out", "back")
    assert ImageFolder("back").folders == sorted(PEOPLE)


@pytest.mark.parametrize(
    "target,shards,message",
    [
        ("a.rec", 2, "--to shards: writes a new folder (got the target 'a.rec')"),
        ("new", 30, "--shards: must be in [1, 29], the images of the set, got 30"),
        ("new", 0, "--shards: must be in [1, 29], the images of the set, got 0"),
        ("out", 2, "out: exists already; remove it, or name another target"),
    ],
)
def test_what_convert_refuses(faces, target, shards, message):
    with pytest.raises(UserError) as raised:
        convert("faces", target, shards=shards)
    assert str(raised.value) == message and not os.path.exists("new")


# ---- what others have written


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_formats_of_tar_and_of_labels(here, format):
    long, accent = "a" * 120, "é"
    members = [
        *sample("x/1", 1, 0), ("x/1.txt", b"left out"), ("x/2.png", png(1)), ("x/2.json", b'{"label": 0, "url": "u"}'),
        ("x/3.json", b'{"label": 7}'), ("x/3.cls", b"1\n"), ("x/3.png", png(2)), *sample(f"{long}/{accent}.v.2", 0, 3, ".seg.png"),
    ]  # fmt: skip
    members[-2:] = sample(f"{long}/{accent}", 0, 3)
    data = Shards(str(write_tar(here / "one.tar", members, format=format)))
    assert data.labels.tolist() == [1, 0, 1, 0] and data.identities is None, "0 has pictures in two folders"
    assert [data.encoded(n).tobytes() for n in range(4)] == [png(n) for n in range(4)]
    assert data.name(3) == f"one.tar: {long}/{accent}.png" and os.path.exists("one.index.npz")


def test_labels_may_be_names(here, caplog):
    labels = ["Bob", "Ann", "Bob"]
    members = [part for number, label in enumerate(labels) for part in sample(number, label, number)]
    data = Shards(str(write_tar(here / "one.tar", [*members, ("README", b"x")])))
    assert data.identities.tolist() == ["Ann", "Bob"] and data.labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    "members,message",
    [
        ([("1.png", png(0))], "1 fault: a.tar: 1.png has no label, .cls or .json"),
        ([("1.cls", b"0"), ("2.json", b"{}")], "2 faults: a.tar: 1.cls has no picture; a.tar: 2.json has no picture"),
        ([*sample(1, 0, 0), ("1.jpg", png(1))], "1 fault: a.tar: 1.png is one of 2 pictures of one name"),
        ([("1.png", png(0)), ("2.cls", b"0"), ("1.cls", b"0")], "3 faults: a.tar: 1.png has no label, .cls or .json; a.tar: 2.cls has no picture; a.tar: 1.cls has no picture"),
        (sample(1, "-3", 0), "1 fault: some labels are numbers"),
        ([("1.png", png(0)), ("1.json", b'{"label": 1.5}')], "1 fault: a.tar: 1.json has label '1.5'; it must be a whole number from 0 up, or a name"),
        ([("1.png", png(0)), ("1.json", b"[")], "1 fault: a.tar: 1.json has no value 'label'"),
        ([("1.png", b""), ("1.cls", b"0")], "1 fault: a.tar: 1.png has 0 bytes"),
        ([*sample(1, 0, 0), *sample(2, "Ann", 1)], "1 fault: some labels are numbers, others names, such as 'Ann'"),
        (sample(1, 1, 0), "no image has label 0 (1 of the labels 0 to 1 are missing)"),
    ],
)  # fmt: skip
def test_members_that_lack_a_part_are_named_and_counted(here, members, message):
    (here / "out").mkdir()
    write_tar(here / "out" / "a.tar", [*sample(0, 0 if "label 0" not in message else 1, 9), *members])
    if "numbers" in message and "Ann" not in message:
        message = "1 fault: some labels are numbers, others names, such as '-3'"
    with pytest.raises(UserError) as raised:
        Shards("out")
    assert str(raised.value).startswith(f"out: {message}")


def damage(content, how):
    """A shard of four members (blocks of 512: header, picture, header, label, ..., two empty ones and
    padding)."""
    blocks = [content[start : start + 512] for start in range(0, len(content), 512)]
    return {
        "cut in a header": content[: 2 * 512 + 100],
        "cut in a picture": content[:700],
        "cut between members": content[: 4 * 512],
        "a header overwritten": b"".join([*blocks[:4], b"\xff" * 512, *blocks[5:]]),
        "two archives": content + content,
        "no archive": b"\x89PNG" * 300,
        "empty": b"",
    }[how]


@pytest.mark.parametrize(
    "how,message",
    [
        ("cut in a header", "a.tar is cut off: it ends at byte 1,024 without the mark of an end"),
        ("cut in a picture", "a.tar is cut off, or no tar archive (unexpected end of data)"),
        ("cut between members", "a.tar is cut off: it ends at byte 2,048 without the mark of an end"),
        (
            "a header overwritten",
            "a.tar is damaged at byte 2,048, or is several archives one after the other",
        ),
        ("two archives", "a.tar is damaged at byte "),
        ("no archive", "a.tar is cut off, or no tar archive"),
        ("empty", "a.tar is cut off, or no tar archive"),
    ],
)
def test_a_damaged_shard_is_named(here, how, message):
    (here / "out").mkdir()
    good = write_tar(here / "out" / "b.tar", sample(0, 0, 0)).read_bytes()
    content = write_tar(here / "out" / "a.tar", [*sample(1, 0, 1), *sample(2, 0, 2)]).read_bytes()
    assert len(good) and len(png(1)) <= 512
    (here / "out" / "a.tar").write_bytes(damage(content, how))
    with pytest.raises(UserError) as raised:
        Shards("out")
    assert f"fault: {message}" in str(raised.value) and "b.tar" not in str(raised.value)
    assert not os.path.exists("out/index.npz")


def test_a_link_is_no_picture(here):
    (here / "out").mkdir()
    with tarfile.open("out/a.tar", "w") as tar:
        info = tarfile.TarInfo("1.png")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(UserError, match="1 fault: a.tar: 1.png is no regular file"):
        Shards("out")


def test_a_folder_without_shards(here):
    (here / "out").mkdir()
    (here / "out" / "a.tar.gz").write_bytes(b"x")
    with pytest.raises(UserError, match=r"has no .tar file; a.tar.gz is packed: unpack it"):
        Shards("out")
    with pytest.raises(MissingFileError, match="shards: 'none' does not exist"):
        Shards("none")


# ---- the index


def test_the_index_is_made_once_and_anew_for_other_shards(faces, monkeypatch, here):
    with monkeypatch.context() as patched:
        patched.setattr(shard_index, "scan", lambda paths: pytest.fail("the index was there"))
        assert len(Shards("out")) == 29
    first = (here / "out" / "index.npz").read_bytes()
    write_tar(here / "out" / "more.tar", [*sample("Gil/1", 6, 50), *sample("Gil/2", 6, 51)])
    assert len(Shards("out")) == 31 and (here / "out" / "index.npz").read_bytes() != first
    (here / "out" / "index.npz").write_bytes(first[:200])
    assert len(Shards("out")) == 31


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": -1},
        {"starts": 1},
        {"offsets": 100},
        {"stops": 9},
        {"format": 9},
        {"sizes": 0.5},
        {"labels": None},
    ],
)
def test_an_index_that_does_not_fit_itself_is_made_anew(faces, changes):
    with np.load("out/index.npz") as index:
        arrays = dict(index)
    ((name, value),) = changes.items()
    if value is None:
        del arrays[name]
    elif name == "sizes":
        arrays[name] = arrays[name] * value
    else:
        arrays[name] = np.where(
            np.arange(arrays[name].size).reshape(arrays[name].shape) == 0, value, arrays[name]
        )
    if name == "stops":
        arrays[name][-1] = 7
    np.savez("out/index.npz", **arrays)
    data = Shards("out")
    assert data.labels.tolist() == ImageFolder("faces").labels.tolist()
    with np.load("out/index.npz") as index:
        assert {*index.files} == {*arrays, name} and index["format"] == shard_index.FORMAT


def test_a_shard_that_the_index_has_and_the_folder_lacks(faces):
    os.remove("out/00002.tar")
    with pytest.raises(MissingFileError) as raised:
        Shards("out")
    assert str(raised.value) == (
        "out/index.npz: 1 shard that it has is not there: 00002.tar; fetch them again, or delete the index to go without"
    )


def test_where_no_index_can_be_written_the_shards_are_read_all_the_same(faces, monkeypatch):
    os.remove("out/index.npz")

    def refuse(**options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(shard_index.tempfile, "NamedTemporaryFile", refuse)
    assert len(Shards("out")) == 29 and not os.path.exists("out/index.npz")


def test_another_shard_of_the_same_size_is_noticed_when_it_is_read(faces, here):
    data = Shards("out")
    content = bytearray((here / "out" / "00001.tar").read_bytes())
    place = content.index(b"0002.png")
    content[place : place + 8] = b"0003.png"
    header = place // 512 * 512
    block = bytearray(content[header : header + 512])
    block[148:156] = b" " * 8
    content[header + 148 : header + 155] = b"%06o\0" % sum(block)
    (here / "out" / "00001.tar").write_bytes(content)
    changed = [index for index in range(len(data)) if fails(data, index)]
    assert len(changed) == 1


def fails(data, index):
    try:
        data.encoded(index)
    except UserError as error:
        assert str(error).endswith(
            "the shard has changed since it was indexed; delete the index, and start anew"
        )
        return True
    return False


def test_the_index_has_arrays_of_numbers_and_no_objects(faces):
    with np.load("out/index.npz", allow_pickle=False) as index:
        kinds = {name: index[name].dtype.kind for name in index.files}
        assert (
            sum(index[name].nbytes for name in ("offsets", "sizes", "checksums", "labels", "stops"))
            == 32 * 29
        )
    assert {*kinds.values()} <= {"i", "u", "U"}
    assert json.dumps(sorted(kinds)) and "labels" in kinds
