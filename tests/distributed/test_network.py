"""The figures of the network, on ranks whose random numbers they leave alone."""

from pathlib import Path

import pytest

from plsc.distributed import network
from tests.launch import launch


def test_all_ranks_have_figures_and_keep_their_random_numbers(tmp_path):
    said = launch(Path(__file__).with_name("run_network.py"), 2, tmp_path).stdout
    assert said.count("measured all_reduce ") == 2


@pytest.mark.parametrize("seconds, rounds", [(1e-9, 20), (0.05, 4), (0.2, 1), (60, 1)])
def test_slow_networks_have_fewer_rounds(seconds, rounds):
    assert network._rounds(seconds) == rounds
