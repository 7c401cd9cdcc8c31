"""On W ranks: every head trains, resuming gives each rank its rows, diverging ends every rank, embeddings are shared out.

Arguments: a folder for the runs, and a checkpoint that any number of ranks made.
"""

import sys
from pathlib import Path

import numpy as np

from plsc import distributed as d
from plsc.config_sections import MARGINS, SOFTMAXES
from plsc.embed import embed, to_input
from plsc.trainer import DivergedError
from tests.training import Linear, assert_takes_over, make_trainer, train, train_linear

folder, saved = map(Path, sys.argv[1:])
d.init("cpu", threads=1)
W, r = d.world_size(), d.rank()

for name in (*SOFTMAXES, *MARGINS):
    train_linear(folder / name, name, 12 // W)

assert_takes_over(make_trainer(folder / "resumed", f"DataLoader.Train.batch_size={12 // W}"), saved)

try:
    train(folder / "diverged", "LRScheduler.learning_rate=1e6", f"DataLoader.Train.batch_size={12 // W}")
    line = "it did not diverge"
except DivergedError as error:
    line = str(error)
assert line.startswith("the loss is nan at step ") and set(d.gather_objects(line)) == {line}

net, contract = Linear(), {"mean": 127.5, "scale": 1 / 127.5}
for parameter in net.parameters():
    d.broadcast(parameter)
images = np.random.default_rng(0).integers(0, 256, (7, 1, 12, 10), np.uint8)
whole = net(to_input(images, contract)).numpy()
for count in (7, W, 1):  # uneven, one each, and none for most
    found = embed(net, lambda start, stop: images[start:stop], count, contract, batch_size=2)
    assert found.shape == (count, 8) and np.allclose(found, whole[:count], atol=1e-5)
    assert len(set(d.gather_objects(found.tobytes()))) == 1
print(f"rank {r} of {W}: training ok")
