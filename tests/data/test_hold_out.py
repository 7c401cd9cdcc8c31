"""Held out classes: the same wherever they are asked for, never on both sides."""

import numpy as np
import pytest

from plsc.config import load
from plsc.data.build import build_dataset
from plsc.data.folder import ImageFolder
from plsc.data.hold_out import held_out
from plsc.data.image_list import ImageList
from plsc.data.pairs import ImagePairs
from plsc.data.rec import RecImages
from plsc.data.synthetic import Synthetic
from plsc.evaluation.sets import build_sets
from plsc.utils.preprocessing import Preprocessing
from tests.helpers.image_files import write_folder, write_rec
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import TINY

NAMES = [f"n{number:04}" for number in range(4000)]


def test_a_share_by_name_alone_that_a_larger_share_contains():
    tenth, fifth = held_out(NAMES, 0.1), held_out(NAMES, 0.2)
    assert 340 < tenth.sum() < 460 and 720 < fifth.sum() < 880 and not (tenth & ~fifth).any()
    order = np.random.default_rng(0).permutation(len(NAMES))
    assert np.array_equal(held_out([NAMES[place] for place in order], 0.1), tenth[order])


@pytest.fixture
def faces(tmp_path):
    return write_folder(tmp_path / "faces", {name: 2 for name in NAMES[:20]})


def names_of(pairs):
    return {pairs.image_name(index).split("/")[-2] for index in range(pairs.num_images)}


def test_who_is_held_out_is_reported_once(faces, capsys):
    ImageFolder(str(faces), hold_out=0.3)
    held = len(ImagePairs(str(faces), hold_out=0.3).identities)
    (said,) = (line for line in capsys.readouterr().out.splitlines() if "are held out" in line)
    assert said.endswith(f"{faces}: {held} of 20 classes are held out (hold_out: 0.3)")


@pytest.mark.parametrize("kind", ["folder", "list"])
def test_training_and_its_pairs_share_nobody_and_miss_nobody(faces, kind):
    images = faces
    if kind == "list":  # in another order, and without the first person
        lines = [
            f"{name}/{name}_000{n}.png\t{label}" for label, name in enumerate(NAMES[19:0:-1]) for n in (1, 2)
        ]
        images = faces / "list.txt"
        images.write_text("\n".join(lines))
    make = {"folder": ImageFolder, "list": ImageList}[kind]
    train, everyone = make(str(images), hold_out=0.3), make(str(images))
    pairs = ImagePairs(str(images), hold_out=0.3)
    assert pairs.title == f"held-out pairs of {'faces' if kind == 'folder' else 'faces/list.txt'}"
    seen, unseen = set(train.identities.tolist()), set(pairs.identities.tolist())
    assert not seen & unseen and seen | unseen == set(everyone.identities.tolist())
    assert names_of(pairs) == {name.split("/")[-1] for name in unseen}
    assert train.num_classes == len(seen) and len(train) == 2 * len(seen)
    for index in range(len(train)):
        name = train.identities[train.labels[index]].split("/")[-1]
        assert train.name(index).split("/")[-2] == name
    there = NAMES[:20] if kind == "folder" else NAMES[1:20]
    assert names_of(pairs) == {name for name in there if held_out([name], 0.3)}


class Named(Synthetic):
    """A user's own set, whose classes are named as in docs/extend.md."""

    def __init__(self, names: list[str], share: float = 0.0, seed: int = 0):
        names = [name for name, held in zip(names, held_out(names, share)) if not held]
        super().__init__(len(names), 2, (3, 112, 112), seed)
        self.identities = names


def test_an_own_set_with_names_is_kept_apart_from_the_pairs(tmp_path):
    people = [letter * 3 for letter in "abcdefghijklmnopqrst"]
    faces = write_folder(tmp_path / "faces", dict.fromkeys(people, 2))
    own = {"name": "tests.data.test_hold_out:Named", "names": people}
    pairs = {"name": "ImagePairs", "images": str(faces), "hold_out": 0.3}

    def build(**more):
        cfg = load({"DataLoader.Train.dataset": {**own, **more}, "DataLoader.Eval.dataset": pairs}).DataLoader
        train = build_dataset(cfg, 0)
        preprocessing = Preprocessing((3, 112, 112))
        return build_sets(
            cfg, 0, preprocessing, train.num_classes, train.class_names, seen=train.identities
        ), train.class_names

    held = names_of(ImagePairs(str(faces), hold_out=0.3))
    assert f"{len(held)} of its classes are also trained on (the first is {min(held)})" in refusal(build)
    _, names = build(share=0.3)
    assert {*names} == {*people} - held


def test_a_rec_is_split_by_the_numbers_of_its_classes(tmp_path, faces, capsys):
    path = str(write_rec(tmp_path / "a.rec", [label for label in range(20) for _ in range(2)]))
    train, pairs = RecImages(path, hold_out=0.3), ImagePairs(path, hold_out=0.3)
    held = held_out([str(number) for number in range(20)], 0.3)
    assert train.num_classes == 20 - held.sum() and len(train) == 2 * train.num_classes
    everyone = RecImages(path)
    trained = {train.encoded(index).tobytes() for index in range(len(train))}
    verified = {pairs.encoded(index).tobytes() for index in range(pairs.num_images)}
    assert not trained & verified and len(trained | verified) == len(everyone)
    loader = load(TINY, [f"DataLoader.Eval.dataset={{name: ImagePairs, images: {faces}, hold_out: 0.3}}"])
    build_sets(loader.DataLoader, 0, train.preprocessing, 9, train.class_names)
    said = capsys.readouterr().out
    assert "WARNING DataLoader.Eval.dataset: its hold_out cannot keep trained classes out of this set" in said
    assert "the classes have names in only one of this set and the training set" in said


def test_too_few_on_either_side_are_refused(faces):
    for make in (ImageFolder, ImagePairs):
        assert refusal(make, str(faces), hold_out=0.001).startswith(
            f"hold_out: 0.001 of {faces} holds out 0 of its 20 classes"
        )
