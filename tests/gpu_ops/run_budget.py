"""Count steps of heads, and of a whole training: `python -m tests.gpu_ops.run_budget FILE FOLDER`, with
op_log.environment().
FILE: JSON, name -> part -> kernels, waits, bytes. A head of 1024 samples and so many classes that they do not
fit here is
counted with fewer of both: bytes are a polynomial of both sizes, of degree 2 in N and 1 in C, which six small
heads give."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from pathlib import Path

from benchmarks import step
from tests.gpu_ops import count, op_log

SAMPLES = (8, 16, 32)
CLASSES = (640, 1280)  # a tenth of them is a multiple of 64
HEADS = {
    "all classes": [],
    "all classes, bfloat16": ["--dtype", "bfloat16"],
    "sampled": ["--rate", "0.1"],
}


def counted(folder: Path, *words: str) -> count.Counts:
    parser = argparse.ArgumentParser()
    step.add_arguments(parser)
    args = parser.parse_args(["--count", *words])
    return count.by_part(*count.recorded(args, folder))


def main(target: Path, folder: Path) -> None:
    op_log.quiet()
    from plsc import distributed

    distributed.init("cpu", 1)
    found = {}
    for name, words in HEADS.items():
        for samples, classes in itertools.product(SAMPLES, CLASSES):
            size = ["--batch", str(samples), "--classes", str(classes), "--dim", "512"]
            found[f"{name} {samples} {classes}"] = counted(folder, "--counted", "head", *size, *words)
    network = ["--name", "IResNet50", "--size", "32", "--classes", "20", "--dim", "8"]
    found["IResNet50"] = counted(folder, "--counted", "2", *network)
    target.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
    os._exit(0)  # Paddle's log may hang at the end of a process
