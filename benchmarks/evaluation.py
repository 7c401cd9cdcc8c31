"""Measure the evaluation at IJB-C's size, and the search for many probes in a large gallery.

    python -m benchmarks eval                # random pairs of templates, and the search
    python -m benchmarks eval --old CLONE    # also measures another built clone, in turn

Each run is a separate process, so that its memory counts from the start. "templates" is the time to compute
all templates' features. "pairs" is the time to compare them with all metrics. If scikit-learn is installed,
the method of InsightFace's IJB script is measured, too: a loop over templates, batches of products, and
sklearn.metrics.roc_curve. The search is compared with the bare matrix products of its blocks.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.measure import alternate, from_clone
from plsc.errors import UserError
from plsc.evaluation.search import GALLERY, QUERIES, search
from plsc.utils.text import table

_START = """
import hashlib, json, sys, time
from pathlib import Path
import numpy as np
emb, template, media, pairs, same = (
    np.load(f"{sys.argv[1]}/{name}.npy") for name in ("emb", "template", "media", "pairs", "same")
)
def resident(field):
    return 1024 * int(Path("/proc/self/status").read_text().split(field + ":")[1].split()[0])
def report(began, between, digest):
    ended = time.perf_counter()
    more = resident("VmHWM") - before
    print(json.dumps([between - began, ended - between, more, hashlib.sha256(digest.encode()).hexdigest()]))
"""
_PLSC = """
import paddle
from plsc.evaluation import template_features, verify_pairs
paddle.base.core.set_num_threads(int(sys.argv[2]))
before = resident("VmRSS")
began = time.perf_counter()
features = template_features(emb, template, media)
between = time.perf_counter()
result = verify_pairs(features, pairs, same)
report(began, between, repr((result.numbers(), result.results())))
"""
_SKLEARN = """
from sklearn.metrics import roc_curve
before = resident("VmRSS")
began = time.perf_counter()
features = np.zeros((template.max() + 1, emb.shape[1]), np.float32)
for number in range(len(features)):
    rows = np.where(template == number)[0]
    mine, sums = emb[rows], []
    for medium in np.unique(media[rows]):
        sums.append(mine[media[rows] == medium].mean(0))
    features[number] = np.sum(sums, 0)
features /= np.linalg.norm(features, axis=1, keepdims=True)
between = time.perf_counter()
score = np.empty(len(pairs), np.float32)
for start in range(0, len(pairs), 100_000):
    block = pairs[start : start + 100_000]
    score[start : start + 100_000] = np.sum(features[block[:, 0]] * features[block[:, 1]], -1)
far, tar, _ = roc_curve(same, score)
report(began, between, repr([tar[np.argmin(np.abs(far - limit))] for limit in (1e-6, 1e-5, 1e-4)]))
"""


def add_arguments(part: argparse.ArgumentParser) -> None:
    part.add_argument("--images", type=int, default=469_375)
    part.add_argument("--templates", type=int, default=23_124)
    part.add_argument("--pairs", type=int, default=15_658_489)
    part.add_argument("--dim", type=int, default=512, help="embedding size")
    part.add_argument("--gallery", type=int, default=1_000_000, help="images to search in, or 0")
    part.add_argument("--probes", type=int, default=10_000)
    part.add_argument("--threads", type=int, default=os.cpu_count(), help="the kernels' threads")
    part.add_argument("--old", type=Path, help="a clone of another version, built, to compare with")
    part.add_argument("--runs", type=int, default=5, help="runs of each, in turn; medians count")


def evaluation(args: argparse.Namespace) -> dict:
    """Measure templates, pairs and the search in a gallery."""
    here = str(Path(__file__).parents[1])
    ways = {"new": (here, _PLSC), **({"old": (str(args.old.resolve()), _PLSC)} if args.old else {})}
    if importlib.util.find_spec("sklearn"):
        ways["scikit-learn"] = here, _SKLEARN
    found: dict[str, list[list]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        if args.pairs:
            _write(args, folder)
            for _ in range(args.runs):
                for name, (clone, code) in ways.items():
                    found[name].append(_run(clone, _START + code, folder, str(args.threads)))
    medians = {
        name: [statistics.median(each) for each in list(zip(*runs))[:3]]
        for name, runs in found.items()
        if runs
    }
    digests = {run[3] for name in ("new", "old") for run in found.get(name, [])}
    return {
        "images": args.images,
        "templates": args.templates,
        "pairs": args.pairs,
        "dim": args.dim,
        "threads": args.threads,
        "runs": args.runs,
        "medians": medians,
        "same_digits": len(digests) <= 1,
        "search": _search(args) if args.gallery else None,
    }


def _write(args: argparse.Namespace, folder: str) -> None:
    """Write random embeddings of people's images. Their noise makes some pairs difficult."""
    draw = np.random.default_rng(0)
    people = max(2, args.templates * 3531 // 23124)  # IJB-C's ratio
    who = draw.integers(0, people, args.templates)
    rest = draw.integers(0, args.templates, args.images - args.templates)
    template = np.sort(np.concatenate([np.arange(args.templates), rest]))
    emb = draw.standard_normal((args.images, args.dim), np.float32) * np.float32(12)
    emb += draw.standard_normal((people, args.dim), np.float32)[who[template]]
    pairs = draw.integers(0, args.templates, (args.pairs, 2))
    pairs[:, 0].sort()
    arrays = {
        "emb": emb,
        "template": template,
        "media": draw.integers(0, 5, args.images),
        "pairs": pairs,
        "same": who[pairs[:, 0]] == who[pairs[:, 1]],
    }
    for name, array in arrays.items():
        np.save(f"{folder}/{name}.npy", array)


def _run(clone: str, code: str, *arguments: str) -> list:
    done = subprocess.run(
        [sys.executable, "-c", from_clone(clone, code), *arguments],
        env={**os.environ, "PYTHONPATH": clone},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UserError(f"{clone}: {(done.stderr.strip() or f'exit {done.returncode}').splitlines()[-1]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _search(args: argparse.Namespace) -> dict:
    draw = np.random.default_rng(0)
    gallery, probes = (draw.standard_normal((n, args.dim), np.float32) for n in (args.gallery, args.probes))

    def product() -> None:
        for first in range(0, args.probes, QUERIES):
            for start in range(0, args.gallery, GALLERY):
                np.dot(probes[first : first + QUERIES], gallery[start : start + GALLERY].T)

    seconds = alternate(
        args.runs, {"search": lambda: search(probes, gallery, 21) and None, "product": product}
    )
    return {"gallery": args.gallery, "probes": args.probes, **seconds}


def show(result: dict) -> str:
    about = (
        f"{result['images']:,} images x {result['dim']}, {result['templates']:,} templates, "
        f"{result['pairs']:,} pairs, {result['threads']} threads, medians of {result['runs']} runs in turn"
    )
    lines = [about]
    if medians := result["medians"]:
        new = sum(medians["new"][:2])
        rows = [(name, t, p, t + p, new / (t + p), more / 1e9) for name, (t, p, more) in medians.items()]
        lines.append(table(rows, ["way", "templates s", "pairs s", "s", "new / this", "memory GB"]))
        if "old" in medians:
            lines.append(f"the same digits in every metric: {'yes' if result['same_digits'] else 'NO'}")
    if found := result["search"]:
        lines.append(
            f"{found['probes']:,} probes in {found['gallery']:,} x {result['dim']}: {found['search']:.2f} s, "
            f"{found['search'] / found['product']:.2f} of the bare products' time"
        )
    return "\n".join(lines)
