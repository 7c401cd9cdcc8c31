#!/usr/bin/env bash
# paddlepaddle 3.3.1 (and 2.6.2), CPU.
#
# Guess: paddle.Model.evaluate returns the mean loss over the data set.
# Seen: it returns the loss of the last batch alone. Three samples with losses 1, 9 and 16 give 16, and in the
# opposite order they give 1. A checkpoint that is chosen by this number is chosen by one batch.
#
#     [16.0] [1.0] mean 8.67
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet paddlepaddle==3.3.1 numpy==2.4.6 setuptools
cat >evaluate.py <<'PY'
import numpy as np
import paddle


class Targets(paddle.io.Dataset):
    def __init__(self, targets):
        self.targets = np.array(targets, np.float32).reshape(-1, 1)

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return np.ones(1, np.float32), self.targets[index]


net = paddle.nn.Linear(1, 1)
net.weight.set_value(paddle.zeros([1, 1]))
net.bias.set_value(paddle.zeros([1]))
model = paddle.Model(net)
model.prepare(loss=paddle.nn.MSELoss())
first, second = (
    model.evaluate(Targets(order), batch_size=1, verbose=0)["loss"] for order in ([1, 3, 4], [4, 3, 1])
)
print(first, second, "mean 8.67")
assert first == [16.0] and second == [1.0]
PY
venv/bin/python evaluate.py 2>/dev/null
