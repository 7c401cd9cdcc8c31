"""Train kinds of heads, banks and optimizers for some steps on two ranks, the same on every device.

Arguments: a device, and a folder for the runs.
"""

import functools
import os
import sys
from pathlib import Path

from plsc import distributed
from plsc.distributed import environment

device, folder = sys.argv[1], Path(sys.argv[2])
threads = environment.prepare(1, device)

STEPS = 3
CASES = {
    "plain": [],
    "sampled": ["Head.sample_rate=0.5"],
    "host bank": ["Head.bank=host", "Head.sample_rate=0.5", "Head.name=dist_arcface"],
    "disk bank of bfloat16": ["Head.bank=disk", "Head.bank_dtype=bfloat16", "Head.sample_rate=0.5"],
    "AdamW, clipped": ["Optimizer.name=AdamW", "Optimizer.clip_norm=1.0"],
    "LARS": ["Optimizer.name=LARS", "Head.sample_rate=0.5"],
    "replicated": ["Head.name=arcface"],
    "curricularface": ["Head.name=dist_curricularface"],
    "average, accumulated": ["Global.ema=0.9", "DataLoader.Train.batch_size=3"],
    "evaluated": ["DataLoader.Eval.dataset={name: 'tests.helpers.tiny_runs:NoisePairs'}"],
}


def sum_in_rank_order():
    """Let Gloo add the ranks' numbers in the order of the stand-in's: another order has other roundings."""
    original = dist.all_reduce

    def all_reduce(tensor, op=dist.ReduceOp.SUM, *more, **keywords):
        if op != dist.ReduceOp.SUM:
            return original(tensor, op, *more, **keywords)
        parts = []
        dist.all_gather(parts, tensor)
        paddle.assign(functools.reduce(paddle.add, parts), tensor)

    dist.all_reduce = all_reduce


distributed.init(device, threads)
import paddle
import paddle.distributed as dist

if device == "cpu":
    sum_in_rank_order()

from tests.helpers.tiny_runs import train

for name, overrides in CASES.items():
    common = [
        "DataLoader.Eval.dataset=null",
        "DataLoader.Train.batch_size=6",
        "DataLoader.Train.global_batch=12",
    ]
    common += [f"Global.max_steps={STEPS}", f"Checkpoint.every_steps={STEPS}"]
    train(folder / name, *common, f"Global.device={device}", *overrides)
distributed.barrier()
os._exit(0)  # all is written. A rank was once seen to crash in what Paddle does when a process ends
