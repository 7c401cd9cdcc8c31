"""Say whether embeddings of the kit's pictures are right, or which fault is the likely cause: python check.py
mine.npy

mine.npy has float32 [pictures, size], a row for each of the kit's pictures in their order; a file that is no
.npy has these numbers alone. Needs NumPy. check.c is the same program.

The distance is 1 - mean cosine. Up to the first level of kit.txt, that of float32, it is `pass`. Beyond, a
fault is named if the embeddings that it gives are at less than half the distance that the right ones are at.
If none is, up to the last level it is `pass`.
"""

import sys
from pathlib import Path

import numpy as np


class Fault(Exception):
    """What is wrong with embeddings that cannot be compared."""


def read_kit(folder):
    """Read kit.txt: the values of each key, in their order."""
    kit = {"fault": [], "pair": [], "threshold": []}
    for line in (folder / "kit.txt").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(" ")
        kit.setdefault(key, []).append(value)
    return kit


def read_rows(path, rows, size):
    """Read float32 [rows, size] from an .npy or from the numbers alone, as float64; Fault for anything
    else."""
    data, start = Path(path).read_bytes(), 0
    if data[:6] == b"\x93NUMPY":
        start = 10 + int.from_bytes(data[8:10], "little")
        wanted = f"'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {size}),"
        if wanted.encode() not in data[10:start]:
            raise Fault(f"size: {path}: must be float32 [{rows}, {size}], it is of another type or shape")
    if len(data) - start != 4 * rows * size:
        numbers = (len(data) - start) / 4
        raise Fault(f"size: {path}: must have {rows} x {size} float32 numbers, has {numbers:.10g}")
    return np.frombuffer(data, "<f4", offset=start).reshape(rows, size).astype(np.float64)


def distance(a, b):
    """Compute 1 - mean cosine of rows of length 1, of a [n, size] and each of b [..., n, size]."""
    return 1 - np.sum(a * b, axis=-1).mean(axis=-1)


def right_pairs(rows, pairs, threshold):
    """Count the pairs [P, 3] whose product is above the threshold as it should be."""
    above = np.sum(rows[pairs[:, 0]] * rows[pairs[:, 1]], axis=1) > threshold
    return int(np.sum(above == pairs[:, 2]))


def check(path, folder):
    """Print the numbers, and return the name of the level that embeddings pass with; Fault where they do
    not."""
    kit = read_kit(folder)
    count, size, compared = (int(kit[key][0]) for key in ("pictures", "size", "compared"))
    say = dict(text.split(" ", 1) for text in kit["say"])
    right = read_rows(folder / "reference.npy", count, size)
    wrong = read_rows(folder / "faults.npy", len(kit["fault"]) * compared, size).reshape(-1, compared, size)
    mine = read_rows(path, count, size)
    if bad := count - int(np.isfinite(mine).all(axis=1).sum()):
        raise Fault(f"{say['nan']} ({bad} of {count} rows)")
    lengths = np.sqrt(np.sum(mine * mine, axis=1))
    if bad := int(np.sum(lengths < 1e-6)):
        raise Fault(f"{say['zeros']} ({bad} of {count} rows)")

    unit = mine / lengths[:, np.newaxis]
    cosines, cross = np.sum(unit * right, axis=1), unit @ right.T
    print(f"cosine with the reference: mean {cosines.mean():.4f}, least {cosines.min():.4f}")
    print(f"mean length: {lengths.mean():.4f}")
    for threshold, _, title in (text.partition(" ") for text in kit["threshold"]):
        pairs = np.array([pair.split() for pair in kit["pair"]], int).reshape(-1, 3)
        found, best = (right_pairs(rows, pairs, float(threshold)) for rows in (mine, right))
        print(f"pairs right at {threshold} ({title}): {found} of {len(pairs)}, of the reference {best}")

    levels = [(float(value), name) for value, name in (text.split(" ", 1) for text in kit["level"])]
    own, near = 1 - cosines.mean(), distance(unit[:compared], right[:compared])
    moved = 1 - cross.max(axis=1).mean()  # the distance if each row belongs to the picture that it fits best
    every = np.append(distance(unit[:compared], wrong), 2)  # 2: should there be no fault
    nearest = int(every.argmin())
    # How much more the rows have to do with their own pictures than with the others; of the reference it is
    # 1.
    knows = (count * cosines.sum() - cross.sum()) / (count * count - np.sum(right @ right.T))
    faults = [say["length"]] if np.abs(lengths - 1).mean() > 0.1 else []
    if own <= levels[0][0]:
        pass
    elif moved < own / 2 and moved <= levels[-1][0]:
        faults.append(say["rows"])
    elif every[nearest] < near / 2:
        faults.append(f"{kit['fault'][nearest]}; cosine with what that gives: mean {1 - every[nearest]:.4f}")
    elif own > levels[-1][0]:
        faults.append(say["weights"] if knows < 0.25 else say["coarse"])
    if faults:
        raise Fault("; and ".join(faults))
    return next(name for value, name in levels if own <= value)


def main(words, folder):
    """Print the verdict by the kit in `folder`; return 0 for a pass, 1 for a fault, 2 for a file that cannot
    be read."""
    if len(words) != 1:
        print("usage: python check.py mine.npy")
        return 2
    try:
        print("pass: " + check(words[0], folder))
        return 0
    except Fault as fault:
        print(f"fault: {fault}")
        return 1
    except OSError as error:
        print(f"error: {error.filename}: cannot be read")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(__file__).resolve().parent))
