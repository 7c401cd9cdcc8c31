"""The start of ranks; that they train is shown in tests/distributed."""

from plsc.distributed.launcher import launch


def test_what_the_ranks_say_and_their_exit_code_come_back(tmp_path):
    said = []
    code = launch(["train", "-c", str(tmp_path / "no.yaml")], 2, tmp_path / "log", said.append)
    assert code == 2 and any("no such config file" in line for line in said)
    assert {path.name for path in (tmp_path / "log").glob("workerlog.*")} == {"workerlog.0", "workerlog.1"}


def test_the_ranks_can_import_what_this_process_can(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from plsc.data.synthetic import Synthetic\n\nclass Mine(Synthetic): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    said = []
    arguments = [
        "train",
        "--dry-run",
        "-o",
        "DataLoader.Train.dataset={name: mine.Mine}",
        "DataLoader.Eval.dataset=null",
    ]
    assert launch(arguments, 1, tmp_path / "log", said.append) == 0, said
    assert any("name: mine.Mine" in line for line in said)


def test_an_empty_cuda_visible_devices_is_no_obstacle(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    said = []
    assert launch(["--help"], 1, tmp_path / "log", said.append) == 0 and any("usage" in line for line in said)
