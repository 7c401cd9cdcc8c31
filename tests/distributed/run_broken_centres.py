"""On 2 ranks: a number of a class centre that is not finite on one rank gives every rank a loss that is not.

Prints how many cases there were.
"""

import itertools
import os

import numpy as np
import paddle

from plsc import distributed
from plsc.heads.build import make_head
from plsc.heads.margins import ArcFace, CosFace

distributed.init("cpu", threads=1)
rank, C, D = distributed.rank(), 24, 8
x = np.random.default_rng(rank).standard_normal((3, D)).astype(np.float32)
labels = np.array([1, 7, 9, 13, 20, 22])
margins, banks = (ArcFace, CosFace), ("device", "host")
cases = list(itertools.product((0, 1), ("nan", "inf", "1e30"), margins, ("0", "1"), banks))
for broken, value, margin, kernels, bank in cases:
    os.environ["PLSC_KERNELS"] = kernels
    head = make_head(C, D, margin(0.3), scale=8.0, bank=bank)
    if rank == broken:
        head.bank.load_rows(4, {"centres": np.full((1, D), float(value), np.float32)})
    emb = paddle.to_tensor(x, stop_gradient=False)
    out = head(emb, labels, 0, counts=[3, 3])
    out.loss.backward()
    assert not np.isfinite(out.loss.item()), (broken, value, margin, kernels, bank)
print(f"{len(cases)} cases", flush=True)
distributed.barrier()
os._exit(0)
