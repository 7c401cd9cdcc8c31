import os
import struct

import numpy as np
import pytest

from plsc.data.recordio import MAGIC, RecordFile, RecordWriter, image_of, pack_image
from plsc.errors import MissingFileError, UserError
from tests.helpers.image_files import INSIGHTFACE, needs_insightface_files

MARK = struct.pack("<I", MAGIC)
# Empty, aligned and unaligned, alone, doubled, at the beginning and at the end.
PAYLOADS = [
    b"",
    b"a",
    b"1234567",
    MARK,
    MARK * 2,
    b"abcd" + MARK,
    b"abc" + MARK,
    MARK + b"12345" + MARK,
    (b"abcd" + MARK) * 5,
]
PAYLOADS += [np.random.default_rng(n).bytes(4 * n) + MARK * (n % 3) + b"x" * (n % 7) for n in range(40)]


@pytest.fixture
def rec(tmp_path):
    with RecordWriter(str(tmp_path / "a.rec")) as writer:
        for payload in PAYLOADS:
            writer.write(payload)
    return tmp_path / "a.rec"


def payloads(records):
    return [records.payload(position).tobytes() for position in range(len(records))]


def slow_write(payload):
    """dmlc-core's RecordIOWriter::WriteRecord in words: the magic at a multiple of 4 ends a part and is left
    out."""
    parts, start = [], 0
    for at in range(0, len(payload) // 4 * 4, 4):
        if payload[at : at + 4] == MARK:
            parts.append(payload[start:at])
            start = at + 4
    parts.append(payload[start:])
    written = b""
    for number, part in enumerate(parts):
        kind = 0 if len(parts) == 1 else 1 if number == 0 else 3 if number == len(parts) - 1 else 2
        written += MARK + struct.pack("<I", kind << 29 | len(part)) + part
    return written + b"\0" * (-len(payload) % 4)


def test_what_is_written_is_read_and_is_what_mxnet_writes(rec):
    assert rec.read_bytes() == b"".join(map(slow_write, PAYLOADS))
    records = RecordFile(str(rec))
    assert not records.scanned and payloads(records) == PAYLOADS
    assert records.keys.tolist() == list(range(len(PAYLOADS))) and records.offsets.dtype == np.int64
    assert records.name(2) == "record 2 (a.rec @ 20)"


def test_without_an_index_the_records_are_found(rec):
    offsets = RecordFile(str(rec)).offsets
    rec.with_suffix(".idx").unlink()
    records = RecordFile(str(rec))
    assert records.scanned and np.array_equal(records.offsets, offsets) and payloads(records) == PAYLOADS
    assert not rec.with_suffix(".idx").exists(), "nothing is written unasked"


def test_keys_may_be_in_any_order(rec):
    lines = rec.with_suffix(".idx").read_text().splitlines(keepends=True)
    shuffled = np.random.default_rng(0).permutation(len(lines))
    other = rec.with_name("other.idx")
    other.write_text("".join(lines[number] for number in shuffled))
    records = RecordFile(str(rec), str(other))
    assert records.keys.tolist() == shuffled.tolist()
    assert payloads(records) == [PAYLOADS[number] for number in shuffled]


def test_headers_are_those_of_the_payloads(tmp_path):
    rng = np.random.default_rng(1)
    labels = [
        3.0,
        (4.0, 5.0),
        (6.0,),
        (7.0, 8.0, 9.0),
        2.5,
        struct.unpack("<f", MARK)[0],
        (1.0, struct.unpack("<f", MARK)[0]),
    ]
    images = [rng.bytes(int(n)) for n in rng.integers(0, 50, len(labels))]
    with RecordWriter(str(tmp_path / "a.rec")) as writer:
        for number, (label, image) in enumerate(zip(labels, images)):
            writer.write(pack_image(image, label, number))
    records = RecordFile(str(tmp_path / "a.rec"))
    headers = records.headers()
    vectors = [label if isinstance(label, tuple) else (label,) for label in labels]
    assert headers.labels.tolist() == [label[0] for label in vectors]
    flags = [isinstance(label, tuple) for label in labels]
    assert headers.vectors.tolist() == flags
    assert headers.image_bytes.tolist() == [*map(len, images)]
    assert [image_of(records.payload(n)).tobytes() for n in range(len(labels))] == images


def test_nothing_half_written_keeps_the_name(rec):
    before = rec.read_bytes()
    with pytest.raises(ZeroDivisionError), RecordWriter(str(rec)) as writer:
        writer.write(b"new")
        1 / 0  # noqa: B018
    assert rec.read_bytes() == before and sorted(os.listdir(rec.parent)) == ["a.idx", "a.rec"]


# ---- broken files


@pytest.fixture
def plain(tmp_path):
    """Ten records of 1,000 bytes: record n begins at 1008 n."""
    with RecordWriter(str(tmp_path / "train.rec")) as writer:
        for number in range(10):
            writer.write(bytes([number]) * 1000)
    return tmp_path / "train.rec"


def refusal(path, index=""):
    with pytest.raises(UserError) as raised:
        RecordFile(str(path), index)
    said = str(raised.value).replace(f"{path.parent}/", "")
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    "size, record", [(10_079, 9), (9_500, 9), (8_070, 8), (8_064, 8), (3_000, 2), (1_012, 1)]
)
def test_a_file_that_is_cut_is_found_before_first_use(plain, size, record):
    os.truncate(plain, size)
    said = refusal(plain)
    needed = f"{(10_080 if size > 9_080 else 9_080) / 1e6:.1f} MB"
    assert said == (
        f"train.rec ends inside record {record} of 10: the file is cut (have {size / 1e6:.1f} MB, index needs at least {needed}); "
        "fetch or make it again"
    )
    plain.with_suffix(".idx").unlink()
    if size != 8_064:  # between two records: only an index, or InsightFace's header record, can tell
        assert refusal(plain).startswith(f"train.rec ends inside record {record}: the file is cut (have ")


def test_a_split_record_that_lacks_its_last_part_is_found(tmp_path):
    with RecordWriter(str(tmp_path / "a.rec")) as writer:
        writer.write(b"abcd" + MARK + b"efgh")
    os.truncate(tmp_path / "a.rec", 12)
    assert refusal(tmp_path / "a.rec").startswith("a.rec ends inside record 0 of 1: the file is cut")


def test_what_is_no_recordio_file_is_said(plain, tmp_path):
    damaged = bytearray(plain.read_bytes())
    damaged[:4] = b"\xff\xd8\xff\xe0"
    plain.write_bytes(damaged)
    assert refusal(plain) == "train.rec: is no RecordIO file: it begins with 0xe0ffd8ff, must be 0xced7230a"
    plain.write_bytes(b"")
    assert refusal(plain).startswith("train.rec: is no RecordIO file")
    with pytest.raises(MissingFileError, match=r"none.rec: no such file$"):
        RecordFile(str(tmp_path / "none.rec"))
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        RecordFile(str(tmp_path))


def test_a_damaged_record_is_named(plain):
    damaged = bytearray(plain.read_bytes())
    damaged[4 * 1008 : 4 * 1008 + 4] = bytes(4)
    plain.write_bytes(damaged)
    wanted = (
        "train.rec: record 4 (train.rec @ 4032) is damaged: it begins with 0x00000000, must be 0xced7230a"
    )
    assert refusal(plain).startswith(wanted)
    plain.with_suffix(".idx").unlink()
    assert (
        refusal(plain)
        == "train.rec: record 4 @ 4032 is damaged: it begins with 0x00000000, must be 0xced7230a"
    )


DELETE = "delete it, and the records are found by a scan"


@pytest.mark.parametrize(
    "lines, said",
    [
        (
            "0\t0\n1\t1000\n",
            "does not belong to train.rec: no record begins at byte 1000, where it has record 1",
        ),
        (
            "0\t0\n1\t1010\n",
            "does not belong to train.rec: no record begins at byte 1010, where it has record 1",
        ),
        (
            "0\t0\n1\t2016\n",
            "does not belong to train.rec: record 0 (train.rec @ 0) ends at 1008, but the next is said to begin",
        ),
        (
            "0\t0\n",
            "does not belong to train.rec: record 0 (train.rec @ 0) ends at 1008, but the next is said to begin at 10080",
        ),
        ("0\t0\n1\t0\n", "has a key or an offset twice, or one below 0"),
        ("0\t0\n0\t1008\n", "has a key or an offset twice, or one below 0"),
        ("0\t-8\n", "has a key or an offset twice, or one below 0"),
        ("0\t0\nx\t1008\n", "is no index of records, whose lines are 'key<TAB>offset'"),
        ("0 0 1\n1008\n1\n", "is no index of records, whose lines are 'key<TAB>offset'"),
        ("", "is no index of records, whose lines are 'key<TAB>offset'"),
    ],
)
def test_an_index_that_does_not_match_is_refused(plain, lines, said):
    plain.with_suffix(".idx").write_text(lines)
    found = refusal(plain)
    assert found.startswith(f"train.idx: {said}") and found.endswith(f"; {DELETE}")


@pytest.mark.parametrize("offset", [2**60, 2**63 - 1, 2**70])
def test_offsets_of_2_to_the_60_take_no_memory(plain, offset):
    index = plain.with_suffix(".idx")
    index.write_text(index.read_text() + f"10\t{offset}\n")
    wanted = f"record 9 (train.rec @ 9072) ends at 10080, but the next is said to begin at {min(offset, 2**63 - 1)}; {DELETE}"
    assert refusal(plain).endswith(wanted)
    index.write_text(f"10\t{offset}\n")
    assert refusal(plain).startswith(
        "train.rec ends inside record 0 of 1: the file is cut (have 0.0 MB, index needs at least "
    )


def test_a_length_beyond_the_file_is_found(plain):
    damaged = bytearray(plain.read_bytes())
    damaged[4:8] = struct.pack("<I", 2**29 - 1)
    plain.write_bytes(damaged)
    assert refusal(plain).startswith(
        "train.rec ends inside record 0 of 10: the file is cut (have 0.0 MB, index needs at least 536.9"
    )


def test_headers_that_cannot_be_are_named(tmp_path):
    def headers(*payloads):
        with RecordWriter(str(tmp_path / "a.rec")) as writer:
            for payload in payloads:
                writer.write(payload)
        with pytest.raises(UserError) as raised:
            RecordFile(str(tmp_path / "a.rec")).headers()
        return str(raised.value).partition("a.rec: ")[2]

    good = pack_image(b"image", 1.0)
    assert (
        headers(good, b"short")
        == "record 1 (a.rec @ 40) is no image: its payload is too short for an IRHeader"
    )
    assert headers(good, b"abcd" + MARK).endswith("is no image: its payload is too short for an IRHeader")
    flags = struct.pack("<IfQQ", 2**31, 0, 0, 0)
    for payload in (flags + b"image", flags + MARK):
        assert headers(good, payload).endswith(
            "is damaged: its header promises more labels than it has bytes"
        )


def test_a_file_that_changes_while_it_is_read_is_noticed(plain):
    records = RecordFile(str(plain))
    os.truncate(plain, 5000)
    with pytest.raises(
        UserError, match=r"record 7 \(train.rec @ 7056\) has changed since the file was opened; start anew$"
    ):
        records.payload(7)


@needs_insightface_files
@pytest.mark.parametrize("name, count", [("lfw_mxnet", 969), ("popkorn_adaface", 8)])
def test_real_files_are_written_again_byte_for_byte(name, count, tmp_path):
    source = INSIGHTFACE / name / "train.rec"
    records = RecordFile(str(source))
    assert len(records) == count
    with RecordWriter(str(tmp_path / "a.rec")) as writer:
        for position in np.argsort(records.offsets).tolist():
            writer.write(records.payload(position).tobytes())
    assert (tmp_path / "a.rec").read_bytes() == source.read_bytes()


def _header(kind: int, length: int = 0) -> bytes:
    return struct.pack("<II", MAGIC, kind << 29 | length)


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize(
    "kinds",
    [(2, 3), (3,), (1, 1, 3), (1, 0), (1, 2), (0, 2), (5,)],
    ids=lambda kinds: "-".join(map(str, kinds)),
)
def test_parts_that_do_not_follow_each_other_are_refused(tmp_path, kinds, index):
    path = tmp_path / "a.rec"
    path.write_bytes(b"".join(map(_header, kinds)))
    if index:
        path.with_suffix(".idx").write_text("0\t0\n")
    with pytest.raises(UserError, match="is damaged|ends inside record|does not belong to") as raised:
        RecordFile(str(path))
    assert "\n" not in str(raised.value)


def test_the_parts_of_records_are_looked_at_once(tmp_path, monkeypatch):
    """An index that calls each of many empty parts a record; each was followed to the end of the file."""
    count, path = 2000, tmp_path / "a.rec"
    path.write_bytes(_header(1) * count + _header(3))
    path.with_suffix(".idx").write_text("".join(f"{number}\t{8 * number}\n" for number in range(count)))
    looked_at = []
    monkeypatch.setattr("plsc.data.recordio._padded", lambda length: looked_at.append(length) or 0)
    with pytest.raises(UserError, match="is damaged: a part of kind 1, must be of kind 3"):
        RecordFile(str(path))
    assert len(looked_at) <= 2 * count


def test_a_pipe_is_no_record_file(tmp_path):
    os.mkfifo(tmp_path / "a.rec")
    with pytest.raises(UserError, match="a.rec: is a pipe, no regular file"):
        RecordFile(str(tmp_path / "a.rec"))
