"""Define the evaluation sets: what each contains, how it is checked, and how embeddings are scored.

Try it:

    eval_set(PairList("pairs.csv")).score(embeddings).headline
"""

from collections.abc import Sequence
from typing import Any, get_type_hints

import numpy as np

from plsc.data.build import build_dataset
from plsc.data.config import EVAL_SET, MORE_SETS, DataLoaderCfg
from plsc.data.dataset import (
    Dataset,
    IdentificationSet,
    PairSet,
    TemplatePairs,
    check_against_training,
    check_array,
    check_labels,
    matched_by_number,
)
from plsc.errors import Mistakes, UserError, escape, in_one_line
from plsc.evaluation.classification import Classification, classify
from plsc.evaluation.identification import Identification, identify
from plsc.evaluation.pair_checks import uninformative_pairs
from plsc.evaluation.templates import template_features
from plsc.evaluation.verification import Verification, one_kind, verify_pairs
from plsc.utils.logging import warn_on_rank_0
from plsc.utils.preprocessing import Preprocessing

Result = Classification | Identification | Verification
_SHOWN = 3  # most examples that a doubt names


class EvalSet:
    """A data set with the checks and the scoring of its kind.

    `check` checks its arrays, and raises UserError if one is wrong. `score` computes the result from the
    embeddings [count, D]. A LabelledSet has `score_predictions` in place of `score`.

    Attributes:
        result: the result's class.
        data: the object that a config names. Its class may be a user's own.
        title, preprocessing, images: as in `data`.
        count: sample count.
        identities: class names or numbers, as in a training set's `identities`. None if not known.
        labels: int64 [count], set for labelled samples only. A head predicts them.
        num_classes: class count, set for labelled samples only.
        pairs: int64 [P, 2], set for verification only. Only verification finds a threshold.
        doubts: sentences from `check`, each about something that makes the numbers doubtful.
    """

    result: type[Result]
    labels: np.ndarray | None = None
    num_classes: int | None = None
    pairs: np.ndarray | None = None
    doubts: Sequence[str] = ()

    def __init__(self, data: Any, count: int):
        self.data = data
        self.count = count
        self.title = escape(data.title)
        self.preprocessing = data.preprocessing
        self.images = data.images
        self.identities: np.ndarray | None = getattr(data, "identities", None)

    def name_of(self, index: int) -> str:
        """Return a sample's name for messages."""
        return self.data.image_name(index)


class LabelledSet(EvalSet):
    """Labelled samples of trained classes: which class is it?"""

    result = Classification

    def __init__(self, data: Dataset):
        super().__init__(data, len(data))
        self.labels = data.labels
        self.num_classes = getattr(data, "num_classes", None)

    def name_of(self, index: int) -> str:
        return self.data.name(index)

    def check(self) -> None:
        check_labels(self.data)

    def score_predictions(self, predicted: np.ndarray) -> Classification:
        """Compute the result from the predicted classes, int64 [count]."""
        return classify(self.labels, predicted)


class VerificationSet(EvalSet):
    """Image pairs: do both show one class?"""

    result = Verification

    def __init__(self, data: PairSet):
        super().__init__(data, data.num_images)
        self.pairs = data.pairs
        self.sides = data.num_images  # how many images or templates the pairs index

    def check(self) -> None:
        check_array(self.data, "pairs", "int64 [P, 2]", self.sides)
        check_array(self.data, "same", "bool [P]", None, len(self.pairs))
        same, people = self.data.same, self.data.identity_of
        if people is not None and len(people) != self.sides:
            raise UserError(
                f"{type(self.data).__name__}.identity_of: must name all {self.sides:,}, names {len(people):,}"
            )
        self.doubts = uninformative_pairs(self.data.pairs_by_content(), same, self.data.pair_name)
        if why := one_kind(same):
            self.doubts.append(why)

    def score(self, embeddings: np.ndarray) -> Verification:
        return verify_pairs(embeddings, self.pairs, self.data.same, identity_of=self.data.identity_of)

    def side(self, index: int) -> tuple[int, str]:
        """Return the image that stands for one side of a pair in a report, and the side's name."""
        return index, self.name_of(index)


class TemplateSet(VerificationSet):
    """Template pairs. A template is a set with one identity's images."""

    def __init__(self, data: TemplatePairs):
        super().__init__(data)
        self.sides = int(data.template.max()) + 1

    def score(self, embeddings: np.ndarray) -> Verification:
        return super().score(template_features(embeddings, self.data.template, self.data.media))

    def side(self, index: int) -> tuple[int, str]:
        images = np.flatnonzero(self.data.template == index)
        first = int(images[0])
        return first, f"template {index} ({len(images)} images): {self.name_of(first)}"


class SearchSet(EvalSet):
    """Probes that are searched for in a gallery: which person of the gallery is it, if any?"""

    result = Identification

    def __init__(self, data: IdentificationSet):
        super().__init__(data, data.num_images)
        self.identities = data.names

    def check(self) -> None:
        check_array(self.data, "gallery", "int64 [G]", self.count)
        check_array(self.data, "probe", "int64 [Q]", self.count)
        check_array(self.data, "identities", "int64 [num_images]", None, self.count)
        if found := self.data.probes_in_gallery():
            some = ", ".join(" = ".join(map(self.name_of, pair)) for pair in found[:_SHOWN])
            count = f"{len(found):,} of {len(self.data.probe):,} probes"
            self.doubts = [f"{count} are also gallery pictures, so they find themselves: {some}"]

    def score(self, embeddings: np.ndarray) -> Identification:
        return identify(embeddings, self.data.gallery, self.data.probe, self.data.identities)


# The first matching base class determines the kind. A TemplatePairs is also a PairSet, so it comes first.
_KINDS: dict[type, type[EvalSet]] = {
    Dataset: LabelledSet,
    IdentificationSet: SearchSet,
    TemplatePairs: TemplateSet,
    PairSet: VerificationSet,
}


def eval_set(data: Dataset | PairSet | IdentificationSet) -> EvalSet:
    """Return a data set's evaluation set, chosen by its base class.

    Raises UserError with all attributes that the object lacks, as an object with a user's own class may.
    """
    base, kind = next(each for each in _KINDS.items() if isinstance(data, each[0]))
    # The attributes that the base class declares without a value.
    names = [name for name in get_type_hints(base) if not hasattr(base, name)]
    missing = [name for name in names if not hasattr(type(data), name) and not hasattr(data, name)]
    if missing:
        raise UserError(
            f"{type(data).__name__}: does not set {', '.join(missing)}; a {base.__name__} must set "
            f"{', '.join(names)}, as plsc/data/dataset.py describes"
        )
    return kind(data)


def build_sets(
    section: DataLoaderCfg,
    seed: int,
    preprocessing: Preprocessing | None,
    num_classes: int,
    names: list[str] | None,
    seen: np.ndarray | None = None,
) -> dict[str, EvalSet]:
    """Build DataLoader.Eval's sets by title, the main one first.

    Args:
        section: the config's section DataLoader.
        seed: the run's seed.
        preprocessing, num_classes, names, seen: the training set's, see `check_against_training`. If
            preprocessing is None, the sets are not compared with a training set.

    Raises UserError with every set's mistakes, such as a set that does not fit the training set.
    """
    sets: dict[str, EvalSet] = {}
    mistakes = Mistakes()
    for key in section.Eval.sets():
        with mistakes.collected():
            made = build_dataset(section, seed, key)
            try:
                data = eval_set(made)
                data.check()
            except UserError as error:
                raise UserError(error, key=key) from error
            except AttributeError as error:  # in a user's own class
                raise UserError(f"{type(made).__name__}: {in_one_line(error)}", key=key) from error
            for doubt in data.doubts:
                warn_on_rank_0(f"{key}: {doubt}")
            if preprocessing is not None:
                check_against_training(data.data, key, preprocessing, num_classes, names, seen)
                why = matched_by_number(names, data.data) if isinstance(data, LabelledSet) else None
                if why:
                    warn_on_rank_0(
                        f"{key}: its classes are taken for the trained ones by their numbers, because {why}"
                    )
                if getattr(data.data, "hold_out", 0) and (names is None) != (data.identities is None):
                    warn_on_rank_0(
                        f"{key}: its hold_out cannot keep trained classes out of this set, because the "
                        "classes have names in only one of this set and the training set; some may be in "
                        "both; read both sets from the same files with the same hold_out"
                    )
            title = data.title if key == EVAL_SET else key.removeprefix(f"{MORE_SETS}.")
            if title in sets:
                raise UserError(f"has the same title '{title}' as the main set; give it another", key=key)
            sets[title] = data
    mistakes.raise_all()
    return sets
