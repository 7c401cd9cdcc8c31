"""Record the ops and dtypes of training steps as a GPU would run them: `python -m tests.gpu_ops.record FILE
FOLDER`, with op_log.environment(sizes=False). FILE: JSON, case -> op -> dtypes."""

from __future__ import annotations

import collections
import json
import os
import sys
from pathlib import Path

from tests.gpu_ops import op_log

IMAGES = {"FaceViT_tiny": [3, 32, 32], "IResNet18": [3, 32, 32], "MobileFaceNet": [3, 112, 112]}
IMAGES |= {"ResNet50": [3, 32, 32], "SmallResNet": [1, 12, 10], "LeNet": [1, 28, 28]}


def noise(shape: list[int]) -> dict:
    return {"name": "Synthetic", "num_classes": 23, "images_per_class": 5, "image_shape": shape}


def data_set(shape: list[int]) -> str:
    return f"DataLoader.Train.dataset={json.dumps(noise(shape))}"


def cases() -> dict[str, list[str]]:
    """Return name -> overrides of tiny.yaml: each backbone, margin, sort of head, rule and optimizer at least
    once."""
    from plsc.utils.registry import MARGINS

    found = {
        name: [f"Model={{name: {name}, embedding_size: 8}}", data_set(shape)]
        for name, shape in IMAGES.items()
    }
    found |= {f"margin {name}": [f"Head.name=dist_{name}"] for name in MARGINS.names()}
    found |= {
        "softmax": ["Head={name: dist_softmax, bias: true}"],
        "classes on every rank": ["Head.name=arcface"],
        "sub-centres": ["Head.sub_centres=2"],
        "filter": ["Head.filter_above=0.1"],
        "straight through": ["Head.gradient=straight_through"],
        "sampled": ["Head.sample_rate=0.3"],
        "sampled sub-centres": ["Head.sample_rate=0.3", "Head.sub_centres=2"],
        "sampled softmax": ["Head={name: dist_softmax, bias: true, sample_rate: 0.3}"],
        "softmaxes of their own": [
            f"DataLoader.Train.dataset=[{', '.join([json.dumps({**noise([1, 12, 10]), 'head': 'own'})] * 2)}]"
        ],
        "small blocks": ["Head.logits_budget_mb=0.001"],
        "sampled small blocks": ["Head.sample_rate=0.3", "Head.logits_budget_mb=0.001"],
        "host bank": ["Head.bank=host"],
        "disk bank": ["Head={name: dist_arcface, bank: disk, sample_rate: 0.3}"],
        "bfloat16 bank": ["Head={name: dist_arcface, bank: host, bank_dtype: bfloat16}"],
        "bfloat16 products": ["Head.compute_dtype=bfloat16"],
        "float16 products": ["Head.compute_dtype=float16"],
        "sampled bfloat16 products": ["Head.compute_dtype=bfloat16", "Head.sample_rate=0.3"],
        "accumulated": ["DataLoader.Train.accumulate=2"],
        "recomputed": ["Model.recompute=[stages]"],
        "average": ["Global.ema={decay: 0.99}"],
        "clipped": ["Optimizer.clip_norm=0.1"],
        "float16": ["Global.amp={dtype: float16}"],
        "bfloat16": ["Global.amp={dtype: bfloat16}"],
        "nesterov": ["Optimizer.nesterov=true"],
        "frozen": ["Optimizer.freeze_norms=true"],
        "sampled nesterov": ["Optimizer.nesterov=true", "Head.sample_rate=0.3"],
    }
    for name in ("AdamW", "LARS"):
        found[name] = [f"Optimizer.name={name}"]
        found[f"sampled {name}"] = [f"Optimizer.name={name}", "Head.sample_rate=0.3"]
    return found


def main(target: Path, folder: Path) -> None:
    op_log.quiet()
    from plsc import distributed
    from tests.helpers.tiny_runs import make_trainer

    distributed.init("cpu", 1)
    found = {}
    for number, (name, overrides) in enumerate(cases().items()):
        fixed = ["Global.max_steps=2", "DataLoader.Eval.dataset=null", "DataLoader.Train.batch_size=4"]
        trainer = make_trainer(folder / str(number), *fixed, *overrides)
        with op_log.record(folder / "log", lines=False):
            trainer.train(None)
        ops, _ = op_log.parse((folder / "log").read_text(errors="replace"))
        dtypes = collections.defaultdict(set)
        for op in ops:
            dtypes[op.name].add(op.dtype)
        found[name] = {op: sorted(each) for op, each in dtypes.items()}
    target.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
    sys.stderr.flush()
    os._exit(0)  # Paddle's log may hang at the end of a process
