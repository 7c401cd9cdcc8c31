"""On W ranks: every margin, sub-centres and the filter against dense float64 autograd, classes spread or on every rank."""

import numpy as np
import paddle

from plsc import distributed
from plsc.cli.commands.selftest.parts import relative
from plsc.config import load
from plsc.training.build_head import build_head, build_rule
from plsc.utils.registry import MARGINS
from tests.heads.autograd import dense_gradients

distributed.init("cpu", threads=1)
W, rank = distributed.world_size(), distributed.rank()
C, D = 23, 16
counts = [4 + 3 * k for k in range(W)]
own = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
rng = np.random.default_rng(0)
x = (rng.standard_normal((sum(counts), D)) * rng.uniform(2, 20, (sum(counts), 1))).astype(np.float32)
label = rng.integers(0, C, sum(counts))

COMBINED = {"options": {"margin1": 0.9, "margin2": 0.4, "margin3": 0.15}}
cases = [(kind, COMBINED if kind == "combined" else {}) for kind in MARGINS.builtin]
cases += [
    ("arcface", {"sub_centres": 2}),
    ("arcface", {"filter_above": 0.2}),
    ("magface", {"sub_centres": 2}),
    *(("curricularface", {"compute_dtype": dtype}) for dtype in ("bfloat16", "float16")),
    ("arcface", {"compute_dtype": "float16", "sub_centres": 2}),
]
# Paddle 2.6 cuts off where 3 rounds to 16 bits, so an input is off by up to twice as much there.
CUT = 2 if paddle.__version__.startswith("2.") else 1
BOUNDS = {"float32": 1e-5, "float16": CUT * 2**-10, "bfloat16": CUT * 2**-7}
RANGES = [(0, 5), (5, 14), (14, C)]
cases += [
    ("arcface", {"sub_centres": 2, "ranges": RANGES}),
    ("arcface", {"filter_above": 0.2, "ranges": RANGES}),
    ("curricularface", {"ranges": RANGES}),
    ("magface", {"ranges": RANGES}),
]
worst, memories = 0.0, []
for kind, more in cases:
    for prefix in ("dist_", ""):
        keys = {key: value for key, value in more.items() if key != "ranges"}
        cfg = load().edit({"Head": {"name": prefix + kind, "scale": 16.0, "init_std": 0.5, **keys}})
        head = build_head(cfg.Head, build_rule(cfg.Optimizer), C, D, seed=3, ranges=more.get("ranges"))
        state = head.bank.state()["centres"].copy()
        rows = slice(head.shard.start, head.shard.stop)
        centres = np.concatenate(distributed.gather_objects(state)) if prefix else state
        options = {key: value for key, value in more.items() if key != "options"}
        losses, dx, dw = dense_gradients(kind, x, centres, label, scale=16.0, **options)

        emb = paddle.to_tensor(x[own], stop_gradient=False)
        out = head(emb, paddle.to_tensor(label[own]))
        out.loss.backward()
        got = head.bank.gradients()["centres"].numpy() - dw[rows]
        errors = {
            "loss": relative(out.loss.item(), losses.mean()),
            "losses": relative(out.losses_B.numpy(), losses[own]),
            "embedding gradient": relative(emb.grad.numpy() / W, dx[own]),
            "centre gradient": np.abs(got).max() / np.abs(dw).max(),
        }
        dtype = more.get("compute_dtype", "float32")
        assert max(errors.values()) < BOUNDS[dtype], (kind, prefix, more, errors)
        if dtype == "float32":
            worst = max(worst, *errors.values())
        memories.append(head.margin.state())
assert all(other == memories for other in distributed.gather_objects(memories)), (
    "ranks remember different things"
)
print(f"rank {rank} of {W}: {2 * len(cases)} margins, worst relative error {worst:.1e}")
