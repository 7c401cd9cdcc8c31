"""The threshold that few strangers exceed: its fit, against draws whose tail is known."""

import numpy as np
import pytest

from plsc.apps.gallery.threshold import fit_tail, one_of_everybody_first


def drawn(people, each, seed, exponent=8.0):
    """Cosines whose distance from 1 is below d with the probability d ** exponent, whose search each is, and
    that nobody is met twice."""
    distances = np.random.default_rng(seed).uniform(size=people * each) ** (1 / exponent)
    return 1 - distances, np.repeat(np.arange(people), each), people + np.arange(people * each)


def test_the_tail_of_many_is_found():
    tails = [fit_tail(*drawn(1000, 1, seed), 0.01) for seed in range(50)]
    # The mean of 50 times ten exponentially distributed logarithms; three deviations.
    assert np.mean([1 / tail.exponent for tail in tails]) == pytest.approx(1 / 8, rel=3 / 500**0.5)
    assert tails[0].people == 10 and tails[0].share == 0.02
    # A rate at half of the edge's share: 20 searches give the share, ten the exponent; three deviations of
    # the mean of 50.
    deviation = 0.01 * ((1 / 20 + np.log(2) ** 2 / 10) / 50) ** 0.5
    assert np.mean([(1 - tail.threshold(0.01)) ** 8 for tail in tails]) == pytest.approx(
        0.01, abs=3 * deviation
    )


def test_one_person_under_two_names_is_no_tail():
    """The ten nearest of a thousand searches, however near they are, count as ten that are beyond the
    threshold."""
    cosines, people, met = drawn(1000, 1, 0)
    nearer = cosines.copy()
    nearer[np.argsort(-cosines)[:10]] = 0.9999
    assert fit_tail(nearer, people, met, 0.01) == fit_tail(cosines, people, met, 0.01)


@pytest.mark.parametrize(("people", "each"), [(10, 3), (40, 3), (300, 1)])
def test_strangers_get_a_name_as_often_as_asked(people, each):
    """Over many galleries: the mean rate is what was asked for, and the interval holds the true rate in 19 of
    20."""
    rates, inside = [], []
    for seed in range(400):
        tail = fit_tail(*drawn(people, each, seed), 0.01)
        threshold = tail.threshold(0.01)
        rate = (1 - threshold) ** 8
        low, high = tail.interval(threshold)
        rates.append(rate)
        inside.append(low <= rate <= high)
    assert np.mean(rates) == pytest.approx(0.01, abs=0.004)
    assert np.mean(inside) > 0.9


def test_fewer_people_give_a_higher_threshold():
    cosines, people, met = drawn(1000, 1, 0)
    few = fit_tail(cosines, people // 50, met, 0.01)
    many = fit_tail(cosines, people, met, 0.01)
    assert few.people < many.people == 10
    assert few.threshold(0.01) > many.threshold(0.01)
    assert few.threshold(0.001) > few.threshold(0.01) > few.threshold(0.1)
    assert np.diff(few.interval(0.5)) > np.diff(many.interval(0.5))


def test_two_who_meet_each_other_are_one_observation():
    """Who are searched for among themselves are as near to each other from both sides."""
    cosines, people, met = drawn(200, 1, 0)
    cosines = cosines.reshape(-1, 2).max(axis=1).repeat(2)
    apart = fit_tail(cosines, people, met, 0.01)
    linked = fit_tail(cosines, people, people ^ 1, 0.01)
    assert (apart.people, linked.people) == (18, 9)
    assert linked.threshold(0.01) > apart.threshold(0.01)
    assert np.diff(linked.interval(0.5)) > np.diff(apart.interval(0.5))
    everybody_meets_one = fit_tail(cosines, people, np.zeros_like(people), 0.01)
    assert everybody_meets_one.people == 18, "of different pairs"


@pytest.mark.parametrize("cosine", [-1.0, 0.3, 1.0])
def test_equal_cosines_have_a_threshold(cosine):
    tail = fit_tail(np.full(20, cosine), np.arange(20), 20 + np.arange(20), 0.01)
    assert cosine - 1e-5 <= tail.threshold(0.01) <= 1 and np.isfinite(tail.interval(cosine)).all()


def test_everybody_is_chosen_once_before_anybody_twice():
    people = np.array(["b", "a", "a", "a", "c", "b"])
    assert one_of_everybody_first(people, 4).tolist() == [0, 1, 2, 4]
    assert one_of_everybody_first(people, 9).tolist() == list(range(6))
    assert one_of_everybody_first(people[:0], 9).tolist() == []
