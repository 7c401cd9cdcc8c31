"""On W > 1 ranks: lines of the head that only several ranks need, broken one by one; plsc selftest's parts
must find each."""

import contextlib
from unittest.mock import patch

from plsc import distributed
from plsc.cli.selftest.parts import PARTS
from plsc.cli.selftest.selftest import run_parts
from plsc.distributed import collectives
from plsc.heads.step import Step

distributed.init("cpu", threads=1)
W = distributed.world_size()
SHARDED = {part for part in PARTS if "dist_" in part} | {
    "head before a training",
    "Partial FC, a rate of 0.3",
}
HEADS = SHARDED | {part for part in PARTS if part.startswith("head ")}

reduce, gradient, scatter = distributed.all_reduce, Step._embedding_gradient, distributed.reduce_scatter_rows
breaks = {
    "no times W": (Step, "_embedding_gradient", lambda *args: gradient(*args) / W, HEADS),
    "no MAX over the ranks": (
        distributed,
        "all_reduce",
        lambda x, op="sum": x if op == "max" else reduce(x, op),
        SHARDED | {"all_reduce, broadcast"},
    ),
    "no sum over the ranks": (
        distributed,
        "reduce_scatter_rows",
        lambda x, counts: scatter(x / (distributed.rank() + 1), counts),
        SHARDED | {"_c_allgather", "_c_reducescatter"},
    ),
}
for name, (owner, attribute, broken, parts) in breaks.items():
    # The heads call plsc.distributed, and the collectives each other in their own module.
    owners = (distributed, collectives) if owner is distributed else (owner,)
    with contextlib.ExitStack() as stack:
        for each in owners:
            stack.enter_context(patch.object(each, attribute, broken))
        rows = run_parts(list(PARTS), None)
    failed = [{row.part for row in rows if not row.passed} for rows in distributed.gather_objects(rows)]
    assert set.union(*failed) == parts, (name, failed)
assert not [row for row in run_parts(list(PARTS), None) if not row.passed]
print(f"rank {distributed.rank()} of {W}: each broken line was found")
