"""On W ranks: every margin, sub-centres and the filter against dense float64 autograd, classes spread or on
every rank.

And the predicted classes are those of one argmax over all logits, and the same on every rank.
"""

from functools import partial

import numpy as np
import paddle

from plsc import distributed
from plsc.config import load
from plsc.heads.build import build_head
from plsc.heads.config import MARGINS
from tests.heads.autograd import dense_gradients
from tests.heads.classify_cases import classify_equals_a_sort
from tests.helpers.bounds import assert_within, perturbed

distributed.init("cpu", threads=1)
W, rank = distributed.world_size(), distributed.rank()
C, D = 23, 16
counts = [4 + 3 * k for k in range(W)]
own = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
rng = np.random.default_rng(0)
x = (rng.standard_normal((sum(counts), D)) * rng.uniform(2, 20, (sum(counts), 1))).astype(np.float32)
label = rng.integers(0, C, sum(counts))

COMBINED = {"margin1": 0.9, "margin2": 0.4, "margin3": 0.15}
cases = [(kind, COMBINED if kind == "combined" else {}) for kind in MARGINS.builtin]
cases += [
    ("arcface", {"sub_centres": 2}),
    ("arcface", {"filter_above": 0.2}),
    ("magface", {"sub_centres": 2}),
    ("curricularface", {"compute_dtype": "bfloat16"}),
    ("arcface", {"compute_dtype": "bfloat16", "sub_centres": 2}),
]
# Paddle 2.6 cuts off where 3 rounds to 16 bits, so an input is off by up to twice as much there.
CUT = 2 if paddle.__version__.startswith("2.") else 1
BOUND = CUT * 2**-7


def dense(kind, options, rows, x, centres):
    """The mean loss, this rank's losses and the gradients of its embeddings and rows."""
    losses, dx, dw = dense_gradients(kind, x, centres, label, scale=16.0, **options)
    return losses.mean(), losses[own], W * dx[own], dw[rows]


memories = []
for kind, more in cases:
    for prefix in ("dist_", ""):
        cfg = load({"Head": {"name": prefix + kind, "scale": 16.0, "init_std": 0.5, **more}})
        head = build_head(cfg.Head, cfg.Optimizer.build_rule(), C, D, seed=3)
        state = head.bank.state()["centres"].copy()
        rows = slice(head.shard.start, head.shard.stop)
        centres = np.concatenate(distributed.gather_objects(state)) if prefix else state
        options = {key: value for key, value in more.items() if key not in COMBINED}
        emb = paddle.to_tensor(x[own], stop_gradient=False)
        out = head(emb, paddle.to_tensor(label[own]))
        out.loss.backward()
        got = [out.loss.item(), out.losses_B.numpy(), emb.grad.numpy()]
        got.append(out.selection.gradients()["centres"].numpy())
        want, bound = perturbed(partial(dense, kind, options, rows), x, centres)
        if "compute_dtype" in more:
            bound = [BOUND * np.abs(array).max() for array in want]
        assert_within(got, want, bound)
        memories.append(head.margin.state_dict())
assert all(other == memories for other in distributed.gather_objects(memories)), (
    "ranks remember different things"
)
print(f"rank {rank} of {W}: {2 * len(cases)} margins, {classify_equals_a_sort()} cases classified")
