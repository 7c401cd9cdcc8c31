"""Centres of other programs become a checkpoint's."""

import numpy as np
import pytest

from plsc import cli
from plsc.apps.migrate.import_centres import import_centres
from plsc.checkpoint.centres import export_centres
from plsc.checkpoint.store import Checkpoint
from plsc.cli.ckpt import inspect
from plsc.errors import UserError
from plsc.training.thresholds import thresholds_of
from plsc.utils.calibration import Calibration
from tests.apps.migrate import test_shards as foreign
from tests.helpers.checkpoints import assert_same, content, save_ranks


def test_shards_of_another_program_become_a_checkpoint(tmp_path):
    foreign.partial_fc(tmp_path, 3)
    said = import_centres([str(tmp_path)], str(tmp_path / "out"))
    assert said == f"{tmp_path}/out: 11 classes x 4 from 3 ranks of Partial FC v1 (centres, momentum)"
    made = Checkpoint.open(tmp_path / "out")
    assert_same(made.head(0, 11), {"centres": foreign.CENTRES, "momentum": foreign.MOMENTUM})
    assert [(part.start, part.stop) for part in made.manifest.heads] == [(0, 4), (4, 8), (8, 11)]
    assert (made.arrays("backbone"), made.arrays("optimizer"), made.manifest.world_size, made.step) == (
        {},
        {},
        3,
        0,
    )
    assert inspect(str(made.path))["num_classes"] == 11
    export_centres(str(made.path), str(tmp_path / "a.npy"))
    assert np.array_equal(np.load(tmp_path / "a.npy"), foreign.CENTRES)


def test_the_network_of_another_checkpoint_goes_along(tmp_path):
    foreign.plsc_0_1(tmp_path, 2)
    everything = content(1, classes=0)
    meaning = {"method": "logistic", "set": "pairs", "step": 9, "pairs": 10, "prior": 0.5}
    meaning.update(cosine=[0.0, 1.0], log_odds=[-2.0, 2.0])
    calibration = Calibration.from_json(meaning, "here")
    everything["state"] = {
        "run": {"seed": 9},
        "evaluation": {"threshold": 0.3, "calibration": calibration.to_json()},
    }
    (network, *_) = save_ranks(tmp_path / "net", 9, everything, 1)
    import_centres([str(tmp_path)], str(tmp_path / "out"), str(network))
    made = Checkpoint.open(tmp_path / "out")
    assert_same(made.arrays("backbone"), everything["backbone"])
    assert made.arrays("optimizer") == {} and made.step == 0
    assert (made.preprocessing, made.config_yaml) == (everything["preprocessing"], everything["config_yaml"])
    assert thresholds_of(made).threshold == 0.3 and thresholds_of(made).calibration == calibration
    assert "run" not in made.manifest.state
    assert np.array_equal(made.head(0, 11)["bias"], foreign.BIAS)


def test_a_network_of_another_width_is_refused(tmp_path):
    foreign.partial_fc(tmp_path, 1)
    (network, *_) = save_ranks(tmp_path / "net", 9, content(1, dim=5), 1)
    with pytest.raises(UserError) as raised:
        import_centres([str(tmp_path)], str(tmp_path / "out"), str(network))
    assert str(raised.value) == f"{network}: gives embeddings of 5 numbers, the centres have 4"
    assert not (tmp_path / "out").exists()


def test_the_verb(tmp_path, capsys):
    foreign.partial_fc(tmp_path, 2)
    command = ["ckpt", "import-centres", str(tmp_path), "--output", str(tmp_path / "out"), "--classes"]
    assert cli.main([*command, "12"]) == 2
    assert capsys.readouterr().err.endswith("the 2 ranks have 11 classes together, not 12\n")
    assert cli.main([*command, "11"]) == 0
    assert "11 classes x 4 from 2 ranks" in capsys.readouterr().out
