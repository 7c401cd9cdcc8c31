"""Define the answers of the service, for the code and for /openapi.json."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class _Answer(BaseModel):
    """An answer in JSON."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Remark(_Answer):
    """What is wrong with a picture of the request."""

    picture: int
    """Its number, from 1."""
    rule: str
    """What it is about in a few words, such as "stretched"; programs can rely on it."""
    text: str
    """One line: the value, and what to do."""


class Problem(_Answer):
    """What is wrong with a request."""

    error: str
    """One line."""
    refused: list[Remark] | None = None
    """Where it is pictures: all that are refused."""


class _OfPictures(_Answer):
    """An answer to a request with pictures."""

    faces: list[int] | None = None
    """With align: how many faces each picture shows; the largest was taken."""
    warnings: list[Remark] = []
    """What is doubtful in the pictures: too small, stretched, blurred, not aligned."""


class Embeddings(_OfPictures):
    """Embeddings of length 1: the dot product of two is their similarity."""

    embeddings: list[list[float]]
    """In the order of the pictures."""
    network: str
    """Embeddings of other networks cannot be compared with these."""


class Comparison(_OfPictures):
    """How alike two pictures are, or a picture and a name."""

    similarity: float
    """The cosine, -1 to 1."""
    probability: float | None = None
    """P(same); null where the network was not calibrated."""
    threshold: float | None = None
    """The cosine above which it is the same."""
    same: bool | None = None
    """Whether the similarity is above the threshold; null where there is no threshold."""


class Candidate(_Answer):
    """A name of the gallery, and how alike the picture is."""

    name: str
    similarity: float
    """The cosine, -1 to 1."""
    meta: Any = None
    """What is kept with the person; null for nothing."""
    accepted: bool | None = None
    """Whether this is the answer: the nearest name, above the threshold; null where there is no threshold."""


class Search(_OfPictures):
    """The names most like a picture, best first."""

    verdict: str
    """"nobody" (the nearest is not near enough), "known", or "undecided" (there is no threshold)."""
    name: str | None = None
    """Who it is; null for nobody."""
    threshold: float | None = None
    """The cosine above which the nearest name is accepted."""
    matches: list[Candidate]
    """Each name once, best first."""


class People(_Answer):
    """Names of the gallery, sorted."""

    count: int
    """Of all names that were asked for."""
    names: list[str]


class Changed(_Answer):
    """What was added or removed."""

    name: str
    pictures: int | None = None
    """How many were added."""
    count: int
    """Names in the gallery now."""
    warnings: list[Remark] = []
    """What is doubtful in the pictures that were added."""


class Health(_Answer):
    """Whether the service works."""

    status: str
    """"ok"."""


class About(_Answer):
    """What the service is and takes."""

    network: str
    """Its identity, the same for a checkpoint and its exports."""
    described: str
    """Where it is from."""
    size: list[int]
    """Height and width of the network's pictures; others are resized."""
    channels: str
    people: int | None = None
    """Names in the gallery; null: there is none."""
    threshold: float | None = None
    """For two pictures; a search has its own."""
    calibrated: bool
    align: bool
    """Whether faces can be found and aligned."""
    aligned: bool | None = None
    """Whether the network was trained on aligned faces, which align follows; null: not known."""
    writable: bool
    max_bytes: int
    max_pixels: int
    max_pictures: int
