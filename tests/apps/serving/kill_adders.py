"""Kill -9 a process that adds people to a gallery, again and again, and look that everybody acknowledged is there.

    python -m tests.apps.serving.kill_adders --kills 30 --rows 1000000 --size 512 --folder /tmp/kills

The process that adds prints each name when `add` has returned; now and then it removes somebody, and says so. It is
killed after a random time, often in the middle of a write, or of a new generation.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from plsc.apps.serving.gallery import Gallery, gallery
from tests.apps.serving.fake_embedder import FakeEmbedder, units
from tests.launch import ROOT


def add_for_ever(folder: str, first: int, least_log: int) -> None:
    """Add people p<first>, p<first + 1>, ... and remove every fifth again; print what is done."""
    gallery._LEAST_LOG = gallery._MOST_LOG = least_log
    opened = Gallery.open(folder)
    size = opened.header.embedding_size
    print("ready", flush=True)
    for number in range(first, sys.maxsize):
        opened.add(f"p{number}", units(1, size, seed=number))
        print(f"+ p{number}", flush=True)
        if number % 5 == 4:
            opened.remove(f"p{number}")
            print(f"- p{number}", flush=True)


def kill_again_and_again(
    folder: Path, kills: int, rows: int, size: int, least_log: int, seconds: float
) -> str:
    """Do it in the new folder `folder`; return a sentence. AssertionError if somebody is lost."""
    embedder = FakeEmbedder(size=size)
    names = [f"row{number}" for number in range(rows)]
    start = units(rows, size)
    Gallery.from_embeddings(folder, embedder, names, start, np.arange(rows))
    present: set[str] = set()
    first = added = 0
    draws = random.Random(0)
    for _ in range(kills):
        command = [sys.executable, "-m", "tests.apps.serving.kill_adders", "--child", str(folder)]
        command += ["--first", str(first), "--least-log", str(least_log)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
            assert child.stdout.readline() == "ready\n"
            time.sleep(draws.uniform(0, seconds))
            child.kill()
            said = child.stdout.read().splitlines()
        for line in said:
            sign, _, name = line.partition(" ")
            if sign == "+":
                present.add(name)
                first = int(name[1:]) + 1
                added += 1
            elif sign == "-":
                present.discard(name)
        unfinished = {f"p{first}", f"p{first - 1}"}  # added or removed, perhaps, and not acknowledged
        opened = Gallery.open(folder)
        there = set(opened.names()[rows:])
        assert present - unfinished <= there, f"lost: {sorted(present - there)}"
        assert there <= present | unfinished, f"came back: {sorted(there - present)}"
        sample = draws.sample(sorted(there), min(20, len(there)))
        for name in sample:
            assert opened.verify(name, units(1, size, seed=int(name[1:]))).similarity > 0.99999
        assert opened.names()[:rows] == names
        present = there
        first += 1
    return (
        f"{kills} kills, {added:,} additions acknowledged, nobody lost, generation {opened.header.generation}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--least-log", type=int, default=2**14)
    parser.add_argument("--folder", default="kills.gallery")
    parser.add_argument("--child")
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    if args.child:
        add_for_ever(args.child, args.first, args.least_log)
    sizes = args.rows, args.size, args.least_log, args.seconds
    print(kill_again_and_again(Path(args.folder), args.kills, *sizes))


if __name__ == "__main__":
    main()
