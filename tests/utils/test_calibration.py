import json

import numpy as np
import pytest

from plsc.errors import UserError
from plsc.utils.calibration import Calibration

GIVEN = {
    "method": "logistic",
    "set": "pairs",
    "step": 12,
    "pairs": 100,
    "prior": 0.5,
    "cosine": [-1.0, 0.0, 1.0],
    "log_odds": [-4.0, -1.0, 9.0],
    "thresholds": [{"far": 0.1, "cosine": 0.25, "low": 0.2, "high": 0.3}, {"far": 0.001, "cosine": 0.5}],
    "groups": {"a": [{"far": 0.1, "cosine": 0.75, "low": None, "high": None}]},
}


def test_a_probability_comes_from_the_log_odds_on_the_straight_line_between_two_cosines():
    calibration = Calibration.from_json(GIVEN, "here")
    np.testing.assert_allclose(calibration.probability(-0.5), 1 / (1 + np.exp(2.5)))
    np.testing.assert_allclose(calibration.probability([[0.1], [2.0]]), [[0.5], [1 / (1 + np.exp(-9.0))]])


def test_another_prior_multiplies_the_odds():
    calibration = Calibration.from_json({**GIVEN, "prior": 0.25}, "here")
    as_fitted, at_half = calibration.probability(0.3), calibration.probability(0.3, prior=0.5)
    np.testing.assert_allclose(at_half / (1 - at_half), 3 * as_fitted / (1 - as_fitted))
    np.testing.assert_array_equal(calibration.probability(0.3, prior=0.25), as_fitted)
    for wrong in (0, 1, -0.5, float("nan")):
        with pytest.raises(UserError, match="prior: must be between 0 and 1"):
            calibration.probability(0.3, prior=wrong)


def test_a_threshold_is_that_of_its_far_and_group():
    calibration = Calibration.from_json(GIVEN, "here")
    assert calibration.threshold(1e-3) == 0.5 and calibration.threshold(0.1, group="a") == 0.75
    with pytest.raises(
        UserError, match=r"FAR 0.01: 'pairs' gave no threshold for it; .* those for: 0.1, 0.001"
    ):
        calibration.threshold(0.01)
    with pytest.raises(UserError, match=r"group 'b\\n': has no thresholds; those that have are: a"):
        calibration.threshold(0.1, group="b\n")


def test_what_is_written_is_read_again():
    calibration = Calibration.from_json(GIVEN, "here")
    assert Calibration.from_json(json.loads(json.dumps(calibration.to_json())), "here") == calibration


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ([], "valid dictionary"),
        ({}, "method: Field required"),
        ({**GIVEN, "cosine": [0, 0, 1]}, "cosine must increase"),
        ({**GIVEN, "cosine": [-1, 0, 5e-324]}, "cosine must increase"),
        ({**GIVEN, "log_odds": [-1e308, 0, 1e308]}, "log_odds.0: Input should be greater"),
        ({**GIVEN, "log_odds": [0, 1]}, "equally long"),
        ({**GIVEN, "log_odds": [0, 2, 1]}, "must not decrease"),
        ({**GIVEN, "log_odds": [0, 1, float("inf")]}, "log_odds.2: Input should be a finite number"),
        ({**GIVEN, "prior": 1.0}, "prior: Input should be less than 1"),
        ({**GIVEN, "thresholds": [{"far": 0.1, "cosine": 7}]}, "thresholds.0.cosine: Input should be less"),
        ({**GIVEN, "groups": {"a\x1b": 1}}, r"groups.a\\x1b: Input should be a valid list"),
        ({**GIVEN, "cosine": [0.0] * 20_000}, "at most 10000 items"),
    ],
)  # fmt: skip
def test_what_is_no_calibration_is_refused_in_one_line(wrong, why):
    with pytest.raises(
        UserError, match=f"^file: is not what plsc eval --calibrate writes .*{why}"
    ) as refused:
        Calibration.from_json(wrong, "file")
    assert "\n" not in str(refused.value) and "\x1b" not in str(refused.value)
