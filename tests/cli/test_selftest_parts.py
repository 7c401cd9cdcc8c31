"""The rulers of the self-test; its parts on real ranks: tests/cli/test_selftest.py."""

import math

import numpy as np
import pytest

from plsc.cli.selftest import parts
from plsc.cli.selftest.parts import Worst, different_bytes, relative


def test_relative_is_in_units_of_the_largest_wanted_number():
    assert relative([1.0, 10.0], [1.0, 8.0]) == 0.25 and relative([], []) == 0
    with pytest.raises(AssertionError):
        relative([1.0], [1.0, 2.0])


def test_bytes_are_counted():
    assert different_bytes(np.zeros(2, np.int32), np.array([0, 257], np.int32)) == 2


def test_the_worst_stays_and_what_is_no_number_is_worse():
    worst = Worst()
    for error in (1e-3, 1e-1, 1e-2):
        worst.note("loss", error)
    assert worst == {"loss": 1e-1}
    worst.note("loss", float("nan"))
    assert worst["loss"] == math.inf


@pytest.mark.parametrize("machines", [1, 2])
def test_a_checkpoint_is_read_back_from_one_machine_and_from_each_of_several(machines, monkeypatch, tmp_path):
    monkeypatch.setattr(parts.environment, "machines_from_env", lambda: machines)
    monkeypatch.setattr(parts.tempfile, "mkdtemp", lambda prefix: str(tmp_path / "checkpoints"))
    worst = parts.check_reshard()
    assert not any(worst.values()) and "centres bytes, 8 ranks" in worst
    assert not (tmp_path / "checkpoints").exists()
