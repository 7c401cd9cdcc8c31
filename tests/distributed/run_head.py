"""On W ranks: every head against the dense float64 reference. Each rank prints its worst errors and asserts
them.

With the argument 7, every seventh head case, which takes each value in turn, runs ten steps, and all
optimizer cases run three. With 1 all cases run: those seventh ones and the optimizers' ten steps, the others
three.
"""

import itertools
import sys

from plsc import distributed
from tests.heads.cases import optimizer_cases, rounding
from tests.heads.errors import head_errors

distributed.init("cpu", threads=1)
W = distributed.world_size()
uneven = [5 + 3 * rank for rank in range(W)]
worst = {}
cases = [
    {"name": name, "num_classes": C, "counts": uneven, "labels": labels, "bias": bias, "sharded": sharded}
    for (name, bias), sharded in itertools.product(
        [("softmax", False), ("softmax", True), ("arcface", False), ("cosface", False)], [True, False]
    )
    for C, labels in [(10, "any"), (11, "one rank"), (1003, "any"), (1003, "gap"), (max(1, W - 1), "any")]
]
cases += [
    {"name": name, "num_classes": C, "counts": uneven, "sample_rate": rate, "steps": 4}
    for name in ("softmax", "arcface", "cosface")
    for C in (1, 10, 53, 1003)
    for rate in (0.5, 0.1, 0.001)
]
cases += [
    {"name": "arcface", "num_classes": C, "counts": uneven, "sample_rate": rate, "bank": "host", "steps": 4}
    for C in (1, 1003)
    for rate in (1.0, 0.1)
]
every = int(sys.argv[1]) if sys.argv[1:] else 1
cases = [case if number % 7 == 0 else {"steps": 3, **case} for number, case in enumerate(cases)][::every]
cases += [{"steps": 10 if every == 1 else 3, **case} for case in optimizer_cases(uneven)]
for case in cases:
    errors, bounds = head_errors(**case), rounding(**case)
    for key, error in errors.items():
        assert error <= bounds.get(key, 0), (W, distributed.rank(), case, key, error, bounds)
        worst[key] = max(worst.get(key, 0.0), error)
print(
    f"rank {distributed.rank()} of {W}: {len(cases)} cases, worst relative errors",
    {k: f"{v:.1e}" for k, v in worst.items()},
)
