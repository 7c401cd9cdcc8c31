"""On W ranks: the losses on pairs of the embeddings of all ranks, value and gradient, as in one process."""

from plsc import distributed
from tests.training.parts.test_pair_losses import CASES, compare

distributed.init("cpu", threads=1)
for name in CASES:
    compare(name)
