#!/usr/bin/env bash
# paddlepaddle 3.3.1, CPU, one machine.
#
# Guess: `paddle.distributed.launch --nnodes 2 --master ...` waits for the second node, or fails.
# Seen: if the environment has PADDLE_TRAINER_ENDPOINTS, as every process has that a rank of another launch starts,
# the launcher counts the hosts in that variable instead. With one host in it, each node trains alone, with a world
# size of 1, and ends with exit code 0. A log line says "args reset by env PADDLE_TRAINER_ENDPOINTS".
#
#     ranks 1, exit code 0
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet paddlepaddle==3.3.1 numpy==2.4.6 setuptools
cat >rank.py <<'PY'
import os

print("ranks", os.environ["PADDLE_TRAINERS_NUM"])
PY
code=0
PADDLE_TRAINER_ENDPOINTS=127.0.0.1:6170,127.0.0.1:6171 timeout 60 venv/bin/python -m paddle.distributed.launch \
    --nnodes 2 --rank 0 --master 127.0.0.1:47391 --log_dir log rank.py >launcher.log 2>&1 || code=$?
echo "$(cat log/workerlog.0), exit code $code"
grep -q "args reset by env PADDLE_TRAINER_ENDPOINTS" launcher.log
test "$(cat log/workerlog.0), exit code $code" = "ranks 1, exit code 0"
