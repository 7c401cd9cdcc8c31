#!/usr/bin/env bash
# paddlepaddle 3.3.1 (and 2.6.2), CPU, two ranks on Gloo.
#
# Guess: DataParallel averages the gradients of all parameters over the ranks, whether or not a part of the
# network is recomputed.
# Seen: parameters inside fleet.utils.recompute keep the gradients of their own rank. Only those outside are
# averaged. There is no message, and the ranks drift apart from the first update on.
#
#     rank 0 inside 7.422 outside 5.452
#     rank 1 inside 14.845 outside 5.452
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet paddlepaddle==3.3.1 numpy==2.4.6 setuptools
cat >net.py <<'PY'
import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from paddle.distributed.fleet.utils import recompute

fleet.init(is_collective=True)
paddle.seed(0)


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.inside = paddle.nn.Linear(4, 4)
        self.outside = paddle.nn.Linear(4, 1)

    def forward(self, x):
        return self.outside(recompute(self.inside, x))


net = Net()
x = paddle.ones([2, 4]) * (dist.get_rank() + 1)  # another batch on each rank
x.stop_gradient = False
parallel = fleet.distributed_model(net)
parallel(x).mean().backward()
inside, outside = (layer.weight.grad.abs().sum().item() for layer in (net.inside, net.outside))
print(f"rank {dist.get_rank()} inside {inside:.3f} outside {outside:.3f}", flush=True)
PY
venv/bin/python -m paddle.distributed.launch --nproc_per_node 2 --log_dir log net.py >/dev/null 2>&1
cat log/workerlog.* | grep '^rank' | sort | tee seen
awk '{inside[NR] = $4; outside[NR] = $6}
     END {exit !(NR == 2 && inside[1] != inside[2] && outside[1] == outside[2])}' seen
