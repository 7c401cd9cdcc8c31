#!/usr/bin/env bash
# paddlepaddle 3.3.1 (and 2.6.2), CPU.
#
# Guess: while rank 0 waits for the other ranks, other threads of its process run, so a watchdog can report
# the wait.
# Seen: paddle.distributed holds the interpreter's lock until the last rank has connected. A thread that
# counts every 0.1 s almost stands still meanwhile. Nothing in Python can report that a rank is missing.
#
#     waited 5 s, the thread counted 3
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet paddlepaddle==3.3.1 numpy==2.4.6 setuptools
cat >meet.py <<'PY'
import os
import socket
import sys
import threading
import time

rank = sys.argv[1]
ports = sys.argv[2:]
endpoints = [f"127.0.0.1:{port}" for port in ports[1:]]
os.environ.update(
    PADDLE_TRAINERS_NUM="2",
    PADDLE_TRAINER_ID=rank,
    PADDLE_MASTER=f"127.0.0.1:{ports[0]}",
    PADDLE_CURRENT_ENDPOINT=endpoints[int(rank)],
    PADDLE_TRAINER_ENDPOINTS=",".join(endpoints),
    PADDLE_DISTRI_BACKEND="gloo",
)
import paddle.distributed as dist

if rank == "1":
    time.sleep(5)  # late
    dist.init_parallel_env()
    sys.exit()
count = 0


def tick():
    global count
    while True:
        count += 1
        time.sleep(0.1)


threading.Thread(target=tick, daemon=True).start()
time.sleep(0.5)
before, began = count, time.monotonic()
dist.init_parallel_env()
counted, waited = count - before, time.monotonic() - began
print(f"waited {waited:.0f} s, the thread counted {counted}", flush=True)
assert waited > 3, "rank 1 was not late"
# Free, the thread would count about ten times a second.
assert counted < 3 * waited, "the thread ran"
PY
ports=$(venv/bin/python -c 'import socket
made = [socket.socket() for _ in range(3)]
[each.bind(("127.0.0.1", 0)) for each in made]
print(*[each.getsockname()[1] for each in made])')
venv/bin/python meet.py 1 $ports >/dev/null 2>&1 &
venv/bin/python meet.py 0 $ports 2>/dev/null
wait
