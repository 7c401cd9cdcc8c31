"""The comparison with PyTorch: its networks compute what ours compute."""

import importlib.util
import json

import paddle
import pytest

from benchmarks import against_torch
from tests.helpers.launch import run_python

pytestmark = pytest.mark.slow

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: its networks are not compared"
)
# This runs in a separate process, since it brings its own OpenMP runtime.
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
