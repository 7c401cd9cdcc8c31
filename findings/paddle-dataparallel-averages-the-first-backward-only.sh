#!/usr/bin/env bash
# paddlepaddle 3.3.1 (and 2.6.2), CPU, two ranks on Gloo.
#
# Guess: DataParallel averages the gradients of all losses over the ranks, also if a step calls the network
# twice, such as for two views of a photo or for an anchor and a positive.
# Seen: after two forward passes it averages the gradients of the first backward pass alone. Those of the second
# stay local, so the ranks' weights drift apart. There is no message. One backward pass for the sum of both
# losses is right, and so are two pairs of forward and backward. (We found no report.)
#
#     rank 0: two losses 2.5 sum 3.0 in turn 3.0
#     rank 1: two losses 3.5 sum 3.0 in turn 3.0
#
# (The gradient of one loss is 1 on rank 0 and 2 on rank 1. The averages of two losses add up to 3.)
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet paddlepaddle==3.3.1 numpy==2.4.6 setuptools
cat >twice.py <<'PY'
import paddle
import paddle.distributed as dist

dist.init_parallel_env()
rank = dist.get_rank()
x = paddle.to_tensor([[rank + 1.0]])
found = []
for way in ("two losses", "sum", "in turn"):
    layer = paddle.nn.Linear(1, 1, bias_attr=False)
    network = paddle.DataParallel(layer)
    if way == "in turn":
        network(x).sum().backward()
        network(x).sum().backward()
    else:
        first, second = network(x).sum(), network(x).sum()
        if way == "sum":
            (first + second).backward()
        else:
            first.backward()
            second.backward()
    found.append(f"{way} {layer.weight.grad.item()}")
print(f"rank {rank}:", *found, flush=True)
PY
venv/bin/python -m paddle.distributed.launch --nproc_per_node 2 --log_dir log twice.py >/dev/null 2>&1
grep -h "^rank" log/workerlog.* | sort | tee seen
diff seen - <<'EOF'
rank 0: two losses 2.5 sum 3.0 in turn 3.0
rank 1: two losses 3.5 sum 3.0 in turn 3.0
EOF
