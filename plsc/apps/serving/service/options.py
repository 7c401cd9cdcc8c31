"""Hold the settings of the service; the defaults stand here alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from plsc.apps.serving.gallery.quality import Review


@dataclass(frozen=True)
class Options:
    """Settings of `create_app`.

    batch: pictures that the network embeds at once, at most.
    queue: requests with a body that are in progress at once; a further one is answered 503.
    deadline: seconds for reading a request's body, and again for its place in each batch.
    max_bytes: of a request's body. max_pixels: of a picture, by its header. max_pictures: of one request.
    token: what `Authorization: Bearer` must bring; None: nothing asks for it.
    writable: whether /people may be changed, which takes the token.
    private: whether reading takes the token, too.
    review: which pictures are refused when they are added, see plsc.apps.serving.gallery.quality.
    hosts: names that a request may call this machine by; None: any.
    """

    batch: int = 16
    queue: int = 64
    deadline: float = 10.0
    max_bytes: int = 16 << 20
    max_pixels: int = 25_000_000
    max_pictures: int = 16
    token: str | None = field(default=None, repr=False)
    writable: bool = False
    private: bool = False
    review: Review = "standard"
    hosts: frozenset[str] | None = None


DEFAULTS = Options()
