"""The bank: initial rows for any split, and the rows of a step."""

import numpy as np
import paddle
import pytest

from plsc.heads.banks import bank as bank_module
from plsc.heads.banks import build_bank
from plsc.heads.banks.bank import initial_rows
from plsc.heads.optimizer import Momentum
from plsc.heads.sampling import ClassShard
from plsc.utils.sharding import split


@pytest.fixture(params=["device", "host"])
def make(request):
    def made(shard=None, **options):
        options = {"bias": True, "std": 0.5, "seed": 1, "rule": Momentum(0.9, 1e-2), **options}
        return build_bank(request.param, "float32", ".", shard or ClassShard(11, 0, 11), 4, **options)

    return made


@pytest.mark.parametrize("parts", [1, 3, 4, 16])
def test_initial_rows_do_not_depend_on_the_split(parts, monkeypatch):
    monkeypatch.setattr(bank_module, "INIT_ROWS", 4)
    whole = initial_rows(7, 0, 11, 5, 0.01)
    cut = [initial_rows(7, start, stop, 5, 0.01) for start, stop in split(11, parts)]
    assert np.concatenate(cut).tobytes() == whole.tobytes()
    assert len(np.unique(whole)) == whole.size and not np.array_equal(whole, initial_rows(8, 0, 11, 5, 0.01))


def test_selected_rows_alone_are_read_and_moved(make):
    bank = make(bias=False)
    before = {name: rows.copy() for name, rows in bank.state().items()}
    selection = bank.select(np.array([2, 5, 9]))
    assert selection.count == 3
    assert selection.rows("centres", 1, 3).numpy().tobytes() == before["centres"][[5, 9]].tobytes()
    picked = selection.gather("centres", paddle.to_tensor([2, 0, 0])).numpy()
    assert picked.tobytes() == before["centres"][[9, 2, 2]].tobytes()
    selection.set_gradient("centres", 0, 3, paddle.ones([3, 4]))
    selection.update(0.1)
    moved = bank.state()["centres"] != before["centres"]
    assert np.flatnonzero(moved.all(axis=1)).tolist() == [2, 5, 9] and moved.sum() == 12
    assert np.flatnonzero(bank.state()["momentum"].any(axis=1)).tolist() == [2, 5, 9]
