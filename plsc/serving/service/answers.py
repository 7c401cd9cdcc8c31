"""Define the answers of the service, for the code and for /openapi.json."""

# pydantic evaluates the annotations, so they must be valid on Python 3.9: Optional[int], not int | None.
# ruff: noqa: FA100

from typing import Optional

from pydantic import BaseModel


class Problem(BaseModel):
    """What is wrong with a request."""

    error: str


class Embeddings(BaseModel):
    """Embeddings of length 1: the dot product of two is their similarity."""

    embeddings: list[list[float]]
    network: str
    """Embeddings of other networks cannot be compared with these."""
    faces: Optional[list[int]] = None
    """With align: how many faces each picture shows; the largest was taken."""


class Comparison(BaseModel):
    """How alike two pictures are, or a picture and a name."""

    similarity: float
    """The cosine, -1 to 1."""
    probability: Optional[float] = None
    """P(same); null where the network was not calibrated."""
    threshold: Optional[float] = None
    same: Optional[bool] = None
    """Whether the similarity is above the threshold; null where there is no threshold."""
    faces: Optional[list[int]] = None


class Candidate(BaseModel):
    """A name of the gallery, and how alike the picture is."""

    name: str
    similarity: float
    probability: Optional[float] = None
    accepted: Optional[bool] = None


class Search(BaseModel):
    """The names most like a picture, best first."""

    verdict: str
    """"known", "stranger" (nobody is accepted), or "undecided" (there is no threshold)."""
    name: Optional[str] = None
    """Of the best match, if it is accepted."""
    threshold: Optional[float] = None
    matches: list[Candidate]
    faces: Optional[list[int]] = None


class People(BaseModel):
    """Names of the gallery, sorted."""

    count: int
    names: list[str]


class Changed(BaseModel):
    """What was added or removed."""

    name: str
    pictures: Optional[int] = None
    count: int
    """Names in the gallery now."""


class Health(BaseModel):
    """Whether the service works."""

    status: str


class About(BaseModel):
    """What the service is and takes."""

    network: str
    described: str
    size: list[int]
    """Height and width of the network's pictures; others are resized."""
    channels: str
    people: Optional[int] = None
    """Names in the gallery; null: there is none."""
    threshold: Optional[float] = None
    """For two pictures; a gallery has its own."""
    calibrated: bool
    align: bool
    """Whether faces can be found and aligned."""
    writable: bool
    max_bytes: int
    max_pixels: int
    max_pictures: int
