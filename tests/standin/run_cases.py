"""Train every kind of head, bank, optimizer and part for some steps, on the ranks of a launch: the same on
every device.

Arguments: a device; a folder for the runs; steps; names of cases, or none for all.
"""

import ctypes
import functools
import json
import os
import sys
from pathlib import Path

from plsc import distributed
from plsc.config import load
from plsc.distributed import environment

device, folder, steps, *names = sys.argv[1:]
folder = Path(folder)
threads = environment.prepare(1, device)

# What a run needs of others' config, beside tiny.yaml.
SETS = [
    {"name": "tests.helpers.tiny_runs:People", "people": [f"a{number}" for number in range(9)], "weight": 3},
    {
        "name": "tests.helpers.tiny_runs:People",
        "people": ["b0", "b1", "b2", "a3"],
        "weight": 1,
        "head": "own",
    },
]
CASES = {
    "plain": [],
    "sampled": ["Head.sample_rate=0.5"],
    "host bank": ["Head.bank=host", "Head.sample_rate=0.5", "Head.name=dist_arcface"],
    "host bank of bfloat16": ["Head.bank=host", "Head.bank_dtype=bfloat16", "Head.sample_rate=0.5"],
    "disk bank": ["Head.bank=disk", "Head.sample_rate=0.5"],
    "sub-centres": ["Head.sub_centres=2"],
    "head of bfloat16": ["Head.compute_dtype=bfloat16"],
    "head of float16": ["Head.compute_dtype=float16"],
    **{
        f"amp of {dtype}": [
            f"Global.amp={{dtype: {dtype}}}",
            f"Model={{name: 'tests.standin.product:Product', embedding_size: 8, dtype: {dtype}}}",
        ]
        for dtype in ("float16", "bfloat16")
    },
    "Adam": ["Optimizer={name: Adam, head: {name: Momentum}}"],
    "AdamW, clipped": ["Optimizer.name=AdamW", "Optimizer.clip_norm=1.0"],
    "LARS": ["Optimizer.name=LARS"],
    "average": ["Global.ema={decay: 0.9}"],
    "accumulated, recomputed": [
        "DataLoader.Train={batch_size: 6, global_batch: 24}",
        "Model.recompute=[stages]",
    ],
    "SyncBN": ["Model.sync_batchnorm=true"],
    "several sets": [f"DataLoader.Train.dataset={json.dumps(SETS)}"],
    "evaluated": [
        "Global.eval_every_steps=2",
        "DataLoader.Eval.dataset={name: 'tests.helpers.tiny_runs:NoisePairs'}",
    ],
}


PHOTOS = "DataLoader.Train.dataset={name: Synthetic, num_classes: 23, images_per_class: 5, image_shape: [3, 112, 112]}"
NETWORKS = {
    name: [PHOTOS, "DataLoader.Train.batch_size=2", f"Model={{name: {name}, embedding_size: 64}}"]
    for name in ("IResNet18", "MobileFaceNet", "FaceViT_tiny")
}


def cases():
    from tests.helpers.head_names import HEADS

    heads = {name: [f"Head={{name: {name}}}"] for name in HEADS.split(", ") if name.startswith("dist_")}
    found = {**CASES, **heads}
    return {name: {**found, **NETWORKS}[name] for name in names} if names else found


def round_once_more():
    """Let a CPU round products of 16 bits as devices do, which have no other result."""
    from plsc.heads import blocks

    exact = blocks.product_of_16_bits

    def rounded(a, b, transpose_a, transpose_b):
        return exact(a, b, transpose_a, transpose_b).astype(a.dtype).astype("float32")

    blocks.product_of_16_bits = rounded


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


def count_steps(trainer, target):
    """Write what the plug-in has counted in each step to target/step-N.json."""
    library = ctypes.CDLL(str(Path(os.environ["CUSTOM_DEVICE_ROOT"], "libpaddle-standin.so")))
    take = trainer.train_step

    def train_step(batch):
        library.standin_counts(os.devnull.encode())
        result = take(batch)
        library.standin_counts(str(target / f"rank-{distributed.rank()}-step-{trainer.step}.json").encode())
        return result

    trainer.train_step = train_step


distributed.init(device, threads)
import paddle
import paddle.distributed as dist

# Of plug-ins Paddle lets those with four names, npu and others, mix float32 with bfloat16.
sys.modules["paddle.amp.auto_cast"]._is_custom_device_bfloat16_supported = lambda: True
if device == "cpu":
    round_once_more()
    sum_in_rank_order()

from plsc.training.build import build_trainer
from plsc.utils.metrics import Metrics
from tests.helpers.tiny_runs import TINY

for name, overrides in cases().items():
    output = folder / name
    common = ["DataLoader.Eval.dataset=null", f"DataLoader.Train.batch_size={12 // distributed.world_size()}"]
    common += [f"Global.max_steps={steps}", f"Checkpoint.every_steps={steps}", f"Global.output_dir={output}"]
    if distributed.world_size() > 2:  # else Paddle's own reducer averages the gradients, in Gloo's order
        common.append("Model.recompute=[stages]")
    trainer = build_trainer(load(TINY, [*common, f"Global.device={device}", *overrides]))
    metrics = None
    if distributed.rank() == 0:
        output.mkdir(parents=True, exist_ok=True)
        metrics = Metrics(output)
    distributed.barrier()
    if "PLSC_TEST_COUNT" in os.environ:
        count_steps(trainer, output)
    trainer.train(metrics)
    if metrics:
        metrics.close()
    print(f"rank {distributed.rank()}: {name} done", flush=True)
distributed.barrier()
os._exit(0)  # all is written; a rank was once seen to crash in what Paddle does when a process ends
