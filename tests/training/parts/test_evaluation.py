"""What an evaluation within a training leaves for its checkpoints."""

from types import SimpleNamespace

import pytest

from plsc.training.parts.evaluation import Evaluation


@pytest.mark.parametrize("flip", [False, True])
def test_a_threshold_of_other_embeddings_is_left_out(flip):
    part = Evaluation(SimpleNamespace(flip=flip), 1, None)
    part.load_state_dict({"threshold": 0.3, "flip": False})
    assert part.state_dict() == ({"flip": True} if flip else {"threshold": 0.3, "flip": False})
