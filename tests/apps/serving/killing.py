"""Kill -9 a process that changes a gallery, again and again, and look that nobody acknowledged is lost.

    python -m tests.apps.serving.killing --kills 60 --rows 20000 --size 512 --folder /tmp/kills

The process adds people, removes some, makes backups, and lets the index be written anew; it prints what is
done when the call has returned. It is killed after a random time, often in the middle of one of these.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from plsc.apps.serving.gallery import Gallery, index
from tests.apps.serving.fake_embedder import FakeEmbedder, units
from tests.helpers.launch import start_python


def name_of(number: int) -> str:
    """Return a name that stands nowhere else."""
    return f"person-{number:06}"


def number_of(name: str) -> int:
    """Return the number in a name."""
    return int(name.removeprefix("person-"))


def change_for_ever(path: str, first: int, count: int) -> None:
    """Add people, remove every fifth again, and copy the gallery now and then; print what is done."""
    opened = Gallery.open(path)
    size = opened.facts.embedding_size
    print("ready", flush=True)
    for number in range(first, first + count):
        opened.add(name_of(number), units(1, size, seed=number))
        print(f"+ {name_of(number)}", flush=True)
        if number % 5 == 4:
            opened.remove(name_of(number))
            print(f"- {name_of(number)}", flush=True)
        if number % 7 == 3:
            opened.backup(f"{path}.copy-{number}")
            print(f"= {path}.copy-{number}", flush=True)
        if number % 11 == 5:
            Path(f"{path}.index").unlink(missing_ok=True)
            opened = Gallery.open(path)
            print("i index", flush=True)


def child(path: Path, first: int, count: int = sys.maxsize, least_rows: int = 0) -> subprocess.Popen:
    """Start a process that does so; it says "ready" first. least_rows: from which on there is an index."""
    command = ["-m", "tests.apps.serving.killing", "--child", path]
    command += ["--first", first, "--count", count, "--least-rows", least_rows]
    started = start_python(*command, stdout=subprocess.PIPE, text=True)
    assert started.stdout.readline() == "ready\n"
    return started


def sound(path: Path) -> None:
    """Look that SQLite finds no damage in a file."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def traces(path: Path, name: str, vector: np.ndarray) -> list[str]:
    """List the files of a gallery with the name, or with 64 consecutive bytes of the vector: these hold 32
    that begin at a multiple of 32."""
    data = vector.tobytes()
    parts = [name.encode(), *(data[at : at + 32] for at in range(0, len(data), 32))]
    files = [file for file in path.parent.glob(f"{path.name}*") if ".copy-" not in file.name]
    return [file.name for file in files if any(part in file.read_bytes() for part in parts)]


def kill_again_and_again(path: Path, kills: int, rows: int, size: int, seconds: float) -> str:
    """Do it to the new gallery `path`; return a sentence. AssertionError if somebody is lost, or comes
    back."""
    names = [f"row{number}" for number in range(rows)]
    Gallery.from_embeddings(path, FakeEmbedder(size=size), names, units(rows, size), np.arange(rows)).close()
    present: set[str] = set()
    gone: dict[str, np.ndarray] = {}
    first = 0
    done: Counter[str] = Counter()
    draws = random.Random(0)
    for _ in range(kills):
        with child(path, first, least_rows=rows // 2) as killed:
            time.sleep(draws.uniform(0, seconds))
            killed.kill()
            said = [line.split(" ", 1) for line in killed.stdout.read().splitlines()]
        for sign, name in said:
            done[sign] += 1
            if sign == "+":
                present.add(name)
                first = number_of(name) + 1
            elif sign == "-":
                present.discard(name)
                gone[name] = units(1, size, seed=number_of(name))[0]
            elif sign == "=":
                sound(Path(name))
                assert set(names) < set(Gallery.open(name).names())
        opened = Gallery.open(path)
        there = set(opened.names()[rows:])
        unfinished = {name_of(first), name_of(first - 1)}  # added or removed, perhaps, and not acknowledged
        assert present - unfinished <= there, f"lost: {sorted(present - there)}"
        assert there <= present | unfinished, f"came back: {sorted(there - present)}"
        assert opened.names()[:rows] == names
        for name in draws.sample(sorted(there), min(20, len(there))):
            assert opened.verify(name, units(1, size, seed=number_of(name))).similarity > 0.99999
        opened.close()
        sound(path)
        for name in draws.sample(sorted(gone), min(5, len(gone))):
            assert not traces(path, name, gone[name]), name
        for copy in [*path.parent.glob(f"{path.name}.copy-*[0-9]")]:
            sound(copy)  # whole, acknowledged or not
        for file in [*path.parent.glob(f"{path.name}.copy-*")]:
            file.unlink()
        present = there
        first += 1
    Gallery.open(path).remove()
    for name, vector in gone.items():
        assert not traces(path, name, vector), name
    return (
        f"{kills} kills, {done['+']:,} additions, {done['-']:,} removals, {done['=']:,} backups, {done['i']:,} times "
        "another index; nobody acknowledged was lost"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--folder", default=".")
    parser.add_argument("--child")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=sys.maxsize)
    parser.add_argument("--least-rows", type=int, default=0)
    args = parser.parse_args()
    if args.child:
        index.FILE_ROWS = args.least_rows
        return change_for_ever(args.child, args.first, args.count)
    path = Path(args.folder) / "kills.gallery"
    print(kill_again_and_again(path, args.kills, args.rows, args.size, args.seconds))


if __name__ == "__main__":
    main()
