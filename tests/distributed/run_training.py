"""On W ranks: every head trains, runs are resumed, embeddings are shared out.

Arguments: a folder for the runs, and a checkpoint that any number of ranks made.
"""

import sys
from functools import partial
from pathlib import Path

import numpy as np

from plsc import distributed as d
from plsc.config import load
from plsc.entry import Entry
from plsc.evaluation.sets import build_sets
from plsc.training.embed import embed, to_input
from plsc.training.evaluator import Evaluator
from plsc.utils.preprocessing import Preprocessing
from tests.helpers.bounds import assert_within, rounded
from tests.helpers.head_names import HEADS
from tests.helpers.tiny_runs import (
    TINY,
    Linear,
    NoisePairs,
    arrays,
    assert_takes_over,
    checkpoint,
    make_trainer,
    train_linear,
    train_sets,
)
from tests.training.test_evaluator import MORE, Broken
from tests.training.test_losses import run_on_ranks

folder, saved = map(Path, sys.argv[1:])
d.init("cpu", threads=1)
W, r = d.world_size(), d.rank()

for name in HEADS:
    train_linear(folder / name, name, 12 // W)

train_sets(folder / "sets", 12 // W)
run_on_ranks(folder / "extra loss")
run_on_ranks(folder / "extra loss, resumed", resume=checkpoint(folder / "extra loss", 2))

assert_takes_over(make_trainer(folder / "resumed", f"DataLoader.Train.batch_size={12 // W}"), saved)

# Frozen layers in a replicated backbone: they keep their bits, the others are the same on every rank.
freeze = ["Optimizer={name: AdamW, freeze: [^stages]}", "LRScheduler.learning_rate=0.01"]
short = [f"DataLoader.Train.batch_size={12 // W}", "Global.max_steps=2", "DataLoader.Eval.dataset=null"]
frozen = make_trainer(folder / "frozen", *freeze, *short)
before = {name: value.numpy() for name, value in frozen.backbone.state_dict().items()}
frozen.train(None)
weights = {name: value.numpy() for name, value in frozen.backbone.state_dict().items()}
stayed = {name for name, value in weights.items() if np.array_equal(value, before[name])}
assert stayed == {name for name in weights if name.startswith("stages")}
trained = np.concatenate([p.numpy().ravel() for p in frozen.backbone.parameters() if not p.stop_gradient])
assert len(set(d.gather_objects(trained.tobytes()))) == 1

net, preprocessing = Linear(), Preprocessing((1, 12, 10))
for parameter in net.parameters():
    d.broadcast(parameter)
images = np.random.default_rng(0).integers(0, 256, (7, 1, 12, 10), np.uint8)
whole, bound = rounded(net, lambda: net(to_input(images, preprocessing)).numpy())
for count in (7, W, 1):  # uneven, one each, and none for most
    found = embed(net, lambda start, stop: images[start:stop], count, preprocessing, batch_size=2)
    assert_within(found, whole[:count], bound[:count], paths=2)
    assert len(set(d.gather_objects(found.tobytes()))) == 1

# Every rank gets the classes that one process finds among all ranks' centres.
entry = Entry(TINY, {"Global.checkpoint": str(saved), "Global.output_dir": str(folder / "classes")})
classes, cosine, _ = entry.classify(images, top=2)
centres = arrays(saved)["head: centres"]
cosine_NC = entry.predict(images)[0] @ (centres / np.linalg.norm(centres, axis=1, keepdims=True)).T
assert classes == [[str(number) for number in row] for row in np.argsort(-cosine_NC, axis=1)[:, :2]]
assert np.allclose(cosine, -np.sort(-cosine_NC, axis=1)[:, :2], atol=1e-6)
assert entry.config.Head.name == "dist_arcface" and entry._head.shard.size < len(centres)

# Sets of every kind and size, evaluated together: every rank gets one process's numbers, and only rank 0
# holds the results.
overrides = [*MORE, "DataLoader.Eval.flip=true", "DataLoader.Train.batch_size=7"]


def make_evaluator(cfg, backbone):
    data = cfg.DataLoader
    return Evaluator(data, build_sets(data, 0, NoisePairs().preprocessing, 23, None), backbone, 23)


evaluator = make_evaluator(load(TINY, overrides), net)
evaluator.evaluate()
assert set(evaluator.results) == (set(evaluator.sets) if r == 0 else set())
assert [rows == evaluator.rows for rows in d.gather_objects(evaluator.rows)] == [True] * W


def row_of(data):
    """The numbers of a set by this rank alone."""
    images = data.images(0, data.count)
    both = sum(net(to_input(np.ascontiguousarray(x), preprocessing)) for x in (images, images[..., ::-1]))
    return data.score(both.numpy()).row()


for title, data in evaluator.sets.items():
    expected, bound = rounded(net, partial(row_of, data))
    found = evaluator.rows[title]
    assert [key for key in found if found[key] is None] == [key for key in found if expected[key] is None]
    assert_within(found, *({key: numbers[key] for key in found} for numbers in (expected, bound)), paths=2)

# What rank 0 cannot compute is a failure on every rank, in the same words.
broken = make_evaluator(load(TINY), Broken())
assert broken.evaluate()
assert broken.failures and all("is not finite" in failure for failure in broken.failures), broken.failures
assert all(failures == broken.failures for failures in d.gather_objects(broken.failures))
print(f"rank {r} of {W}: training ok")
