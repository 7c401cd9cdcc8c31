"""P(same) against pairs whose probability is known, and scikit-learn's fits where it is installed;
thresholds' intervals."""

import json
from statistics import NormalDist

import numpy as np
import pytest

from plsc.data.pair_sampling import draw_pairs
from plsc.evaluation import verify_distances, verify_pairs
from plsc.evaluation.calibration import cosine_with_interval, fit_pairs, thresholds
from plsc.evaluation.report.rate_figures import draw_calibration
from plsc.evaluation.roc import FARS, roc_curve
from plsc.utils.calibration import Calibration, Threshold


def normal_pairs(count, seed=0, spread=0.2):
    """Cosines of same pairs, normal around 0.5, and of different ones, around 0, with P(same) of each."""
    rng = np.random.default_rng(seed)
    same = rng.random(count) < 0.3
    cosine = np.clip(
        np.where(same, 0.5 + 0.2 * rng.normal(size=count), spread * rng.normal(size=count)), -1, 1
    )
    density = NormalDist(0.5, 0.2), NormalDist(0, spread)
    odds = np.array([0.3 * density[0].pdf(c) / (0.7 * density[1].pdf(c)) for c in cosine])
    return cosine, same, odds / (1 + odds)


def p_same(fit, cosine):
    return 1 / (1 + np.exp(-np.interp(cosine, fit.cosine, fit.log_odds)))


@pytest.mark.parametrize("spread", [0.2, 0.12])
def test_p_same_is_the_true_probability_of_normal_cosines(spread):
    cosine, same, true = normal_pairs(40_000, spread=spread)
    fit = fit_pairs(cosine, same)
    assert np.mean(np.abs(p_same(fit, cosine) - true)) < 0.006
    assert fit.prior == same.mean() and fit.held_out.error < 0.012
    assert np.all(np.diff(fit.log_odds) >= 0) and np.all(np.diff(fit.cosine) > 0)


def test_p_same_never_falls_where_the_parabola_does():
    cosine, same, _ = normal_pairs(
        20_000, spread=0.05
    )  # the odds of these are lowest at -0.03 and rise to the left
    fit = fit_pairs(cosine, same)
    lowest = fit.log_odds == fit.log_odds[0]
    assert np.all(np.diff(fit.log_odds) >= 0) and lowest.sum() > 2


def test_the_held_out_error_finds_a_fit_that_does_not_hold_for_other_people():
    """Each person has a cosine of its own, below and above, which says nothing of the next person."""
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(40), 100)
    same = rng.random(len(person)) < 0.5
    cosine = np.clip(np.where(same, 0.3, 0.0) + rng.normal(size=40)[person] * 0.3, -1, 1)
    by_pairs = fit_pairs(cosine, same).held_out
    by_people = fit_pairs(cosine, same, np.stack([person, person], 1)).held_out
    assert by_people.error > by_pairs.error + 0.02
    assert by_people.pairs.sum() == by_pairs.pairs.sum() == len(same)


def test_the_noise_is_the_error_of_an_exact_p_same():
    errors, noises = [], []
    for seed in range(10):
        cosine, same, _ = normal_pairs(2000, seed)
        held_out = fit_pairs(cosine, same).held_out
        errors.append(held_out.error)
        noises.append(held_out.noise)
    assert np.mean(errors) == pytest.approx(np.mean(noises), rel=0.3)


def test_as_scikit_learn_fits():
    linear = pytest.importorskip("sklearn.linear_model", reason="the oracle, scikit-learn, is not installed")
    from sklearn.isotonic import IsotonicRegression

    cosine, same, _ = normal_pairs(20_000)
    fit = fit_pairs(cosine, same)
    inputs = np.stack([cosine, cosine**2], axis=1)
    logistic = linear.LogisticRegression(C=1e9, tol=1e-8, max_iter=1000).fit(inputs, same)
    between = (cosine > 0) & (cosine < 0.6)  # outside, the smoothed targets limit the odds
    theirs = logistic.predict_proba(inputs)[between, 1]
    np.testing.assert_allclose(p_same(fit, cosine)[between], theirs, atol=2e-3)
    isotonic = IsotonicRegression().fit(cosine, same.astype(float))
    assert np.mean(np.abs(isotonic.predict(cosine) - p_same(fit, cosine))) < 0.01


@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_pairs_that_are_told_apart_without_an_error_have_a_finite_fit(scale):
    """Also while a network has hardly learned, and all cosines are nearly 1."""
    same = np.arange(100) % 2 == 0
    cosine = 1 - scale + scale * np.where(same, 0.8, 0.1) + scale * np.linspace(0, 0.1, 100)
    fit = fit_pairs(cosine, same)
    assert fit.log_odds[0] == pytest.approx(-np.log(51)) and fit.log_odds[-1] == pytest.approx(np.log(51))
    assert fit.held_out.error < 0.05


def test_a_network_no_better_than_chance_has_p_same_of_the_prior():
    same = np.arange(100) % 4 == 0
    fit = fit_pairs(np.where(same, 0.1, 0.5) + np.linspace(0, 0.1, 100), same)
    np.testing.assert_allclose(p_same(fit, [0.1, 0.9]), 0.25)


def test_what_cannot_be_fitted_is_none():
    ones = np.ones(4, bool)
    assert fit_pairs(np.linspace(0, 1, 4), ones) is None and fit_pairs(np.linspace(0, 1, 4), ~ones) is None
    for alike in (np.full(4, 0.5), np.nextafter(1, 0) ** np.arange(4)):  # a network that has collapsed
        assert fit_pairs(alike, np.array([True, False, True, False])) is None
    assert fit_pairs(np.array([0.1, 0.9]), np.array([False, True])) is None
    result = verify_distances(np.zeros(4), ones)
    assert (result.fit, result.thresholds, result.calibration("a", 0, False)) == (None, [], None)
    assert result.numbers()["calibration"] is None


@pytest.mark.parametrize("people, known", [(3, False), (4, True)])
def test_a_p_same_whose_error_cannot_be_measured_is_nowhere(people, known):
    """Of three people the pairs of two are judged by those of the third, which are all same."""
    label = np.repeat(np.arange(people), 8)
    pairs, same = draw_pairs(label, None, "faces")
    rng = np.random.default_rng(0)
    emb = np.eye(people)[label] + rng.normal(size=(len(label), people))
    result = verify_pairs(emb, pairs, same, identity_of=label)
    assert (result.fit is not None) == known == (result.calibration("faces", 7, False) is not None)
    assert (result.numbers()["calibration"] is not None) == known
    said = result.results()["calibration error of P(same)"]
    assert ("no P(same): needs more pairs" not in said) == known
    assert (draw_calibration({"faces": result})[0] is not None) == known


def test_an_interval_has_the_true_threshold_nineteen_times_of_twenty():
    """Different pairs of 60 people, each of whom resembles others more or less than the next."""
    rng = np.random.default_rng(0)
    true = NormalDist().inv_cdf(0.98)
    inside, by_pairs = 0, 0
    for _ in range(200):
        first = rng.integers(0, 60, 2000)
        of_pair = np.stack([first, (first + rng.integers(1, 60, 2000)) % 60], 1)
        score = 0.5 * rng.normal(size=60)[of_pair].sum(1) + np.sqrt(0.5) * rng.normal(size=2000)
        cosine = score / 10
        roc = roc_curve(cosine, np.zeros(2000, bool))
        (point,) = thresholds(roc, cosine, [0.02], of_pair)
        inside += point.low * 10 <= true and (point.high is None or true <= point.high * 10)
        (point,) = thresholds(roc, cosine, [0.02])
        by_pairs += point.low * 10 <= true <= point.high * 10
    assert 0.88 < inside / 200 <= 1 and by_pairs < inside - 20


def test_more_pictures_of_the_same_pairs_of_people_narrow_no_interval():
    cosine = np.random.default_rng(0).permutation(np.linspace(-0.5, 0.5, 1000))
    of_pair = np.arange(2000).reshape(1000, 2)  # nobody is in two pairs

    def intervals(times):
        repeated = np.tile(cosine, times)
        roc = roc_curve(repeated, np.zeros(len(repeated), bool))
        return thresholds(roc, repeated, (0.1, 0.01), np.tile(of_pair, (times, 1)))

    assert intervals(10) == intervals(1)
    assert intervals(1)[0].low < intervals(1)[0].cosine < intervals(1)[0].high


def test_too_few_different_pairs_are_said():
    cosine = np.linspace(-0.5, 0.5, 1000)
    points = thresholds(roc_curve(cosine, np.zeros(1000, bool)), cosine, FARS)
    assert [point.far for point in points] == [0.1, 0.01, 0.001]  # 1e-4 needs 10,000
    assert [point.high is None for point in points] == [
        False,
        False,
        True,
    ]  # a single false accept says no upper bound
    assert all(point.low <= point.cosine for point in points)
    assert cosine_with_interval(points[2]).endswith("or more)")
    assert cosine_with_interval(Threshold(far=0.1, cosine=0.5)) == "0.5000 (lower to 0.5000 or more)"


def test_a_result_gives_what_is_stored():
    cosine, same, _ = normal_pairs(4000)
    result = verify_distances(2 - 2 * cosine, same)
    stored = result.calibration("pairs", 12, True)
    assert (stored.set, stored.step, stored.flip, stored.pairs) == ("pairs", 12, True, 4000)
    assert stored.error == result.fit.held_out.error
    np.testing.assert_allclose(stored.probability(cosine), p_same(result.fit, cosine))
    assert stored.threshold(0.01) == result.numbers()["threshold@far"]["0.01"]
    assert Calibration.from_json(json.loads(json.dumps(stored.to_json())), "here") == stored
    numbers = json.loads(json.dumps(result.numbers(), allow_nan=False))
    assert sum(one["pairs"] for one in numbers["calibration"]["bins"]) == 4000
    low, high = numbers["threshold@far_confidence_95"]["0.01"]
    assert low < stored.threshold(0.01) < high
