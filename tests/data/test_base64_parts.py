import base64
import pickle

import pytest

from plsc.data.base64_parts import Base64Parts, label_is_first
from plsc.errors import CorruptImageError, MissingFileError, UserError
from tests.image_files import png


def line(number, label, label_first=False, end="\n"):
    data = base64.b64encode(png(number)).decode()
    return (f"{label}\t{data}" if label_first else f"{data}\t{label}") + end


@pytest.fixture
def parts(tmp_path):
    """Two parts of the two orders."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "part-1").write_text(line(0, 0) + line(1, 1, end="\r\n") + line(2, 1, end=""))
    (tmp_path / "parts" / "part-2").write_text("\ufeff" + line(3, 2, True) + line(4, 0, True))
    (tmp_path / "parts" / ".part").write_text("x")
    return tmp_path / "parts"


def test_both_orders_are_read(parts):
    data = Base64Parts(str(parts), size=(12, 10))
    assert data.labels.tolist() == [0, 1, 1, 2, 0] and data.num_classes == 3 and data.title == "parts"
    assert [data.encoded(index).tobytes() for index in range(5)] == [png(index) for index in range(5)]
    assert data.name(4) == f"{parts}/part-2: line 2"
    copy = pickle.loads(pickle.dumps(data))
    assert copy.sample(4, 0).tobytes() == data.sample(4, 0).tobytes()
    assert Base64Parts(str(parts / "part-1"), size=(12, 10)).num_classes == 2


def test_the_first_line_shows_the_order():
    assert label_is_first(b"1234\tAAAAAAAA\n") is True and label_is_first(b"AAAAAAAA\t1234\r\n") is False
    assert label_is_first(b"12345678\t12") is False  # the longer one is the image
    for bad in (b"", b"12", b"AAAA\tBBBBBBBB", b"1\t", b"\t1", b"AAAA 1", b"1\tAAAA\t2", b"1\t=AAA"):
        assert label_is_first(bad) is None


def test_bad_lines_are_named(parts):
    part = parts / "part-1"
    part.write_text(line(0, 0) + line(1, "x") + "\n" + "\t1\n" + line(1, -1))
    with pytest.raises(
        UserError, match=r"part-1: line 2, 3, 4, 5: must be 'base64<TAB>label'; 4 bad lines in all$"
    ):
        Base64Parts(str(parts))
    part.write_text("images/a.jpg\t0\n")
    with pytest.raises(
        UserError, match=r"part-1: line 1 is neither 'base64<TAB>label' nor 'label<TAB>base64'$"
    ):
        Base64Parts(str(parts))
    part.write_text("")
    with pytest.raises(UserError, match=r"part-1: is empty$"):
        Base64Parts(str(parts))
    with pytest.raises(MissingFileError, match=r"^path: 'none' does not exist \(looked in "):
        Base64Parts.check(path="none")


def test_what_is_not_base64_is_a_corrupt_image(parts):
    (parts / "part-1").write_text(line(0, 0) + "A" * 41 + "\t1\n")
    with pytest.raises(CorruptImageError, match=r"part-1: line 2: not base64 \("):
        Base64Parts(str(parts)).sample(1, 0)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="has no files; give a base64 part, or a folder of them$"):
        Base64Parts(str(tmp_path))
