import json

import numpy as np
import pytest

from plsc.apps.curate.alignment import TEMPLATE
from plsc.apps.curate.landmarks import COLUMNS, read_landmarks
from plsc.errors import MissingFileError, UserError

NUMBERS = ",".join(map(str, TEMPLATE.ravel()))


def read(tmp_path, text, name="landmarks.csv"):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_landmarks(str(tmp_path / name))


@pytest.mark.parametrize(
    "text",
    [
        f"a/1.jpg,{NUMBERS}\n./b.png,{NUMBERS}\na/1.jpg,{NUMBERS}\n",
        f"\ufeffimage_id,lefteye_x{',x' * 9}\r\na/1.jpg,{NUMBERS}\r\na//1.jpg,{NUMBERS}\r\nb.png,{NUMBERS}\r\n\r\n",
        f"x,{','.join(COLUMNS)},file\n1,{NUMBERS},a/1.jpg\n,{NUMBERS},a/1.jpg\n,{NUMBERS},b.png\n,{',' * 9},none.png\n",
    ],
)
def test_a_csv_with_a_header_or_without(tmp_path, text):
    faces = read(tmp_path, text)
    assert {name: len(each) for name, each in faces.items()} == {"a/1.jpg": 2, "b.png": 1}
    assert all(np.array_equal(face, TEMPLATE) for each in faces.values() for face in each)


def test_json_of_one_face_or_several(tmp_path):
    content = {
        "a.jpg": TEMPLATE.tolist(),
        "b.jpg": [TEMPLATE.tolist()],
        "./b.jpg": TEMPLATE.tolist(),
        "c.jpg": [],
    }
    faces = read(tmp_path, json.dumps(content), "landmarks.json")
    assert {name: len(each) for name, each in faces.items()} == {"a.jpg": 1, "b.jpg": 2, "c.jpg": 0}
    assert np.array_equal(faces["b.jpg"][1], TEMPLATE)


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("l.csv", "", "has no landmarks"),
        (
            "l.csv",
            f"a.jpg,{NUMBERS}\nb.jpg,1,2\nc.jpg,{NUMBERS[:-3]}x\n",
            "line 2, line 3: must be .* 2 bad lines",
        ),
        ("l.csv", f"a.jpg,{NUMBERS[:-3]}x\nb.jpg,{NUMBERS}\n", "line 1: must be .* 1 bad lines"),
        ("l.csv", b"\x00\xff\xfe" * 50, "line 1|has no landmarks"),
        ("l.json", "{", "is not JSON"),
        ("l.json", "[" * 100_000, "is not JSON"),
        ("l.json", "[]", "must be an object"),
        ("l.json", "{}", "has no landmarks"),
        ("l.json", '{"a\\n.jpg": [1, 2]}', r"'a\\n.jpg': must be five points"),
        ("l.json", '{"a.jpg": {"nose": 1}}', "must be five points"),
        ("l.json", '{"a.jpg": [[[1, 2]]]}', "must be five points"),
        ("l.json", f'{{"a.jpg": [{"9" * 400}]}}', "must be five points"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, name, text, rule):
    with pytest.raises(UserError, match=rule) as error:
        read(tmp_path, text, name)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(MissingFileError, match="no such file"):
        read_landmarks(str(tmp_path / "no.csv"))
