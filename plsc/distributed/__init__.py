"""Start ranks, and communicate between them.

    from plsc import distributed
    distributed.all_reduce(x)

The collectives are in collectives.py and gradients.py, which import Paddle and so are imported on first use.
environment, launcher, lock, network_interface and peers import no Paddle.
"""

import importlib

from plsc.distributed import environment

_FUNCTIONS = (
    *("init", "barrier", "run_on_rank_0", "run_on_all_ranks", "Flag", "shard_index"),
    *("all_reduce", "broadcast", "gather_array", "gather_counts", "gather_objects"),
    *("global_mean", "_c_allgather", "_c_reducescatter"),
)
rank = environment.rank_from_env
world_size = environment.world_size_from_env


def __getattr__(name: str):
    if name in _FUNCTIONS:
        return getattr(importlib.import_module("plsc.distributed.collectives"), name)
    if name == "data_parallel":
        return importlib.import_module("plsc.distributed.gradients").data_parallel
    raise AttributeError(f"module 'plsc.distributed' has no attribute '{name}'")
