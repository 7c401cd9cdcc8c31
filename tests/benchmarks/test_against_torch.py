"""The comparison with PyTorch: its networks compute what ours compute, the numbers add up, and what it
refuses."""

import importlib.util
import json

import numpy as np
import paddle
import pytest

from benchmarks import __main__ as benchmark
from benchmarks import against_torch
from plsc.errors import UserError
from tests.helpers.launch import run_python

pytestmark = pytest.mark.slow

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: its networks are not compared"
)
# In a process of its own, since it brings an OpenMP runtime of its own.
IN_TORCH = """
import json, pathlib, sys, torch
from benchmarks.against_torch import Network, _Torch
torch.set_default_dtype(torch.float64)
for file in sys.argv[1:]:
    name, network = json.loads(pathlib.Path(file).with_suffix(".json").read_text())
    print(json.dumps(_Torch(name, Network(*network), 1).compare(pathlib.Path(file))))
"""


@pytest.fixture
def float64():
    paddle.set_default_dtype("float64")
    yield
    paddle.set_default_dtype("float32")


@needs_torch
def test_the_networks_are_the_same(tmp_path, float64):
    files = []
    for name, network in against_torch.NETWORKS.items():
        network = network._replace(image_shape=(network.image_shape[0], 35, 33), batch=3, embedding_size=8)
        files.append(tmp_path / f"{name}.npz")
        against_torch._Paddle(name, network, 1).save(files[-1])
        files[-1].with_suffix(".json").write_text(json.dumps([name, network]))
    for line in run_python("-c", IN_TORCH, *files, cwd=tmp_path).stdout.splitlines():
        assert max(json.loads(line).values()) < 1e-6  # Paddle keeps a batch norm's epsilon as float32


@needs_torch
def test_the_numbers_add_up(tmp_path, capsys):
    sizes = ["--size", "20", "--batch", "4", "--threads", "1", "2", "--runs", "2"]
    file = tmp_path / "found.json"
    assert benchmark.main(["backbone", "SmallResNet", "--against", "torch", *sizes, "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert [row["threads"] for row in found["rows"]] == [1, 2] and found["torch"]
    for row in found["rows"]:
        ours, theirs = row["paddle"], row["torch"]
        assert row["over_torch"] == ours["seconds"] / theirs["seconds"] > 0
        assert ours["images_per_second"] == 4 / ours["seconds"]
        assert max(row["embeddings_off"], row["gradients_off"]) < 1e-2
    lines = capsys.readouterr().out.splitlines()
    assert "oneDNN's instructions: all of the processor" in lines[0]
    assert [line.split()[:4] for line in lines[-2:]] == [["SmallResNet", "20", "4", n] for n in "12"]


def test_a_process_that_ends_is_named_with_its_last_line(tmp_path):
    network = against_torch.NETWORKS["SmallResNet"]
    no_framework = against_torch._worker("jax", "SmallResNet", network, 1, tmp_path / "a.npz")
    with no_framework as worker, pytest.raises(UserError, match="ended with exit code 1: KeyError: 'jax'"):
        worker.ask("save")


def test_what_is_off_is_relative_to_all_numbers():
    ones = {"a": np.ones(3), "b": np.ones(1)}
    assert against_torch.off(ones, ones) == 0
    assert against_torch.off({"a": np.ones(3), "b": np.zeros(1)}, ones) == 0.5


@pytest.mark.parametrize(
    "words, message",
    [
        (
            ["--against", "torch", "LeNet"],
            "--against torch: LeNet is not written in PyTorch here; there are Small",
        ),
        (["--against", "torch", "--runs", "0"], r"--runs: must be at least 1 with --against \(got 0\)"),
        (["--json", "a.json"], "--json and several numbers of --threads: only with --against torch"),
        (["--threads", "1", "2"], "--json and several numbers of --threads: only with --against torch"),
    ],
)
def test_what_it_refuses(words, message):
    with pytest.raises(UserError, match=message):
        benchmark.main(["backbone", *words])


def test_without_torch_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="torch is not installed; pip install torch, or leave --against out"):
        benchmark.main(["backbone", "--against", "torch", "SmallResNet"])
