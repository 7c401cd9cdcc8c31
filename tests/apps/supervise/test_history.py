"""What follows after a start has ended, by the steps of checkpoints; each is told from another by its
step."""

from plsc.apps.supervise.history import History


def lines_of(history, *newest):
    return [history.after_failure("rank 0 failed", step, logs="log").line for step in newest]


def test_a_run_that_went_back_makes_progress_at_lower_steps():
    history = History(3, lambda step: step)
    history.begin(200, True, False)
    assert [line.partition("; ")[2] for line in lines_of(history, 120, 140, 160, 160, 160)] == [
        "restart 1 from step 120",
        "restart 2 from step 140",
        "restart 3 from step 160",
        "restart 4 from step 160",
        "restart 5 from step 160",
    ]
    (last,) = lines_of(history, 160)
    assert "giving up after 3 failures without a new checkpoint" in last


def test_a_run_from_an_older_checkpoint_is_not_restarted_from_the_newest():
    history = History(3, lambda step: step)
    history.begin(200, False, False)
    (line,) = lines_of(history, 200)
    assert line.endswith("restart 1 from the beginning") and history.step is None, "as the command says"
    (line,) = lines_of(history, 100)
    assert line.endswith("restart 2 from step 100"), "the newer ones are set aside by then"
