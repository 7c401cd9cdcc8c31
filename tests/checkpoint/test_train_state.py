"""What a checkpoint knows of its run: it is written again as it was read."""

import json

import pytest
from pydantic import ValidationError

from plsc.checkpoint.train_state import Best, TrainState

WRITTEN = {
    "seed": 0,
    "global_batch": 256,
    "steps_per_epoch": 82,
    "margin": {},
    "threshold": 0.25,
    "optimizer": "Momentum",
    "head": "arcface",
    "replaced": [0, 0],
    "flip": False,
    "best": {"step": 656, "set": "glyph pairs", "metric": "accuracy", "value": 0.98},
    "skipped": 0,
    "in_a_row": 0,
    "rollbacks": 0,
}


def test_a_state_comes_back_byte_for_byte():
    state = TrainState(**WRITTEN)
    assert json.dumps(state.to_json()) == json.dumps(WRITTEN)
    assert state.best == Best(step=656, set="glyph pairs", metric="accuracy", value=0.98)


def test_keys_that_are_not_there_have_defaults_and_stay_away():
    state = TrainState(flip=False, threshold=None)
    assert (state.flip, state.replaced, state.best, state.rollbacks) == (False, [0], None, 0)
    assert state.to_json() == {"threshold": None, "flip": False}


def test_a_key_of_a_newer_version_is_kept():
    assert TrainState(**WRITTEN, later=[1]).to_json() == {**WRITTEN, "later": [1]}


@pytest.mark.parametrize("key, value", [("seed", "0"), ("best", 0.1), ("replaced", [-1]), ("margin", [1])])
def test_a_value_of_another_kind_is_refused(key, value):
    with pytest.raises(ValidationError, match=key):
        TrainState(**{**WRITTEN, key: value})
