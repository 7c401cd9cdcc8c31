"""On W ranks: the predicted classes are those of one argmax over all logits, and the same on every rank."""

from plsc import distributed
from tests.heads.classify_cases import classify_equals_argmax

distributed.init("cpu", threads=1)
print(f"rank {distributed.rank()}: {classify_equals_argmax()} cases classified")
