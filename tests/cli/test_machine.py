"""One of several machines, without its ranks."""

import os
import signal
from types import SimpleNamespace

import pytest

from plsc.cli.commands.run import preflight
from plsc.cli.commands.run.machines import Machine
from plsc.cli.commands.run.options import read_options


@pytest.fixture(autouse=True)
def handlers():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before):
        signal.signal(number, handler)


def test_signals_are_noted_although_a_data_set_has_brought_paddle(tmp_path, monkeypatch):
    def collect(*_, **__):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as the import of Paddle does
        return {}

    monkeypatch.setattr(preflight, "collect", collect)
    machine = Machine(read_options(["--nnodes", "2", "--rank", "1", "--master", "127.0.0.1:9", "train.py"]))
    machine._job = SimpleNamespace(cfg=None, ranks=1, folder=tmp_path)
    machine._prepare()
    os.kill(os.getpid(), signal.SIGTERM)
    assert machine._signals == [signal.SIGTERM]
