"""The timer of a step, by a clock that is set by hand: inner parts are not the outer one's, pauses are
nobody's."""

import pytest

from plsc.utils.timing import PARTS, Timer


class Clock:
    now = 0.0

    def __call__(self):
        return self.now

    def passes(self, seconds):
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()


def seconds(**parts):
    return {**dict.fromkeys(PARTS, 0.0), **parts}


def test_parts_nest_and_add_up(clock):
    timer = Timer(clock)
    clock.passes(7)
    timer.start(step=10)
    clock.passes(1)
    with timer.part("backward"):
        clock.passes(2)
        with timer.part("head"):
            clock.passes(4)
            with timer.part("gather"):
                clock.passes(8)
        clock.passes(16)
    with timer.part("head"):
        clock.passes(32)
    assert timer.take(step=12) == seconds(rest=0.5, backward=9.0, head=18.0, gather=4.0)
    clock.passes(3)
    assert timer.take(step=13) == seconds(rest=3.0)  # counted anew


def test_a_pause_is_no_part_of_a_step(clock):
    timer = Timer(clock)
    timer.start(step=0)
    with timer.part("check"):
        clock.passes(1)
        with timer.pause():
            clock.passes(100)
            with timer.part("gather"):
                clock.passes(100)
        clock.passes(2)
    clock.passes(4)
    assert timer.take(step=1) == seconds(check=3.0, rest=4.0)


def test_an_error_leaves_the_part(clock):
    timer = Timer(clock)
    timer.start(step=0)
    with pytest.raises(KeyError), timer.part("forward"):
        clock.passes(1)
        raise KeyError
    clock.passes(2)
    assert timer.take(step=1) == seconds(forward=1.0, rest=2.0)


def test_it_waits_for_the_device_at_each_border(clock):
    timer = Timer(clock)
    timer.start(step=0, finish=lambda: clock.passes(1))
    with timer.part("forward"):
        pass
    assert timer.take(step=1) == seconds(forward=1.0, rest=2.0)


def test_off_it_does_nothing_at_all(clock):
    def never():
        raise AssertionError("the clock was read")

    timer = Timer(never)
    assert not timer.on
    with timer.part("head") as inside, timer.pause():
        assert inside is None
    assert timer.part("head") is timer.part("data") is timer.pause()  # one object, made once
