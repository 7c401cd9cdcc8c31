"""The count of collectives is in its file at once, and gone with its rank's orderly end."""

import os

from plsc.distributed import calls, guard
from plsc.distributed.guard import Guard


def test_a_count_is_in_its_file_at_once(tmp_path):
    path = tmp_path / "calls"
    calls.count()  # nobody asks
    with calls.keep_in(path):
        assert calls.read(path) == 0
        for _ in range(300):
            calls.count()
        assert calls.read(path) == 300
    calls.count()
    assert calls.read(path) == 300
    with calls.keep_in(path):
        assert calls.read(path) == 0


def test_what_is_no_count_is_none(tmp_path):
    assert calls.read(tmp_path / "none") is None
    (tmp_path / "cut").write_bytes(b"123")
    assert calls.read(tmp_path / "cut") is None


def test_a_supervised_rank_keeps_its_count(tmp_path, monkeypatch):
    monkeypatch.setenv("PADDLE_TRAINER_ID", "1")
    monkeypatch.setenv(guard.SUPERVISOR, str(os.getpid()))
    monkeypatch.setattr(guard, "die_with_parent", lambda: None)
    path = tmp_path / "errors/rank1.calls"
    with Guard(tmp_path) as found:
        found.listen()
        calls.count()
        assert calls.read(path) == 1
    assert not path.exists()
