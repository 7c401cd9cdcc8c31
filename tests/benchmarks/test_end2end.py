"""The benchmark of whole trainings: this version against itself in another folder, and what it refuses."""

import json

import pytest

from benchmarks import __main__ as benchmark
from plsc.distributed import launcher
from plsc.errors import UserError
from plsc.utils.timing import PARTS
from tests.helpers.launch import ROOT
from tests.helpers.tiny_runs import TINY

pytestmark = pytest.mark.slow


def test_a_training_and_another_version_of_it(tmp_path, capsys, monkeypatch):
    (tmp_path / "plsc").symlink_to(ROOT / "plsc")
    asked_of = []
    launch = launcher.launch
    monkeypatch.setattr(
        launcher, "launch", lambda given, *rest: (asked_of.append(given), launch(given, *rest))[1]
    )
    asked = ["-c", str(TINY), "--ranks", "1", "--steps", "6", "--runs", "1", "--against", str(tmp_path)]
    files = ["--json", str(tmp_path / "found.json"), "--plot", str(tmp_path / "found.png")]
    assert benchmark.main(["end2end", *asked, *files]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["seconds"].keys() == PARTS.keys() and found["over_against"] > 0
    assert len(asked_of) == 2 and all("Global.profile=true" in given for given in asked_of)
    assert found["images_per_second"] > 0 <= found["data_wait"] <= 1
    said = capsys.readouterr().out
    assert " times the other version; a step of " in said and "optimizer" in said
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")


def test_what_it_refuses(tmp_path):
    with pytest.raises(
        UserError, match=f"--against: {tmp_path} is not a checkout of plsc; give the folder that holds"
    ):
        benchmark.main(["end2end", "-c", str(TINY), "--against", str(tmp_path)])
    with pytest.raises(UserError, match=r"Head\.scal"):
        benchmark.main(["end2end", "-o", "Head.scal=3"])
