"""Start ranks, and communicate between them.

    from plsc import distributed
    distributed.all_reduce(x)

The collectives are in collectives.py, which imports Paddle and so is imported on first use. environment,
launcher, guard and lock import no Paddle.
"""

import importlib

from plsc.distributed import environment

_FUNCTIONS = (
    *("init", "data_parallel", "average_gradients", "barrier", "run_on_rank_0", "shard_index"),
    *("Flag", "run_on_all_ranks"),
    *("all_reduce", "broadcast", "gather_array", "gather_counts", "gather_objects"),
    *("global_mean", "_c_allgather", "_c_reducescatter"),
)
rank = environment.rank_from_env
world_size = environment.world_size_from_env


def __getattr__(name: str):
    if name in _FUNCTIONS:
        return getattr(importlib.import_module("plsc.distributed.collectives"), name)
    raise AttributeError(f"module 'plsc.distributed' has no attribute '{name}'")
