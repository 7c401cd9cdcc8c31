#!/usr/bin/env bash
# paddlepaddle 3.3.1 and 2.6.2, CPU, two ranks on Gloo.
#
# Guess: all_reduce with MAX or MIN returns the larger or smaller of the ranks' float16 numbers.
# Seen: 3.3.1 compares the bits as unsigned integers. It therefore takes every negative number for larger than
# every positive one, and -2 for larger than -1. The maximum of 3 and -3 is -3, and the minimum is 3. Two
# positive numbers come out right, so a test with positive numbers does not show it. A softmax over classes on
# several ranks subtracts such a maximum of the logits, and logits of cosines are often negative. float32 and
# bfloat16 are right, and so is 2.6.2.
#
#     3.3.1 float32: max [2.0, -1.0, 3.0] min [1.0, -2.0, -3.0]
#     3.3.1 bfloat16: max [2.0, -1.0, 3.0] min [1.0, -2.0, -3.0]
#     3.3.1 float16: max [2.0, -2.0, -3.0] min [1.0, -1.0, 3.0]
#     2.6.2 float32: max [2.0, -1.0, 3.0] min [1.0, -2.0, -3.0]
#     2.6.2 bfloat16: max [2.0, -1.0, 3.0] min [1.0, -2.0, -3.0]
#     2.6.2 float16: max [2.0, -1.0, 3.0] min [1.0, -2.0, -3.0]
#
# (Rank 0 gives 1, -2 and 3, rank 1 gives 2, -1 and -3. Both ranks get the same.)
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat >extremes.py <<'PY'
import paddle
import paddle.distributed as dist

dist.init_parallel_env()
numbers = [[1.0, -2.0, 3.0], [2.0, -1.0, -3.0]][dist.get_rank()]
for dtype in ("float32", "bfloat16", "float16"):
    found = []
    for op in (dist.ReduceOp.MAX, dist.ReduceOp.MIN):
        x = paddle.to_tensor(numbers).astype(dtype)
        dist.all_reduce(x, op=op)
        found.append(x.astype("float32").tolist())
    print(f"{paddle.__version__} {dtype}: max {found[0]} min {found[1]}", flush=True)
PY
right="max [2.0, -1.0, 3.0] min [1.0, -2.0, -3.0]"
for case in "3.3.1 2.4.6 max [2.0, -2.0, -3.0] min [1.0, -1.0, 3.0]" "2.6.2 1.26.4 $right"; do
    read -r paddle numpy half <<<"$case"
    python3 -m venv "venv-$paddle"
    "venv-$paddle/bin/pip" install --quiet "paddlepaddle==$paddle" "numpy==$numpy" "protobuf<6" setuptools
    "venv-$paddle/bin/python" -m paddle.distributed.launch --nproc_per_node 2 --log_dir "log-$paddle" extremes.py \
        >/dev/null 2>&1
    for rank in 0 1; do
        grep "^$paddle " "log-$paddle/workerlog.$rank" >seen
        diff seen - <<EOF
$paddle float32: $right
$paddle bfloat16: $right
$paddle float16: $half
EOF
    done
    cat seen
done
