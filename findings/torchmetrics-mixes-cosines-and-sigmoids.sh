#!/usr/bin/env bash
# torchmetrics 1.9.0 with torch 2.13.0, CPU.
#
# Guess: AUROC and EER depend on the order among all scores, so cosines may be given in batches or at once.
# Seen: each update applies a sigmoid to its batch if one score in it is below 0 or above 1. A batch that has
# no negative cosine keeps its cosines. Both kinds are then ranked together, and a cosine of -0.1 becomes 0.48,
# which exceeds an unchanged 0.4 for the same person. For well separated pairs, the equal error rate rises from
# 0.2 % to 20 %, and depends on the batch size. The documentation has the sigmoid, but not that each batch
# decides for itself. Give (cosine + 1) / 2. (torchmetrics issues 1989, 2195 and 3179 report it.)
#
#     at once: AUROC 1.0000, EER 0.002
#     batches with 4 pairs: AUROC 0.8811, EER 0.196
#     batches with 4 pairs, (cosine + 1) / 2: AUROC 1.0000, EER 0.002
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 torchmetrics==1.9.0 numpy==2.4.6 setuptools
cat >pairs.py <<'PY'
import torch
from torchmetrics.classification import BinaryAUROC, BinaryEER

torch.manual_seed(0)
count = 2000
same, other = torch.randn(count) * 0.12 + 0.55, torch.randn(count) * 0.07 + 0.03
cosines = torch.cat([same, other]).clamp(-1, 1)
labels = torch.cat([torch.ones(count), torch.zeros(count)]).long()
order = torch.randperm(2 * count)
cosines, labels = cosines[order], labels[order]


def measure(name, scores, size):
    auroc, eer = BinaryAUROC(), BinaryEER()
    for metric in (auroc, eer):
        for start in range(0, len(scores), size):
            metric.update(scores[start : start + size], labels[start : start + size])
    found = auroc.compute().item(), eer.compute().item()
    print(f"{name}: AUROC {found[0]:.4f}, EER {found[1]:.3f}")
    return found


once = measure("at once", cosines, 2 * count)
batches = measure("batches with 4 pairs", cosines, 4)
scaled = measure("batches with 4 pairs, (cosine + 1) / 2", (cosines + 1) / 2, 4)
assert once[0] > 0.999 and once[1] < 0.01 and scaled[0] > 0.999 and scaled[1] < 0.01
assert batches[0] < 0.95 and batches[1] > 0.1
PY
venv/bin/python pairs.py 2>/dev/null
