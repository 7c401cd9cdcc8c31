import sys

from plsc.utils.bar import Bar
from plsc.utils.logging import setup


def test_without_a_terminal_lines_in_the_log_say_how_much_is_done(capsys):
    setup()
    seconds = iter([0, 3, 12, 18, 24])
    with Bar("reading \x1b[31m", 2000, "images", clock=lambda: next(seconds)) as bar:
        for _ in range(4):
            bar.update(250)
    said = capsys.readouterr()
    assert [line.split("INFO ")[1] for line in said.out.splitlines()] == [
        "reading \\x1b[31m: 500 of 2,000 images, eta 0:00:36",
        "reading \\x1b[31m: 1,000 of 2,000 images, eta 0:00:24",
    ]
    assert said.err == ""


def test_on_a_terminal_it_is_a_bar(capsys, monkeypatch):
    setup()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    seconds = iter([0, 100])
    with Bar("reading", 100, "images", clock=lambda: next(seconds)) as bar:
        bar.update(50)
    said = capsys.readouterr()
    assert said.out == "" and "reading" in said.err
