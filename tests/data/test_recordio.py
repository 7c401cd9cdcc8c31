import os
import re
import struct

import numpy as np
import pytest

from plsc.data.recordio import MAGIC, RecordFile, image_of, pack_image, write_records
from plsc.errors import MissingFileError
from tests.helpers.image_files import INSIGHTFACE, needs_insightface_files
from tests.helpers.refusals import refusal

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
    with write_records(str(tmp_path / "a.rec")) as write:
        for payload in PAYLOADS:
            write(payload)
    return tmp_path / "a.rec"


def payloads(records):
    return [records.payload(position).tobytes() for position in range(len(records))]


def slow_write(payload):
    """dmlc-core's RecordIOWriter::WriteRecord in words: the magic at a multiple of 4 ends a part and is
    omitted."""
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
    assert payloads(records) == PAYLOADS
    assert records.keys.tolist() == list(range(len(PAYLOADS))) and records.offsets.dtype == np.int64
    assert records.name(2) == "record 2 (a.rec @ 20)"


def test_keys_may_be_in_any_order(rec):
    lines = rec.with_suffix(".idx").read_text().splitlines(keepends=True)
    shuffled = np.random.default_rng(0).permutation(len(lines))
    rec.with_suffix(".idx").write_text("".join(lines[number] for number in shuffled))
    records = RecordFile(str(rec))
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
    with write_records(str(tmp_path / "a.rec")) as write:
        for number, (label, image) in enumerate(zip(labels, images)):
            write(pack_image(image, label, number))
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
    with pytest.raises(ZeroDivisionError), write_records(str(rec)) as write:
        write(b"new")
        1 / 0  # noqa: B018
    assert rec.read_bytes() == before and sorted(os.listdir(rec.parent)) == ["a.idx", "a.rec"]


# ---- broken files


@pytest.fixture
def plain(tmp_path):
    """Ten records of 1,000 bytes: record n begins at 1008 n."""
    with write_records(str(tmp_path / "train.rec")) as write:
        for number in range(10):
            write(bytes([number]) * 1000)
    return tmp_path / "train.rec"


def refused(path):
    return refusal(RecordFile, str(path)).replace(f"{path.parent}/", "")


@pytest.mark.parametrize("size, record", [(9_500, 9), (8_070, 8), (1_012, 1)])
def test_a_file_that_is_cut_is_found_before_first_use(plain, size, record):
    os.truncate(plain, size)
    assert refused(plain).startswith(
        f"train.rec: record {record} (train.rec @ {1008 * record}) is damaged or trunc"
    )


def test_what_is_not_a_recordio_file_is_reported(plain, tmp_path):
    damaged = bytearray(plain.read_bytes())
    damaged[:4] = b"\xff\xd8\xff\xe0"
    plain.write_bytes(damaged)
    assert refused(plain) == (
        "train.rec: is not a RecordIO file: it begins with 0xe0ffd8ff, must be 0xced7230a"
    )
    plain.write_bytes(b"")
    assert refused(plain).startswith("train.rec: is not a RecordIO file")
    assert refusal(RecordFile, str(tmp_path / "none.rec"), kind=MissingFileError).endswith(
        "none.rec: no such file"
    )


def test_a_damaged_record_is_named(plain):
    damaged = bytearray(plain.read_bytes())
    damaged[4 * 1008 : 4 * 1008 + 4] = bytes(4)
    plain.write_bytes(damaged)
    assert refused(plain) == (
        "train.rec: record 4 (train.rec @ 4032) is damaged or truncated, or train.idx does not belong to the "
        "file; fetch or make both again"
    )


@pytest.mark.parametrize(
    "lines, said",
    [
        (
            "0\t0\n1\t1000\n",
            "train.rec: record 0 (train.rec @ 0) is damaged or truncated, or train.idx does not",
        ),
        (
            "0\t0\n",
            ("train.rec: record 0 (train.rec @ 0) is damaged or truncated, or train.idx does not belong"),
        ),
        (f"10\t{2**63 - 1}\n", f"train.rec: record 10 (train.rec @ {2**63 - 1}) is damaged or truncated, or"),
        ("0\t0\n1\t0\n", "train.idx: is not a record index, whose lines are 'key<TAB>offset'"),
        ("0\t0\nx\t1008\n", "train.idx: is not a record index, whose lines are 'key<TAB>offset'"),
        ("", "train.idx: is not a record index, whose lines are 'key<TAB>offset'"),
    ],
)
def test_an_index_that_does_not_match_is_refused(plain, lines, said):
    plain.with_suffix(".idx").write_text(lines)
    assert refused(plain).startswith(said)


def test_headers_that_cannot_be_are_named(tmp_path):
    def headers(*payloads):
        for name in ("a.rec", "a.idx"):
            (tmp_path / name).unlink(missing_ok=True)
        with write_records(str(tmp_path / "a.rec")) as write:
            for payload in payloads:
                write(payload)
        return refusal(RecordFile(str(tmp_path / "a.rec")).headers).partition("a.rec: ")[2]

    good = pack_image(b"image", 1.0)
    assert (
        headers(good, b"short")
        == "record 1 (a.rec @ 40) is not an image: its payload is too short for an IRHeader"
    )
    assert headers(good, b"abcd" + MARK).endswith("is not an image: its payload is too short for an IRHeader")
    flags = struct.pack("<IfQQ", 2**31, 0, 0, 0)
    for payload in (flags + b"image", flags + MARK):
        assert headers(good, payload).endswith(
            "is damaged: its header promises more labels than it has bytes"
        )


def test_a_file_that_changes_while_it_is_read_is_noticed(plain):
    records = RecordFile(str(plain))
    os.truncate(plain, 5000)
    assert refusal(records.payload, 7).endswith(
        "record 7 (train.rec @ 7056) is damaged; fetch or make the file again"
    )


@needs_insightface_files
@pytest.mark.parametrize("name, count", [("lfw_mxnet", 969), ("popkorn_adaface", 8)])
def test_real_files_are_written_again_byte_for_byte(name, count, tmp_path):
    source = INSIGHTFACE / name / "train.rec"
    records = RecordFile(str(source))
    assert len(records) == count
    with write_records(str(tmp_path / "a.rec")) as write:
        for position in np.argsort(records.offsets).tolist():
            write(records.payload(position).tobytes())
    assert (tmp_path / "a.rec").read_bytes() == source.read_bytes()


def _header(kind: int, length: int = 0) -> bytes:
    return struct.pack("<II", MAGIC, kind << 29 | length)


@pytest.mark.parametrize("kinds", [(2, 3), (1, 1, 3), (1, 0), (1, 2), (0, 2), (5,)])
def test_parts_that_do_not_follow_each_other_are_refused(tmp_path, kinds):
    path = tmp_path / "a.rec"
    path.write_bytes(b"".join(map(_header, kinds)))
    path.with_suffix(".idx").write_text("0\t0\n")
    assert re.search("is damaged|is not an image", refusal(lambda: RecordFile(str(path)).headers()))
