"""What the launcher shows of a failed rank's log, by Paddle's own class of a rank's process."""

from paddle.distributed.launch.job.container import Container

from plsc.distributed.paddle_launch import show_rest


def with_log(path):
    container = Container()
    container._log_handler = open(path, encoding="utf-8")  # noqa: SIM115 (as Paddle opens it)
    container._log_start_offset = 0
    return container


def test_a_log_that_was_shown_is_not_shown_again(tmp_path, capsys):
    log = tmp_path / "workerlog.0"
    log.write_text("a step\nERROR a mistake\n")
    container = with_log(log)
    container.logs()
    assert capsys.readouterr().out == "a step\nERROR a mistake\n"
    with log.open("a") as file:
        file.write("the last line\n")
    show_rest(container)
    assert capsys.readouterr().out == "the last line\n"


def test_of_a_log_that_nobody_has_seen_the_end_is_shown(tmp_path, capsys):
    log = tmp_path / "workerlog.1"
    log.write_text("".join(f"line {number:4}\n" for number in range(100)))
    show_rest(with_log(log), length=30)
    assert capsys.readouterr().out == "line   97\nline   98\nline   99\n"


def test_a_rank_without_a_log_shows_nothing(capsys):
    show_rest(Container())
    assert capsys.readouterr().out == ""
