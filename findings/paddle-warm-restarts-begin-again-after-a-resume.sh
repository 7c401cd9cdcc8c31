#!/usr/bin/env bash
# paddlepaddle 3.3.1 (and 2.6.2), CPU.
#
# Guess: a CosineAnnealingWarmRestarts whose state is saved and loaded returns the learning rates that it would
# have returned without the interruption, as PyTorch's does.
# Seen: its state has the epoch and the last rate, but not the place in the cycle. After the resume, the cycle
# begins at its start, with the highest rate. A run that resumes near the end of a cycle loses what the low
# rates have gained, and all later restarts move. There is no message. After set_state_dict, call
# scheduler.step(scheduler.last_epoch), which computes the place again.
#
#     without:     0.0345 0.0206 0.0095 0.0024 0.1000
#     resumed:     0.0345 0.0206 0.0976 0.0905 0.0794
#     with a step: 0.0345 0.0206 0.0095 0.0024 0.1000
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet paddlepaddle==3.3.1 numpy==2.4.6 setuptools
cat >resume.py <<'PY'
from paddle.optimizer.lr import CosineAnnealingWarmRestarts


def rates(how):
    """Return the rates of epochs 6 to 10. The run is interrupted after epoch 7."""
    scheduler = CosineAnnealingWarmRestarts(0.1, T_0=10)
    found = []
    for epoch in range(11):
        found.append(f"{scheduler():.4f}")
        if epoch == 7 and how != "without":
            state = scheduler.state_dict()
            scheduler = CosineAnnealingWarmRestarts(0.1, T_0=10)
            scheduler.set_state_dict(state)
            if how == "with a step":
                scheduler.step(scheduler.last_epoch)
        scheduler.step()
    return found[6:]


seen = {how: rates(how) for how in ("without", "resumed", "with a step")}
for how, found in seen.items():
    print(f"{how + ':':12}", *found)
assert seen["resumed"][2:4] == ["0.0976", "0.0905"]
assert seen["without"] == seen["with a step"] != seen["resumed"]
PY
venv/bin/python resume.py 2>/dev/null
