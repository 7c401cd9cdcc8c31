#!/usr/bin/env bash
# paddlepaddle 3.3.1, CPU (2.6.2 leaves none).
#
# Guess: a network that was loaded by paddle.jit.load, called once and deleted leaves nothing behind.
# Seen: each load and call leaves five threads, which neither `del` nor the garbage collector ends. A service
# that loads a new export every hour collects them.
#
#     threads 2 7 12 17 22 27
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet paddlepaddle==3.3.1 numpy==2.4.6 setuptools
cat >load.py <<'PY'
import gc
import os

import paddle
from paddle.static import InputSpec

net = paddle.nn.Linear(4, 2)
paddle.jit.save(net, "saved/net", input_spec=[InputSpec([None, 4], "float32")])
threads = [len(os.listdir("/proc/self/task"))]
for _ in range(5):
    loaded = paddle.jit.load("saved/net")
    loaded(paddle.ones([1, 4]))
    del loaded
    gc.collect()
    threads.append(len(os.listdir("/proc/self/task")))
print("threads", *threads)
assert [b - a for a, b in zip(threads, threads[1:])] == [5] * 5
PY
venv/bin/python load.py 2>/dev/null
