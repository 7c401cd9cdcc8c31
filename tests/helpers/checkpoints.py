"""What the tests of checkpoints share: contents, saving as several ranks, comparing bytes, doing damage."""

import contextlib
import errno
import json
import threading

import numpy as np
import pytest

import plsc.checkpoint.store
from plsc.checkpoint.manifest import seal
from plsc.checkpoint.store import Checkpoint, Content, save
from plsc.errors import UserError
from plsc.utils.preprocessing import Preprocessing
from plsc.utils.sharding import split

PREPROCESSING = Preprocessing((1, 32, 32), 127.5, 0.0078431)


@contextlib.contextmanager
def full_disk(part="manifest"):
    """A disk that is full once a save writes the file `part`: a stump of it remains."""
    original = plsc.checkpoint.store.write_synced

    def write(path, buffers):
        if path.name.startswith(part):
            path.write_bytes(b"stump")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return original(path, buffers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plsc.checkpoint.store, "write_synced", write)
        yield


def content(seed, classes=11, dim=4):
    """Everything that a checkpoint holds, the head whole."""
    rng = np.random.default_rng(seed)
    return {
        "epoch": seed + 1,
        "backbone": {
            "stem.weight": rng.normal(size=(3, 2)).astype(np.float32),
            "steps": np.array(seed, np.int64),
        },
        "optimizer": {"stem.weight.velocity": rng.normal(size=(3, 2)).astype(np.float32)},
        "head": {
            "centres": rng.normal(size=(classes, dim)).astype(np.float32),
            "momentum": rng.normal(size=(classes, dim)).astype(np.float32),
            "bias": rng.normal(size=classes).astype(np.float64),
        },
        "num_classes": classes,
        "state": {
            "run": {"seed": seed},
            "evaluation": {"threshold": 0.1 + seed},
            "log": {"replaced": [seed, 0]},
        },
        "config": {"Global": {"seed": seed, "title": "ü"}},
        "preprocessing": PREPROCESSING,
    }


def save_ranks(root, step, everything, world=1, shards=None, **more):
    """Save as `world` ranks (threads) would. Return what each returned or raised."""
    barrier, values, results = threading.Barrier(world, timeout=20), [None] * world, [None] * world
    shards = shards or split(everything["num_classes"], world)

    def rank(number):
        def gather(value):
            values[number] = value
            barrier.wait()
            answers = list(values)
            barrier.wait()
            return answers

        start, stop = shards[number]
        head = {name: array[start:stop] for name, array in everything["head"].items()}
        try:
            content = content_of(step, {**everything, "head": head, **more}, start, stop)
            results[number] = save(root, content, number, gather)
        except (UserError, KeyboardInterrupt, threading.BrokenBarrierError) as error:
            results[number] = error
            if not isinstance(error, UserError):
                barrier.abort()

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def save_one(root, step, everything):
    return save(root, content_of(step, everything, 0, everything["num_classes"]))


def content_of(step, everything, start, stop):
    """A rank's part of `content`, as `save` takes it."""
    arrays = {owner: everything[owner] for owner in ("backbone", "optimizer", "ema") if owner in everything}
    states = {owner: {"arrays": of_owner} for owner, of_owner in arrays.items()}
    for owner, plain in everything["state"].items():
        states[owner] = {**states.get(owner, {}), **plain}
    others = ("num_classes", "state", "head", *arrays)
    fields = {key: value for key, value in everything.items() if key not in others}
    return Content(
        step=step,
        states=states,
        rows=everything["head"],
        num_classes=everything["num_classes"],
        shard=(start, stop),
        weights="ema" if "ema" in arrays else "backbone",
        **fields,
    )


def assert_same(arrays, expected):
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape), name
        assert arrays[name].tobytes() == array.tobytes(), name


def assert_holds(path, everything):
    checkpoint = Checkpoint.open(path)
    assert_same(checkpoint.arrays("backbone"), everything["backbone"])
    assert_same(checkpoint.arrays("optimizer"), everything["optimizer"])
    assert_same(checkpoint.head(0, checkpoint.num_classes), everything["head"])
    assert checkpoint.manifest.state == everything["state"]
    for name in ("epoch", "config", "preprocessing", "num_classes"):
        assert getattr(checkpoint, name) == everything[name]


def reseal(path, change):
    """Alter the manifest as an attacker would, with a right checksum."""
    fields = json.loads((path / "manifest.json").read_text())
    del fields["crc32"]
    change(fields)
    (path / "manifest.json").write_bytes(seal(json.dumps(fields)[1:].encode()))


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


class OnDemand:
    """Rows that are not in memory, such as a bank's on disk. They are bfloat16 if `code` says so."""

    def __init__(self, rows, code=None):
        self.rows, self.dtype, self.shape, self.code = rows, rows.dtype, rows.shape, code

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, part):
        return OnDemand(self.rows[part], self.code)

    def __array__(self, dtype=None, copy=None):
        return self.rows
