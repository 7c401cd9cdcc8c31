"""Draw and time the augmentations, docs/pictures/augmentation.png: python tools/plot_augmentation.py out.png
[picture]"""

import statistics
import sys
import time
from pathlib import Path

import cv2
import numpy as np

from plsc.data.augment import Augment
from plsc.data.fonts import draw_glyphs
from plsc.data.transforms import generator, resize

SIDE = 112
SHOWN = 6
GAP = 4
EXAMPLES = {
    "flip": True,
    "crop": 0.25,
    "rotate": 15.0,
    "colour": 0.4,
    "grey": 1.0,
    "blur": 1.0,
    "low_resolution": 1.0,
    "cutout": 1.0,
    "randaugment": 2,
}
STRONG = Augment(True, 0.15, 8.0, 0.3, 0.1, 0.1, 0.2, 0.2, 2)


def example() -> np.ndarray:
    """Draw a letter in a frame, uint8 [SIDE, SIDE, 3]; flat colours make a small file."""
    picture = np.full((SIDE, SIDE, 3), (150, 90, 40), np.uint8)
    cv2.rectangle(picture, (3, 3), (SIDE - 4, SIDE - 4), (200, 170, 120), 4)
    ink = draw_glyphs(np.array([ord("R")]), 2, SIDE)[0, 1, :, :, None] / 255.0
    return np.rint(picture * (1 - ink) + ink * np.array([60, 215, 250])).astype(np.uint8)


def row(name: str, pictures: list[np.ndarray]) -> np.ndarray:
    label = np.full((SIDE, 150, 3), 255, np.uint8)
    cv2.putText(label, name, (4, SIDE // 2 + 5), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (40, 30, 30), 1, cv2.LINE_AA)
    gap = np.full((SIDE, GAP, 3), 255, np.uint8)
    line = np.hstack([label, *(part for picture in pictures for part in (picture, gap))])
    return np.vstack([line, np.full((GAP, line.shape[1], 3), 255, np.uint8)])


def microseconds(augment: Augment, picture: np.ndarray, count: int = 500) -> float:
    """Return the median microseconds over `count` pictures, each with a random stream of its own."""
    times = []
    for index in range(count):
        rng = generator(0, 0, index)
        began = time.perf_counter()
        augment(picture, rng)
        times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times)


cv2.setNumThreads(0)  # as in a data worker
picture = resize(cv2.imread(sys.argv[2]), SIDE, SIDE) if len(sys.argv) > 2 else example()
augments = {f"{key}: {str(value).lower()}": Augment(**{key: value}) for key, value in EXAMPLES.items()}
rows = [
    row(name, [augment(picture, generator(0, 0, index)) for index in range(SHOWN)])
    for name, augment in {"off": Augment(), **augments, "several": STRONG}.items()
]
Path(sys.argv[1]).write_bytes(cv2.imencode(".png", np.vstack(rows), [cv2.IMWRITE_PNG_COMPRESSION, 9])[1])
jpg = cv2.imencode(".jpg", picture)[1]
decoding = statistics.median(
    -time.perf_counter() + (cv2.imdecode(jpg, cv2.IMREAD_COLOR), time.perf_counter())[1] for _ in range(500)
)
print(f"decoding the jpg {1e6 * decoding:.0f}", f"off {microseconds(Augment(), picture):.0f}", sep="\n")
for name, augment in {**augments, "several": STRONG}.items():
    print(name, f"{microseconds(augment, picture):.0f}")
