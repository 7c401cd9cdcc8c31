"""Record small calls of Paddle, one by one: `python -m tests.gpu_ops.run_op_log FILE`, with
op_log.environment(). FILE: JSON, name -> [ops as name:dtype, bytes, waits]; "totals": how many kernels of
forward passes Paddle says that it has selected, and its log."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import paddle

from plsc.distributed.device import to_device
from tests.gpu_ops import op_log


def calls() -> dict:
    """Return name -> a call on float32 tensors x [16, 8] and table [1000, 8], and int64 rows [7]."""
    x = paddle.ones([16, 8])
    table = paddle.ones([1000, 8])
    rows = paddle.arange(7)
    new = paddle.ones([7, 8])
    momentum = paddle.zeros([16, 8])
    rate = paddle.full([], 0.1)
    weight = paddle.ones([8, 4])
    weight.stop_gradient = False

    many = [paddle.create_parameter([16, 8], "float32") for _ in range(40)]
    merged = paddle.optimizer.Momentum(0.1, 0.9, many, use_multi_tensor=True)
    for parameter in many:
        parameter.sum().backward()
    merged.step()  # makes the momenta

    def backward():
        paddle.matmul(x, weight).sum().backward()

    return {
        "product": lambda: paddle.matmul(x, x, transpose_y=True),
        "operator": lambda: x + x,
        "in place": lambda: x.add_(x),
        "view": lambda: (x.reshape([4, 32]), x[2:4], x.t(), x.unsqueeze(0), x.unbind()),
        "copy of a view": lambda: x.t() + 1,
        "no values": lambda: paddle.empty([5]),
        "rows of a table": lambda: paddle.gather(table, rows),
        "rows into a table": lambda: paddle.scatter_(table, rows, new),
        "list": lambda: paddle.concat([x, x]),
        "long list": lambda: merged.step(),
        "16 bits": lambda: x.astype("bfloat16"),
        "update": lambda: paddle._C_ops.momentum_(
            x, x, momentum, rate, None, 0.9, False, "", 0.0, False, 1.0
        ),
        "autograd": backward,
        "numpy": lambda: x.numpy(),
        "float": lambda: float(x[0, 0]),
        "bool": lambda: bool(rate),
        "item": lambda: rate.item(),
        "tolist": lambda: rows.tolist(),
        "array": lambda: np.asarray(rows),
        "print": lambda: str(rate),
        "if": lambda: 1 if rate else 0,
        "to_tensor": lambda: paddle.to_tensor(np.zeros(3, np.float32)),
        "mask": lambda: x[x > weight[0, 0]],
        "upload": lambda: to_device(np.zeros(3)),
    }


def main(target: Path) -> None:
    op_log.quiet()
    paddle.set_flags({"FLAGS_low_precision_op_list": 1})
    found = {}
    log = target.with_suffix(".log")
    named = calls()
    paddle.base.core.clear_low_precision_op_list()
    with op_log.record(log) as recorder:
        for name, call in named.items():
            recorder.enter(name)
            call()
    said = paddle.base.core.get_low_precision_op_list()
    ops, waits = op_log.parse(log.read_text(errors="replace"))
    for name in named:
        here = [op for op in ops if op.part == name]
        found[name] = [
            [f"{op.name}:{op.dtype}" for op in here],
            sum(op.bytes for op in here),
            [wait.name for wait in waits if wait.part == name],
        ]
    text = log.read_text(errors="replace")
    forward = [name for name in re.findall(r"\] (\w+) API kernel key", text) if not name.endswith("_grad")]
    found["totals"] = [sum(sum(map(int, counts.split(","))) for counts in said.values()), len(forward)]
    target.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)  # Paddle's log may hang at the end of a process
