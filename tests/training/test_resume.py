"""What a checkpoint puts into a new network and a new head. test_trainer.py resumes whole runs."""

import re
import shutil

import numpy as np
import paddle
import pytest

from plsc.checkpoint.store import Checkpoint
from plsc.config import load
from plsc.heads.banks import build_bank
from plsc.heads.build import make_head
from plsc.heads.margins import ArcFace
from plsc.heads.optimizer import AdamW
from plsc.heads.sampling import ClassShard
from plsc.heads.softmax import SoftmaxHead
from plsc.heads.spec import HeadSpec
from plsc.training.load_weights import build_backbone, load_rows
from plsc.utils.sharding import split
from tests.helpers.checkpoints import OnDemand, content, reseal, save_ranks
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import IMAGE_SHAPE, assert_takes_over, checkpoint, make_trainer, train

OWN = """
from paddle import nn

class Silent(nn.Layer):
    pass

class Unmade(nn.Layer):
    def __init__(self, embedding_size: int):
        self.fc = nn.Linear(8, embedding_size)

class Inner(nn.Sequential):
    def __init__(self, embedding_size: int):
        super().__init__(nn.Flatten(), nn.Linear(7, embedding_size))

class Outer(nn.Sequential):
    def __init__(self, embedding_size: int):
        super().__init__(nn.AdaptiveAvgPool2D(1), nn.Flatten(), nn.Linear(1, 1 + embedding_size))
"""


@pytest.mark.parametrize(
    "name, said",
    [
        ("Silent", "NotImplementedError in forward, .*layers.py:[0-9]+$"),
        ("Unmade", r"ValueError in __setattr__, .*: super\(\).__init__\(\) should be called first$"),
        ("Inner", r"ValueError in \w*(matmul|linear), .* is \[?7\]?\.$"),
        ("Outer", r"the backbone must give embeddings \[2, 8\] for 2 images, it gave \[2, 9\]; .*"),
    ],
)
def test_a_network_of_ones_own_that_cannot_embed_is_one_line(name, said, tmp_path, monkeypatch):
    (tmp_path / "plsc_own_net.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    cfg = load(None, [f"Model={{name: 'plsc_own_net:{name}', embedding_size: 8}}"])
    shape = re.escape(str([2, *IMAGE_SHAPE]))
    line = refusal(build_backbone, cfg.Model, 0, IMAGE_SHAPE)
    assert re.match(f"Model.name: plsc_own_net:{name}, given images {shape}: {said}", line)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    train(folder, "Global.max_steps=2")
    return checkpoint(folder, 2)


def test_backbone_and_head_are_those_of_the_checkpoint(saved, monkeypatch):
    monkeypatch.setattr("plsc.training.load_weights.ROWS_AT_ONCE", 5)  # 23 classes in five pieces
    assert_takes_over(make_trainer(saved.parent / "other", "Global.seed=4"), saved)


ADAMW = AdamW(0.9, 0.999, 1e-8, 0.1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["device", "host", "disk"])
def test_centres_of_adamw_go_over_any_ranks_byte_for_byte(kind, dtype, tmp_path):
    """1 -> 2 -> 4 -> 1 ranks: values, both moments, and the number of the next update."""
    if (kind, dtype) == ("device", "bfloat16"):
        pytest.skip("no such bank")
    classes, width = 11, 4
    first = make_head(
        classes,
        width,
        ArcFace(),
        rule=ADAMW,
        bank=kind,
        bank_dtype=dtype,
        bank_folder=tmp_path,
        sample_rate=0.5,
    )
    for number in range(5):
        emb = paddle.to_tensor(np.random.default_rng(number).standard_normal((6, width)), dtype="float32")
        emb.stop_gradient = False
        first(emb, paddle.to_tensor([1, 2, 3, 4, 5, 6]), number).loss.backward()
        first.update(0.1, number)
    heads, files, written = [first], [], None
    for step, world in enumerate((1, 2, 4, 1), start=1):
        if step > 1:
            heads = []
            for start, stop in split(classes, world):
                shard = ClassShard(classes, start, stop)
                options = {"bias": False, "rule": ADAMW, "std": 0.01, "seed": step}
                heads.append(
                    SoftmaxHead(
                        build_bank(kind, dtype, tmp_path, shard, width, **options), HeadSpec(ArcFace())
                    )
                )
                load_rows(heads[-1], Checkpoint.open(written))
                heads[-1].load_state_dict(Checkpoint.open(written).plain("head"))
        states = [head.bank.state() for head in heads]
        code = getattr(states[0]["centres"], "code", None)
        whole = {name: np.concatenate([np.array(state[name][:]) for state in states]) for name in states[0]}
        assert whole.keys() == {"centres", "moment1", "moment2"} and whole["moment2"].any()
        head = {name: OnDemand(rows, code) for name, rows in whole.items()}
        state = {"head": heads[0].state_dict()}
        results = save_ranks(tmp_path, step, {**content(0), "head": head, "state": state}, world)
        written = results[0]
        assert {head.bank.updates for head in heads} == {5}
        files.append({path.name: path.read_bytes() for path in written.glob("head-*")})
    assert files[0] == files[-1] and [len(each) for each in files] == [1, 2, 4, 1]


def test_centres_continue_with_their_own_optimizer_only(saved, tmp_path):
    head = make_head(23, 8, ArcFace(), rule=ADAMW)
    said = refusal(load_rows, head, Checkpoint.open(saved))
    assert "momentum is not in this run (one of 3 differences" in said


@pytest.mark.parametrize(
    ("owner", "value", "line"),
    [
        ("evaluation", {"cosine": "high"}, "cosine: Input should be a valid number"),
    ],
)
def test_a_state_of_another_kind_is_refused_in_one_line(saved, tmp_path, owner, value, line):
    """As somebody might write it, with a right checksum."""
    folder = shutil.copytree(saved, tmp_path / saved.name)
    reseal(folder, lambda fields: fields["state"][owner].update(value))
    said = refusal(make_trainer(tmp_path / "out").resume, folder)
    assert said.startswith(f"{folder}/manifest.json: state.{owner}.{line}; it was written by another")
