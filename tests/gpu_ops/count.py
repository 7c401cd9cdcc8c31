"""Count what training steps ask of a GPU: how many kernels they launch, and how often the host waits for
them.

On a GPU each kernel is a launch, and each value that Python reads is a wait until all launched kernels are
done. Paddle executes the same ops on a CPU, so both are counted there, exactly and on any machine.

Kernels: Paddle's C++ side logs each kernel that it selects, in Python's calls and in autograd's. Not counted
is what launches nothing: views (Paddle's strided kernels) and memory without values (`empty`). Bytes (Paddle
3): each operator's inputs and outputs. If it takes or writes only some rows, only these count.
Waits: the Tensor methods by which Python reads a value, copies from pageable memory, and ops whose
output's shape depends on values. What `device.to_device` copies waits for nothing on a GPU.

    python -m tests.gpu_ops.count head 1024 125000    # samples, classes, keys: kernels and bytes of a head
    # with environment(). FILE: JSON, case -> part -> kernels, waits
    python -m tests.gpu_ops.count FILE FOLDER
"""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

STEP = 2  # which is counted: the first makes what later ones have, as an optimizer's state
HEAD = ("head forward", "head backward", "head update")
SAMPLES, CLASSES, WIDTH = 16, 1280, 512
HEADS = {"all classes": [], "sampled": ["Head.sample_rate=0.1"]}
STEPS = {
    "SmallResNet": ["Model.embedding_size=8"],
    "IResNet50": ["Model.name=IResNet50", "Model.embedding_size=8"],
}

_MARK = "@@@@ "
# Paddle's files whose log says which kernels run: forward, backward, and copies of views.
_FILES = ("*_functions", "*_function", "*_func", "*nodes", "*_node", "*api*", "utils", "data_transform")
_READS = ("numpy", "item", "tolist", "cpu", "__array__", "__bool__", "__int__", "__float__", "__index__")
_READS += ("__str__", "__repr__", "__contains__", "__nonzero__", "set_value", "copy_")
# Ops that wait for an element count, or that are made from a host list.
_WAITING_OPS = {"nonzero", "masked_select", "unique", "unique_consecutive", "bincount", "where_index"}
_WAITING_OPS |= {"assign_value", "assign_value_", "repeat_interleave_with_tensor_index"}
_NO_LAUNCH = {"empty", "empty_like", "shape", "share_data", "view_shape", "view_dtype", "data"}
_MESSAGE = re.compile(r"^(?=\t*[IWE]\d{4} \d\d:\d\d:|@@@@ )", re.MULTILINE)
_KERNEL = re.compile(r"\] (\w+) kernel: \{(.*)", re.DOTALL)

_TENSOR = re.compile(
    r"(Grad:\s*\{[^}]*)?Type: DenseTensor,\s*Dtype: (\w+),\s*Place: \S+\s*Shape: ([\d, ]*),\n"
)
_BYTES_OF = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "bfloat16": 2,
    "float16": 2,
    "bool": 1,
    "uint8": 1,
}
_VIEWS = {"reshape", "slice", "unbind", "flatten", "unsqueeze", "squeeze", "transpose", "split", "view_shape"}
_TAKES = {"gather", "gather_nd", "take_along_axis"}
_WRITES = {"index_put_", "scatter_"}

Counts = dict[str, dict[str, int]]  # part -> kernels, waits, bytes


def environment() -> dict[str, str]:
    """Return what a process must have in its environment from its start."""
    return {
        "PLSC_KERNELS": "0",  # the way of GPUs
        "FLAGS_use_stride_kernel": "1",  # else a view is a kernel, too
        "GLOG_minloglevel": "0",
        "GLOG_vmodule": ",".join(f"{name}=6" for name in _FILES),
    }


@contextlib.contextmanager
def recorded(log: Path) -> Iterator[None]:
    """Record the block into a file, which `parse` reads."""
    before = os.dup(2)
    with open(log, "wb") as file, contextlib.ExitStack() as undo:
        os.dup2(file.fileno(), 2)
        undo.callback(os.close, before)
        undo.callback(os.dup2, before, 2)
        for owner, name, wrapped in _patches():
            if hasattr(owner, name):
                undo.enter_context(mock.patch.object(owner, name, wrapped(getattr(owner, name))))
        yield


def _patches() -> Iterator[tuple[Any, str, Callable]]:
    import paddle

    from plsc.heads import softmax
    from plsc.training.parallel_backbone import ParallelBackbone

    for name in _READS:
        yield paddle.Tensor, name, functools.partial(_waiting, name)
    dense = type(paddle.empty([1]).get_tensor())
    for owner, name in (
        (dense, "set"),
        (dense, "__array__"),
        (paddle, "to_tensor"),
        (paddle.device, "synchronize"),
    ):
        yield owner, name, functools.partial(_waiting, name)
    for owner, name, part in (
        (ParallelBackbone, "forward", "forward"),
        (ParallelBackbone, "backward", "backward"),
        (softmax.SoftmaxHead, "__call__", "head forward"),
        (softmax._SoftmaxLoss, "backward", "head backward"),
        (softmax.SoftmaxHead, "update", "head update"),
    ):
        yield owner, name, functools.partial(_part, part)


_inside = ["rest"]


def _part(part: str, function: Callable) -> Callable:
    """Note that a part of the step begins and ends with a call."""

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        _inside.append(part)
        _write("part", part)
        try:
            return function(*args, **kwargs)
        finally:
            _inside.pop()
            _write("part", _inside[-1])

    return wrapped


def _waiting(name: str, function: Callable) -> Callable:
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        if not _queued(sys._getframe(1)):
            _write("wait", name)
        return function(*args, **kwargs)

    return wrapped


def _queued(frame: FrameType | None) -> bool:
    """Say whether a call is `to_device`'s, or inside of another that was noted."""
    while frame is not None:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if (path.endswith("plsc/distributed/device.py") and name == "to_device") or path == __file__:
            return name in ("to_device", "wrapped") and "part" not in frame.f_locals
        frame = frame.f_back
    return False


def _write(*words: str) -> None:
    os.write(2, f"{_MARK}{' '.join(words)}\n".encode())


def events(log: str) -> Iterator[tuple[str, str, int, int, int]]:
    """Read a log. Yields: the part, the name, and how many kernels, waits and bytes an entry counts for."""
    part = "rest"
    for text in _MESSAGE.split(log):
        message = text.lstrip("\t")
        if message.startswith(_MARK):
            kind, _, value = message[len(_MARK) :].partition("\n")[0].partition(" ")
            part = value if kind == "part" else part
            yield part, value, 0, int(kind == "wait"), 0
        elif kernel := _KERNEL.search(message):
            launches = "STRIDED" not in kernel[2] and kernel[1] not in _NO_LAUNCH
            yield part, kernel[1], int(launches), int(launches and kernel[1] in _WAITING_OPS), 0
        elif "Trans2Contiguous" in message:
            yield part, "contiguous", 1, 0, 0
        elif "Forward Debug Info" in message:
            yield part, _api(message), 0, 0, _moved(message)


def parse(log: str) -> Counts:
    """Count the kernels, waits and bytes of each part in a log."""
    found: Counts = collections.defaultdict(lambda: {"kernels": 0, "waits": 0, "bytes": 0})
    for part, _, kernels, waits, moved in events(log):
        for kind, number in (("kernels", kernels), ("waits", waits), ("bytes", moved)):
            found[part][kind] += number
    return dict(found)


def _api(message: str) -> str:
    return re.sub(r"\d+$", "", re.search(r"API_Name: (\w+)", message)[1])


def _moved(message: str) -> int:
    """Count the bytes that an operator moves, from what Paddle logs of it."""
    name = _api(message)
    given, _, results = message.partition("Output: [")
    given, results = _sizes(given), _sizes(results)
    if name.rstrip("_") in _VIEWS:
        return 0
    if name in _TAKES:
        return 2 * sum(results)
    return 2 * sum(given[1:]) if name in _WRITES else sum(given) + sum(results)


def _sizes(text: str) -> list[int]:
    return [
        math.prod(map(int, re.findall(r"\d+", shape))) * _BYTES_OF[dtype]
        for grad, dtype, shape in _TENSOR.findall(text.replace("\t", ""))
        if not grad
    ]


def count_head(log: Path, *keys: str, samples: int = SAMPLES, classes: int = CLASSES) -> Counts:
    """Count a step of a head alone, called as the trainer calls it."""
    import numpy as np
    import paddle

    from plsc.config import load
    from plsc.heads.build import build_head

    cfg = load(None, [*keys])
    head = build_head(cfg.Head, cfg.Optimizer.build_rule(), classes, WIDTH, cfg.Global.seed)
    rng = np.random.default_rng(0)
    emb_BD = paddle.to_tensor(rng.standard_normal((samples, WIDTH), np.float32), stop_gradient=False)
    label_N = rng.integers(0, classes, samples)
    for number in range(STEP + 1):
        with recorded(log):
            out = head(emb_BD, label_N, number, counts=[samples])
            out.loss.backward()
            head.update(0.1, number)
        emb_BD.clear_grad()
    return parse(log.read_text(errors="replace"))


def count_step(log: Path, folder: Path, *keys: str) -> Counts:
    """Count a step of a whole training."""
    from plsc import distributed
    from plsc.config import load
    from plsc.training.build import build_trainer

    shape = [1, 28, 28] if "Model.name=IResNet50" not in keys else [3, 32, 32]
    data = {"name": "Synthetic", "num_classes": 20, "images_per_class": 4, "image_shape": shape}
    common = [f"Global.output_dir={folder}", f"Global.max_steps={STEP + 1}", "DataLoader.Eval.dataset=null"]
    common += [f"DataLoader.Train.dataset={json.dumps(data)}", "DataLoader.Train.batch_size=4"]
    trainer = build_trainer(load(None, [*common, *keys]))
    take = trainer.train_step

    def train_step(batch):
        with recorded(log):
            return take(batch)

    trainer.train_step = train_step
    trainer.train(None)
    distributed.barrier()
    return parse(log.read_text(errors="replace"))


def show_head(samples: int, classes: int, *keys: str) -> None:
    """Print the kernels and bytes of a step of a head, those that move most first."""
    from plsc import distributed
    from plsc.utils.text import table

    distributed.init("cpu", os.cpu_count())
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        counts = count_head(log, *keys, samples=samples, classes=classes)
        moved = [(number / 1e9, name, part) for part, name, *_, number in events(log.read_text()) if number]
    print(table(sorted(moved, reverse=True)[:20], ["GB", "operator", "part"]))
    for kind, unit in (("kernels", 1), ("waits", 1), ("bytes", 1e9)):
        print(kind if unit == 1 else "GB", sum(part[kind] for part in counts.values()) / unit)


def main(target: Path, folder: Path) -> None:
    from plsc import distributed

    distributed.init("cpu", 1)
    log = folder / f"log{distributed.rank()}"
    found = {name: count_step(log, folder / name, *keys) for name, keys in STEPS.items()}
    if distributed.world_size() == 1:
        found |= {name: count_head(log, *keys) for name, keys in HEADS.items()}
    if distributed.rank() == 0:
        target.write_text(json.dumps(found))
    distributed.barrier()


if __name__ == "__main__":
    if sys.argv[1] != "head":
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    elif environment().items() <= os.environ.items():
        show_head(int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
        sys.stdout.flush()
    else:
        words = [sys.executable, "-m", "tests.gpu_ops.count", *sys.argv[1:]]
        given = {**os.environ, **environment()}
        sys.exit(subprocess.run(words, check=False, env=given, stderr=subprocess.DEVNULL).returncode)
    os._exit(0)  # Paddle's log may hang at the end of a process
