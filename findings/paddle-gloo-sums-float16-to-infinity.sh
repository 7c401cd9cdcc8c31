#!/usr/bin/env bash
# paddlepaddle 3.3.1 and 2.6.2, CPU, two ranks on Gloo.
#
# Guess: all_reduce of float16 tensors gives their sum, as it does for float32 and bfloat16.
# Seen: in 3.3.1 the float16 sum of 1 and 2 is inf on both ranks, without an error. float32 and bfloat16 give 3.
# In 2.6.2 all three give 3.
#
#     3.3.1 rank 0 float32 3.0 bfloat16 3.0 float16 inf
#     3.3.1 rank 1 float32 3.0 bfloat16 3.0 float16 inf
#     2.6.2 rank 0 float32 3.0 bfloat16 3.0 float16 3.0
#     2.6.2 rank 1 float32 3.0 bfloat16 3.0 float16 3.0
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat >sums.py <<'PY'
import paddle
import paddle.distributed as dist

dist.init_parallel_env()
sums = []
for dtype in ("float32", "bfloat16", "float16"):
    x = paddle.full([1], dist.get_rank() + 1.0).astype(dtype)
    dist.all_reduce(x)
    sums.append(f"{dtype} {x.astype('float32').item()}")
print(paddle.__version__, "rank", dist.get_rank(), *sums, flush=True)
PY
for version in "3.3.1 inf numpy==2.4.6" "2.6.2 3.0 numpy==1.26.4"; do
    read -r paddle sum numpy <<<"$version"
    python3 -m venv "venv-$paddle"
    "venv-$paddle/bin/pip" install --quiet "paddlepaddle==$paddle" "$numpy" "protobuf<6" setuptools
    "venv-$paddle/bin/python" -m paddle.distributed.launch --nproc_per_node 2 --log_dir "log-$paddle" sums.py \
        >/dev/null 2>&1
    cat "log-$paddle"/workerlog.* | grep "^$paddle rank" | sort | tee seen
    [ "$(grep -c "float32 3.0 bfloat16 3.0 float16 $sum\$" seen)" = 2 ]
done
