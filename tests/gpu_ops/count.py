"""Count what a training step asks of a GPU: kernels, waits of the host, bytes. Nothing is measured, no GPU is
needed.

    python -m benchmarks step --count --classes 125000 --batch 1024 --dim 512 --rate 0.1 --json step.json
    python -m benchmarks step --count -c configs/face_large.yaml -o DataLoader.Train.batch_size=8

A process of its own takes the GPU's way on the CPU (PLSC_KERNELS=0) and logs Paddle's ops (op_log.py).
Counted is a step from asking for its batch to asking for the next; in it all is as in any later one.

Without a config the head is run at its whole size on noise, and the rest of the step with few images: kernels
and waits do not depend on their number, and bytes are a constant and a multiple of it, which two runs give.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest import mock

from benchmarks import MAIN
from plsc.config import Config, add_overrides, load
from plsc.distributed import environment, launcher
from plsc.errors import UserError
from plsc.utils.text import table
from tests.gpu_ops import op_log

# Which step is counted: the first makes what later ones have, as an optimizer's state.
HEAD_STEP = 2
TRAINER_STEP = 2
PARTS = ("input", "forward", "head forward", "head backward", "backward", "check", "optimizer", "head update")
HEAD = ("head forward", "head backward", "head update")
_NAMES = {"data": "input"}  # of regions, where PARTS says it otherwise
PASSED = ("name", "size", "classes", "batch", "dim", "threads", "ranks", "rate", "dtype", "config", "listing")
_FEW = (2, 4)  # images of the two runs of a step

Counts = dict[str, dict[str, int]]  # part -> kernels, waits, bytes


def add_arguments(part: argparse.ArgumentParser) -> None:
    part.add_argument(
        "--count", action="store_true", help="count kernels, waits of the host, and bytes of a step on a GPU"
    )
    part.add_argument("--rate", type=float, default=1.0, help="with --count: Head.sample_rate")
    part.add_argument("--dtype", help="with --count: Head.compute_dtype")
    part.add_argument("-c", "--config", help="with --count: a whole step of this config")
    add_overrides(part, "with --count: as in training")
    part.add_argument(
        "--listing", type=Path, help="with --count: write each kernel and wait with its line there"
    )
    part.add_argument(
        "--counted", help=argparse.SUPPRESS
    )  # "head", or images of a step: what the process counts


def count(args: argparse.Namespace) -> dict:
    """Count kernels, waits and bytes of a step by part; those of rank 0."""
    if args.counted:
        _count_here(args)
        sys.stdout.flush()
        os._exit(
            0
        )  # a process that has logged so much ends in a deadlock of Paddle's static objects now and then
    with tempfile.TemporaryDirectory() as folder:
        if args.config:
            parts = _in_new_processes(args, "step", Path(folder))
        else:
            parts = _whole_step(args, Path(folder))
    return {
        "counted": {
            name: getattr(args, name)
            for name in ("config", "override", "name", "classes", "batch", "dim", "rate", "dtype", "ranks")
        },
        "head": _total(parts, HEAD),
        "step": _total(parts, parts),
        "parts": parts,
    }


def _whole_step(args: argparse.Namespace, folder: Path) -> Counts:
    """Count the head alone, and steps of a few images, and join them to a step of args.batch images."""
    head = _in_new_processes(args, "head", folder)
    few, more = (_in_new_processes(args, str(images), folder) for images in _FEW)
    parts = {}
    for name, counted in more.items():
        slope, rest = divmod(counted["bytes"] - few[name]["bytes"], _FEW[1] - _FEW[0])
        assert name in HEAD or (rest == 0 and counted["kernels"] == few[name]["kernels"]), name
        parts[name] = {**counted, "bytes": counted["bytes"] + slope * (args.batch - _FEW[1])}
    return {name: head[name] if name in head else parts[name] for name in parts}


def _total(parts: Counts, names: Sequence[str]) -> dict[str, int]:
    return {
        key: sum(parts[name][key] for name in names if name in parts) for key in ("kernels", "waits", "bytes")
    }


def _in_new_processes(args: argparse.Namespace, what: str, folder: Path) -> Counts:
    words = []
    for name in PASSED:
        if getattr(args, name) is not None:
            words += [f"--{name}", str(getattr(args, name))]
    words += ["-o", *args.override] if args.override else []
    return run(what, words, 1 if what == "head" else args.ranks, folder)


def run(what: str, words: Sequence[str], ranks: int, folder: Path) -> Counts:
    """Count in new processes -> the counts of rank 0. what: "head", or images of a step. words: further
    arguments."""
    target = folder / f"{what}.json"
    asked = ["step", "--count", "--counted", what, "--row", str(target), *words]
    with mock.patch.dict(os.environ, op_log.environment()):
        last_line = launcher.run_ranks(asked, ranks, folder / "log", main=MAIN)
    if not target.exists():
        raise UserError(f"the step was not counted: {last_line}")
    return json.loads(target.read_text())


def _count_here(args: argparse.Namespace) -> None:
    """Count in this process; rank 0 writes the counts to args.row."""
    op_log.quiet()
    threads = environment.prepare(args.threads)
    from plsc import distributed

    distributed.init("cpu", threads)
    folder = args.row.with_suffix("")  # of all ranks, which write to one output_dir
    folder.mkdir(exist_ok=True)
    ops, waits = recorded(args, folder)
    if distributed.rank() == 0:
        args.row.write_text(json.dumps(by_part(ops, waits)))
        if args.listing:
            args.listing.with_suffix(f".{args.counted}{args.listing.suffix}").write_text(listing(ops, waits))
    distributed.barrier()


def recorded(args: argparse.Namespace, folder: Path) -> tuple[list[op_log.Op], list[op_log.Wait]]:
    """Run what args.counted says in this process, which has the environment of op_log -> ops and waits of a
    step."""
    log = folder / f"log{environment.rank_from_env()}"
    if args.counted == "head":
        _run_head(args, log)
    else:
        _run_step(args, folder, log)
    return op_log.parse(log.read_text(errors="replace"))


def config(args: argparse.Namespace, folder: Path) -> Config:
    """Build the config of the run that is counted: the user's, or one of noise with args.counted images a
    rank."""
    given = {
        "Global.output_dir": str(folder / "output"),
        "Global.max_steps": TRAINER_STEP + 2,
        "Global.log_every": 1000,
    }
    given |= {"DataLoader.Eval.dataset": None}
    if not args.config:
        images = args.counted if args.counted != "head" else args.batch
        shape = [1 if args.name in ("SmallResNet", "LeNet") else 3, args.size, args.size]
        wanted = -(-(TRAINER_STEP + 2) * int(images) * args.ranks // args.classes)
        data = {
            "name": "Synthetic",
            "num_classes": args.classes,
            "images_per_class": wanted,
            "image_shape": shape,
        }
        given |= {"Model.name": args.name, "Model.embedding_size": args.dim, "Head.sample_rate": args.rate}
        given |= {"DataLoader.Train.dataset": data, "DataLoader.Train.batch_size": int(images)}
        given |= {"Head.compute_dtype": args.dtype} if args.dtype else {}
    return load(
        args.config, [*(f"{key}={json.dumps(value)}" for key, value in given.items()), *args.override]
    )


def _run_head(args: argparse.Namespace, log: Path) -> None:
    """Run steps of the head alone, called as the trainer calls it."""
    import numpy as np
    import paddle
    from paddle.profiler import RecordEvent

    from plsc.training.build_head import build_head, build_rule

    cfg = config(args, log.parent)
    head = build_head(
        cfg.Head, build_rule(cfg.Optimizer), args.classes, args.dim, cfg.Global.seed, amp=cfg.Global.amp
    )
    rng = np.random.default_rng(0)
    emb_BD = paddle.to_tensor(rng.standard_normal((args.batch, args.dim), np.float32), stop_gradient=False)
    label_B = paddle.to_tensor(rng.integers(0, args.classes, args.batch))

    def steps() -> None:
        for number in range(HEAD_STEP + 1):
            with RecordEvent("data"):
                pass
            out = head(emb_BD, label_B, number, counts=[args.batch], check=False)
            out.loss.backward()
            head.step(0.1, number)
            emb_BD.clear_grad()

    _record(steps, log, HEAD_STEP)


def _run_step(args: argparse.Namespace, folder: Path, log: Path) -> None:
    """Run steps of a whole training."""
    from paddle.profiler import RecordEvent

    from plsc.data.loader import Loader
    from plsc.training.build import build_trainer

    def from_step(self: Loader, step: int) -> Iterator:
        batches = whole(self, step)
        while True:
            with RecordEvent("data"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    trainer = build_trainer(config(args, folder))
    whole = Loader.from_step
    Loader.from_step = from_step
    _record(lambda: trainer.train(None), log, TRAINER_STEP)


class _EnoughError(Exception):
    """Ends the run after the step that is counted."""


def _record(run: Callable[[], object], log: Path, counted: int) -> None:
    """Record one step of a run, from the region "data" to the next. counted: its number, from 1."""
    step = 0
    calls = 0  # of the head in this step
    recorder: op_log.Recorder | None = None
    context = op_log.record(log)

    def entered(part: str, again: bool) -> None:
        nonlocal step, calls, recorder
        if part == "data" and not again:
            step += 1
            calls = 0
            if step == counted:
                recorder = context.__enter__()
            elif step > counted:
                raise _EnoughError
        if part == "head":
            calls += not again
            part = HEAD[min(calls, len(HEAD)) - 1]
        if recorder and part != "gather":  # collectives count where they are called
            recorder.enter(_NAMES.get(part, part))

    try:
        with _regions(entered):
            run()
    except _EnoughError:
        pass
    finally:
        if recorder:
            context.__exit__(None, None, None)
    assert step > counted, "a run of too few steps"


@contextlib.contextmanager
def _regions(entered: Callable[[str, bool], object]) -> Iterator[None]:
    """Call `entered` with each named region of a step that begins, or goes on after an inner one, and whether
    it goes on."""
    from paddle.profiler import RecordEvent

    inside = ["rest"]

    def begin(event: RecordEvent) -> None:
        inside.append(event.name)
        entered(event.name, False)

    def end(_: RecordEvent) -> None:
        inside.pop()
        entered(inside[-1], True)

    with mock.patch.multiple(RecordEvent, begin=begin, end=end):
        yield


def by_part(ops: Sequence[op_log.Op], waits: Sequence[op_log.Wait]) -> Counts:
    """Count by part of the step, in its order."""
    names = dict.fromkeys((*PARTS, *(each.part for each in (*ops, *waits))))
    return {
        name: {
            "kernels": sum(op.part == name for op in ops),
            "waits": sum(wait.part == name for wait in waits),
            "bytes": sum(op.bytes for op in ops if op.part == name),
        }
        for name in names
        if any(each.part == name for each in (*ops, *waits))
    }


def listing(ops: Sequence[op_log.Op], waits: Sequence[op_log.Wait]) -> str:
    """List kernels by part and line, in the order in which they first ran, then the waits."""
    of_line: dict[tuple[str, str], list[op_log.Op]] = collections.defaultdict(list)
    for op in ops:
        of_line[op.part, op.line].append(op)
    lines = []
    for (part, line), here in of_line.items():
        names = collections.Counter(f"{op.name}:{op.dtype}" for op in here)
        what = ", ".join(f"{times} x {name}" if times > 1 else name for name, times in names.items())
        lines.append([part, line, len(here), sum(op.bytes for op in here) / 1e6, what])
    waiting = collections.Counter((wait.part, wait.line, wait.name) for wait in waits)
    lines += [[part, line, times, None, f"WAIT {name}"] for (part, line, name), times in waiting.items()]
    return table(lines, ["part", "line", "kernels", "MB", "ops"]) + "\n"


def show(result: dict) -> str:
    named = [*result["parts"].items(), ("head", result["head"]), ("step", result["step"])]
    rows = [[name, counted["kernels"], counted["waits"], counted["bytes"] / 1e9] for name, counted in named]
    return table(rows, ["part", "kernels", "waits", "GB"])
