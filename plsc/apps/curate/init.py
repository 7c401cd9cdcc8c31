"""Write a config for a folder of pictures: `plsc init faces/`.

`inspect_data` counts the pictures and the classes, and decodes a sample. `recommend` chooses the config:

    fewer than 20,000 pictures      a small network, 40 epochs or at least 300 steps
    20,000 to 499,999 pictures      IResNet18, 20 epochs
    500,000 pictures or more        IResNet50, 20 epochs
    pictures of at most 40 pixels   32 x 32
    20,000 larger pictures or more  112 x 112
    fewer, grey                     48 x 48
    fewer, colour                   64 x 64
    fewer than 2,000 classes        margin 0.1, scale 16
    fewer than 100 classes          `hold_out` 0.5
    100 classes or more             `hold_out`: the smallest share that contains ten classes
    colour pictures                 flipped, cropped, with changed colours
    grey pictures                   cropped

The picture size keeps the median picture's aspect ratio and has about as many pixels as the square.
"""

import argparse
import math
import os
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import NamedTuple

import cv2
import numpy as np

from plsc.apps.curate.scan import TRANSPARENT, about_lone_images
from plsc.config import load
from plsc.data.autodetect import open_images
from plsc.data.folder import ImageFolder
from plsc.data.hold_out import FEWEST, LEAST, class_keys, held_out
from plsc.data.images import EncodedImages, decode_pixels, is_transparent
from plsc.errors import UserError, escape, writing
from plsc.utils.atomic_write import replace_file
from plsc.utils.logging import get_logger
from plsc.utils.text import plural
from plsc.utils.yaml_lines import dump_lines

_SAMPLE = 200  # pictures that are decoded
_FEW_PICTURES = 20_000  # with fewer, a small network at 64 x 64 pixels learns as much in minutes
_MANY_PICTURES = 500_000
_FEW_CLASSES = 2_000  # with fewer, the margin and the scale are small
_HUNDREDS = 100
_LEAST_STEPS = 300  # fewest steps that train a new network
_KEY_OF_IMAGES = {"ImageFolder": "folder", "ImageList": "list", "RecImages": "path"}
# Evaluations per run. With few pictures an epoch takes less time than an evaluation.
_EVALUATIONS = 20
_RECIPES = 50_000  # with so many classes, published recipes fit better than the rules below
_RANKS = 2  # ranks in the suggested commands


class DataSummary(NamedTuple):
    """The facts about a picture set that determine its config.

    Attributes:
        pictures: picture count.
        classes: class count.
        height, width: median over a picture sample, in pixels.
        grey: whether all pictures in the sample are grey.
        hold_out: share of classes to verify on. None if there are too few classes, or too few pictures per
            class.
        trained: how many pictures are not held out.
    """

    pictures: int
    classes: int
    height: int
    width: int
    grey: bool
    hold_out: float | None
    trained: int


def inspect_data(images: EncodedImages, name: str) -> DataSummary:
    """Inspect a picture set.

    Args:
        images: the set.
        name: the set's path, for messages.

    Raises UserError if there are too few classes, or if no picture in the sample can be decoded.
    """
    if images.num_classes < LEAST:
        raise UserError(
            f"{escape(name)}: has 1 class, training needs {LEAST}; make a folder for each identity"
        )
    sizes, transparent = [], 0
    grey = True
    for index in np.unique(np.linspace(0, len(images) - 1, _SAMPLE).astype(int)).tolist():
        try:
            data = images.encoded(index)
            picture = decode_pixels(data, False, lambda: images.name(index))  # noqa: B023
        except UserError:
            continue  # `plsc doctor` reports it
        sizes.append(picture.shape[:2])
        transparent += is_transparent(data)
        small = cv2.resize(picture, (16, 16), interpolation=cv2.INTER_AREA).astype(int)
        grey = grey and np.ptp(small, axis=2).max() <= 8
    if not sizes:
        raise UserError(f"{escape(name)}: none of its {len(images):,} pictures can be read")
    if transparent:
        text = f"{transparent} of {len(sizes)} pictures that were tried have {TRANSPARENT}"
        get_logger().warning(f"{escape(name)}: {text}")
    height, width = np.median(sizes, axis=0).astype(int).tolist()
    names = class_keys(images)
    hold_out = _share_to_hold_out(names)
    held = held_out(names, hold_out or 0)[images.labels]
    if len(np.unique(images.labels[held])) == held.sum():  # one picture per class makes no pair
        hold_out, held = None, np.zeros(len(images), bool)
    trained = len(images) - int(held.sum())
    return DataSummary(len(images), images.num_classes, height, width, grey, hold_out, trained)


def _share_to_hold_out(names: Sequence[str]) -> float | None:
    """Choose the share of classes to hold out from training.

    With few classes it is a half, from which a gallery learns how similar strangers are. Otherwise it is the
    smallest share that contains ten classes. Return None if either side would have fewer than two classes.
    """
    shares = (0.1, 0.2, 0.3, 0.4) if len(names) >= _HUNDREDS else ()
    share = next((share for share in shares if held_out(names, share).sum() >= FEWEST), 0.5)
    return share if LEAST <= held_out(names, share).sum() <= len(names) - LEAST else None


def _about_held_out(names: Sequence[str], share: float) -> list[str]:
    """Write the sentences that tell how many classes a share holds out, and how to train on all."""
    counts = f"{held_out(names, share).sum():,} of {len(names):,} classes are held out"
    keys = "set DataLoader.Train.dataset.hold_out to 0 and DataLoader.Eval.dataset to null"
    return [
        f"{counts}: the network is not trained on them, and is verified on pairs of their pictures.",
        f"To train on all classes, without verification, {keys}.",
    ]


def packs_in(path: str) -> list[str]:
    """List the verification packs in a folder with train.rec, as arcface_torch's sets have them, lfw.bin
    first."""
    if not os.path.isfile(os.path.join(path, "train.rec")):
        return []
    return sorted(map(str, Path(path).glob("*.bin")), key=lambda name: (Path(name).stem != "lfw", name))


def recommend(seen: DataSummary, kind: str, path: str, output: str, packs: Sequence[str] = ()) -> dict:
    """Choose a config.

    Args:
        seen: the facts about the pictures.
        kind: name of the class that reads the pictures.
        path: the pictures' path.
        output: the run's output folder.
        packs: .bin packs to verify on, the main one first. Without any, held-out classes verify.
    """
    few = seen.pictures < _FEW_PICTURES
    size = [112, 112] if packs else _size(seen, few)
    batch = 128 if not few else 64 if seen.pictures > 4_000 else 32
    while batch > 2 and batch * _RANKS > seen.trained:
        batch //= 2
    epochs = 40 if few else 20
    of_epoch = math.ceil(seen.trained / (_RANKS * batch))
    length = {"epochs": epochs}
    if epochs * of_epoch < _LEAST_STEPS:
        length = {"max_steps": _LEAST_STEPS}
        epochs = math.ceil(_LEAST_STEPS / of_epoch)
    same = {"size": size, **({"channels": "grey"} if seen.grey else {})}
    if seen.hold_out:
        same["hold_out"] = seen.hold_out
    augmentation = {"crop": 0.2, **({} if seen.grey else {"flip": True, "colour": 0.3})}
    pairs = {"name": "ImagePairs", "images": path, **same} if seen.hold_out else None
    tests = {"dataset": pairs}
    if packs:
        first, *others = ({"name": "BinPairs", "path": pack, **same} for pack in packs)
        tests = {"dataset": first, "more": {Path(each["path"]).stem: each for each in others}}
    train = {"name": kind, _KEY_OF_IMAGES[kind]: path, **same, **augmentation}
    return {
        "Global": {**length, "eval_every": max(1, epochs // _EVALUATIONS), "output_dir": output},
        "Model": _network(seen, few, size),
        "Head": {"margin": 0.1, "scale": 16.0} if seen.classes < _FEW_CLASSES else {},
        "LRScheduler": {"warmup_epochs": 1},
        "Optimizer": {"clip_norm": 5.0},
        "DataLoader": {"Train": {"dataset": train, "batch_size": batch}, "Eval": tests},
    }


def _size(seen: DataSummary, few: bool) -> list[int]:
    """Choose the height and the width of the network's pictures.

    They have the aspect ratio of the median picture, about as many pixels as the square, and are multiples
    of 8.
    """
    side = 32 if min(seen.height, seen.width) <= 40 else 48 if seen.grey and few else 64 if few else 112
    ratio = math.sqrt(seen.height / seen.width)
    if 0.9 < ratio < 1.12:
        return [side, side]
    return [max(16, 8 * round(side * factor / 8)) for factor in (ratio, 1 / ratio)]


def _network(seen: DataSummary, few: bool, size: list[int]) -> dict:
    if not few:
        name = "IResNet18" if seen.pictures < _MANY_PICTURES else "IResNet50"
        return {"name": name, "embedding_size": 512}
    widths = [16, 32, 64] if min(size) <= 48 else [16, 32, 64, 128]
    return {"widths": widths, "blocks": [1] * len(widths), "dropout": 0.3}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `plsc init`. Raises UserError."""
    parser = argparse.ArgumentParser(
        "plsc init", description="Inspect pictures, and write a config that fits them."
    )
    kinds = "a folder with a folder for each identity, a list, or a .rec file or its folder"
    parser.add_argument("data", help=kinds)
    what = "default: the folder's name in the current folder"
    parser.add_argument("--output", metavar="FILE.yaml", help=what)
    args = parser.parse_args(argv)
    path = args.data.rstrip("/") or args.data
    whole = Path(path).resolve()
    target = Path(args.output or f"{whole.name if whole.is_dir() else whole.stem}.yaml")
    if target.resolve().parent != Path.cwd():  # relative paths start in the current or the config's folder
        path = os.path.abspath(path)
    if target.exists():
        raise UserError(
            f"{escape(target)}: exists already, and nothing is overwritten; name another file with --output"
        )
    output = f"output/{target.stem}"
    if whole in Path(output).resolve().parents:
        raise UserError(
            f"{escape(path)}: a run would write {output} among the set's folders; start in another folder"
        )
    images = open_images(path)
    seen = inspect_data(images, path)
    if packs := packs_in(path):  # they verify, so all classes are trained
        seen = seen._replace(hold_out=None, trained=seen.pictures)
    values = recommend(seen, type(images).__name__, path, output, packs)
    load(values).check_data()
    classes = plural(seen.classes, "class", "classes")
    about = f"{plural(seen.pictures, 'picture')} of {classes}, {seen.height} x {seen.width}"
    held = _about_held_out(class_keys(images), seen.hold_out) if seen.hold_out else []
    with writing(target):
        comment = "".join(f"# {line}\n" for line in held)
        text = f"# Written by plsc init for {escape(path)}: {about}.\n{comment}{dump_lines(values)}"
        replace_file(target, text.encode())
    pictures, config, run = (quote(escape(word)) for word in (path, target, output))
    if held:
        print(" ".join(held))
    if packs:
        print(f"it verifies on {', '.join(escape(Path(pack).name) for pack in packs)}")
    elif seen.hold_out is None:
        print(
            "there are too few classes, or too few pictures per class, to hold some out: nothing is verified"
        )
    if text := about_lone_images(images.labels):
        print(text)
    if seen.classes >= _RECIPES:
        print("configs/recipes/ has published settings for sets with so many classes (docs/training.md)")
    print(f"{escape(target)}: for {about}; next:")
    print(f"  plsc doctor -c {config}")
    each = values["DataLoader"]["Train"]["batch_size"]
    print(f"  plsc train -c {config}{f' --ranks {_RANKS}' if _RANKS * each <= seen.trained else ''}")
    if isinstance(images, ImageFolder) and seen.hold_out:
        print(f"  plsc gallery build people.gallery -c {run} {pictures}")
    elif isinstance(images, ImageFolder):
        print(f"  plsc predict {pictures} -c {run}")
        print(
            "a gallery by this network would name nobody, since nothing measures a threshold; if the "
            "pictures show faces, a published network can:"
        )
        print(f"  plsc gallery build people.gallery {pictures}")
    else:
        print(f"  plsc export -c {run}")
    return 0
