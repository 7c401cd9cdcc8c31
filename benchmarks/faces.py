"""Measure galleries of photos: `plsc gallery build`, one search, and the search in a large gallery.

    python -m benchmarks faces photos/                # a folder with a folder of photos for each person
    python -m benchmarks faces photos/ --old CLONE    # also measures another built clone, in turn

Each build is a separate process, so that its start counts. For comparison, a loop of OpenCV's own calls
(detect, alignCrop, feature) processes the same photos with all of OpenCV's threads. A search for one photo is
timed within a process. The search in the large gallery is compared with the bare matrix product of its
blocks.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.measure import alternate, from_clone, reset_resident_peak, resident_bytes
from plsc.errors import UserError
from plsc.evaluation.search import GALLERY, search
from plsc.utils.text import table

_LOOP = """
import sys, cv2
yunet, sface, *photos = sys.argv[1:]
detector = cv2.FaceDetectorYN.create(yunet, "", (320, 320), 0.8)
recognizer = cv2.FaceRecognizerSF.create(sface, "")
for photo in photos:
    pixels = cv2.imread(photo)
    detector.setInputSize(pixels.shape[1::-1])
    faces = detector.detect(pixels)[1]
    if faces is not None:
        recognizer.feature(recognizer.alignCrop(pixels, faces[0]))
"""
_BUILD = "import sys; from plsc.cli import main; sys.exit(main(sys.argv[1:]))"
_SEARCH = """
import statistics, sys, time
from plsc import Gallery
gallery, photo = Gallery.open(sys.argv[1]), sys.argv[2]
times = []
for _ in range(30):
    began = time.perf_counter()
    gallery.search([photo])
    times.append(time.perf_counter() - began)
print(statistics.median(times))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("photos", type=Path, help="photos/Ann/1.jpg, photos/Bob/1.jpg, ...")
    parser.add_argument("--old", type=Path, help="a clone of another version, built, to compare with")
    parser.add_argument("--people", type=int, default=1_000_000, help="people in the large gallery, or 0")
    parser.add_argument("--runs", type=int, default=5, help="runs of each, in turn; medians count")


def faces(args: argparse.Namespace) -> dict:
    """Measure galleries of photos beside OpenCV's own loop, and the search in a large gallery."""
    from plsc.apps.faces.networks import SFACE, YUNET
    from plsc.utils.published import path_of

    networks = [str(path_of(YUNET)), str(path_of(SFACE))]
    photos = sorted(map(str, args.photos.glob("*/*")))
    if not photos:
        raise UserError(f"{args.photos}: has no photos in folders of people")
    here = str(Path(__file__).parents[1])
    clones = {"new": here, **({"old": str(args.old.resolve())} if args.old else {})}
    with tempfile.TemporaryDirectory() as folder:

        def build(name: str) -> None:
            for file in Path(folder).glob(f"{name}.gallery*"):
                file.unlink()
            _run(clones[name], _BUILD, "gallery", "build", f"{folder}/{name}.gallery", str(args.photos))

        builds = {name: lambda name=name: build(name) for name in clones}
        loop = {"OpenCV's loop": lambda: _run(here, _LOOP, *networks, *photos)}
        seconds = alternate(args.runs, {**builds, **loop})
        searches: dict[str, list[float]] = {name: [] for name in clones}
        for _ in range(args.runs):
            for name, clone in clones.items():
                searches[name].append(float(_run(clone, _SEARCH, f"{folder}/{name}.gallery", photos[0])))
    return {
        "photos": len(photos),
        "processors": os.cpu_count(),
        "runs": args.runs,
        "build": seconds,
        "search": {name: float(np.median(times)) for name, times in searches.items()},
        "large": _large(args.people, args.runs) if args.people else None,
    }


def _run(clone: str, code: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": clone}
    done = subprocess.run(
        [sys.executable, "-c", from_clone(clone, code), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UserError(f"{clone}: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


def _large(people: int, runs: int, width: int = 512, queries: int = 64) -> dict:
    """Search random embeddings. Compare the time with the bare product and the memory with the embeddings."""
    draw = np.random.default_rng(0)
    gallery = np.empty((people, width), np.float32)
    for start in range(0, people, GALLERY):
        gallery[start : start + GALLERY] = draw.standard_normal(
            (len(gallery[start : start + GALLERY]), width)
        )
    asked = draw.standard_normal((queries, width)).astype(np.float32)

    def product() -> None:
        for start in range(0, people, GALLERY):
            np.dot(asked, gallery[start : start + GALLERY].T)

    seconds = alternate(runs, {"search": lambda: search(asked, gallery, 5) and None, "product": product})
    before = resident_bytes()
    reset_resident_peak()
    search(asked, gallery, 5)
    more = resident_bytes("VmHWM") - before
    return {"people": people, "queries": queries, **seconds, "memory": 1 + more / gallery.nbytes}


def show(result: dict) -> str:
    first = (
        f"{result['photos']:,} photos, {result['processors']} processors, medians of {result['runs']} runs"
    )
    new = result["build"]["new"]
    rows = [(name, seconds, seconds / new) for name, seconds in result["build"].items()]
    text = f"{first} in turn\n" + table(rows, ["build", "seconds", "of new"])
    new = result["search"]["new"]
    rows = [(name, 1000 * seconds, seconds / new) for name, seconds in result["search"].items()]
    text += "\n\n" + table(rows, ["search of one photo", "ms", "of new"])
    if large := result["large"]:
        text += (
            f"\n\n{large['queries']} queries in {large['people']:,} x 512: {large['search']:.2f} s, "
            f"{large['search'] / large['product']:.2f} of the bare product's time; memory "
            f"{large['memory']:.2f} of the embeddings'"
        )
    return text
