"""PLSC's base64 parts, and that plsc convert reads them."""

import base64
import os

import pytest

from plsc.apps.curate.base64_parts import Base64Parts
from plsc.apps.curate.convert import convert
from plsc.config import load
from plsc.data.autodetect import open_images
from plsc.errors import CorruptImageError, UserError
from plsc.utils.messages import ConfigError
from tests.helpers.image_files import png


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
    data = Base64Parts(str(parts))
    assert data.labels.tolist() == [0, 1, 1, 2, 0] and data.num_classes == 3
    assert [data.encoded(index).tobytes() for index in range(5)] == [png(index) for index in range(5)]
    assert data.name(4) == f"{parts}/part-2: line 2"
    assert Base64Parts(str(parts / "part-1")).num_classes == 2


def test_they_are_converted(parts, tmp_path):
    for source, count in ((parts, 5), (parts / "part-1", 3)):
        target = str(tmp_path / f"{count}.rec")
        assert convert(str(source), target).startswith(f"{target}: {count} images")
        found = open_images(target)
        assert {found.encoded(index).tobytes() for index in range(count)} == {png(n) for n in range(count)}


def test_a_config_that_names_them_is_told_what_to_do():
    line = "dataset 'Base64Parts' is gone: convert its files, plsc convert PATH NAME.rec, and read that by RecImages"
    with pytest.raises(ConfigError, match=line):
        load(None, ["DataLoader.Train.dataset={name: Base64Parts, path: parts}"])


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
    part.unlink()
    os.mkfifo(part)
    with pytest.raises(UserError, match=r"part-1: is a pipe, no regular file"):
        Base64Parts(str(part))


def test_what_is_not_base64_is_a_corrupt_image(parts):
    (parts / "part-1").write_text(line(0, 0) + "A" * 41 + "\t1\n")
    with pytest.raises(CorruptImageError, match=r"part-1: line 2: not base64 \("):
        Base64Parts(str(parts)).encoded(1)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="has no files; give a base64 part, or a folder of them$"):
        Base64Parts(str(tmp_path))
