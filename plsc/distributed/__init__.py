"""Start ranks, watch over them, and let them compute together.

    from plsc import distributed
    distributed.all_reduce(x)

The collectives are those of collectives.py, which is imported when the first is asked for, because Paddle comes with it. environment,
launcher, guard and lock do without Paddle: a plain process may use them at once.
"""

import importlib

from plsc.distributed import environment

_COLLECTIVES = (
    *("init", "finish", "data_parallel", "barrier", "every", "run_on_rank_0", "shard_index"),
    *("all_reduce", "broadcast", "gather_rows", "gather_array", "gather_counts", "gather_objects"),
    *("reduce_scatter_rows", "_c_allgather", "_c_reducescatter"),
)
rank = environment.rank_from_env
world_size = environment.world_size_from_env


def __getattr__(name: str):
    if name in _COLLECTIVES:
        return getattr(importlib.import_module("plsc.distributed.collectives"), name)
    raise AttributeError(f"module 'plsc.distributed' has no attribute '{name}'")
