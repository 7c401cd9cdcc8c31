"""The figures of the network at the start of a training on several machines, whose bits they leave alone; on
ranks: run_collectives.py."""

import pytest

from plsc.distributed import network
from tests.helpers.launch import ROOT, launch
from tests.helpers.tiny_runs import TINY, rows

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seconds, rounds", [(1e-9, 20), (0.05, 4), (0.2, 1), (60, 1)])
def test_slow_networks_have_fewer_rounds(seconds, rounds):
    assert network._rounds(seconds) == rounds


def test_a_training_on_several_machines_says_them_and_keeps_its_bits(tmp_path):
    runs = {}
    for machines in ("1", "2"):
        folder = tmp_path / machines
        folder.mkdir()
        given = ["Global.max_steps=2", "DataLoader.Eval.dataset=null", "Global.output_dir=out"]
        launch(ROOT / "tools/train.py", 2, folder, "-c", TINY, "-o", *given, PLSC_MACHINES=machines)
        runs[machines] = [row["loss"] for row in rows(folder / "out")]
        lines = (folder / "out/train.log").read_text().splitlines()
        said = [line for line in lines if "network: 2 ranks on 2 machines: all_reduce " in line]
        assert len(said) == (machines == "2")
    assert len(runs["1"]) == 2 and runs["1"] == runs["2"]
