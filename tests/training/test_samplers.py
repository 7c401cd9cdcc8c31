"""Runs with other orders than a shuffle: length of an epoch, exact resume, and what does not fit is refused
before a step."""

import pytest

from plsc.errors import UserError
from tests.helpers.tiny_runs import assert_same_arrays, checkpoint, make_trainer, train

SHORT = ("DataLoader.Eval.dataset=null", "Checkpoint.keep=9")
PK = "DataLoader.Train.sampler={name: pk, samples: 4}"
BALANCED = "DataLoader.Train.sampler={name: balanced, per_class: 3}"


@pytest.mark.parametrize(("sampler", "steps"), [(PK, 7), (BALANCED, 6)])
def test_a_run_is_resumed_exactly_in_the_middle_of_an_epoch(tmp_path, sampler, steps):
    whole = train(tmp_path / "whole", *SHORT, sampler)
    assert whole.steps_per_epoch == steps  # 23 classes: 21 in sevenths of 3 x 4; 69 samples in twelves
    train(tmp_path / "cut", *SHORT, sampler, resume=checkpoint(tmp_path / "whole", 4))
    assert_same_arrays(checkpoint(tmp_path / "cut"), checkpoint(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (
            ["DataLoader.Train.sampler={name: pk, samples: 5}"],
            "-o: DataLoader.Train.sampler.samples: the global batch, 12 samples, must be a multiple of it (got 5)",
        ),
        (
            [
                "DataLoader.Train.sampler={name: pk}",
                "DataLoader.Train.batch_size=27",
                "DataLoader.Train.accumulate=2",
            ],
            "DataLoader.Train.sampler.samples: the global batch, 54 samples, must be a multiple of it (got 4)",
        ),
        (
            ["DataLoader.Train.sampler={name: pk, samples: 1}", "DataLoader.Train.batch_size=24"],
            (
                "-o: DataLoader.Train.sampler.samples: a global batch of 24, 1 of each class, needs 24 classes, the data "
                "has 23; raise it, or lower DataLoader.Train.batch_size, accumulate or global_batch"
            ),
        ),
    ],
)
def test_batches_that_pk_cannot_make_are_refused(tmp_path, keys, line):
    with pytest.raises(UserError) as raised:
        make_trainer(tmp_path, *SHORT, *keys)
    assert str(raised.value) == line
