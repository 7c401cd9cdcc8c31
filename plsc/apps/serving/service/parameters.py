"""Define what requests bring in their addresses and bodies, for the code and for /openapi.json, and check the
addresses."""

import re
from collections.abc import Sequence
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Query, Request, Security
from fastapi.security import HTTPBearer

from plsc.apps.serving.service.pictures import LONGEST_NAME
from plsc.apps.serving.service.refusal import Refusal

MOST_MATCHES = 50
_MOST_NAMES = 10_000  # of one answer
_PICTURE = {"type": "string", "format": "binary"}
_PLAIN = re.compile(r"[0-9A-Za-z.+-]*")  # numbers and words
_TEXTS = ("name", "find")

Align = Annotated[
    bool | None,
    Query(
        description="Find faces, and align the largest; by default as the network's pictures were, if that is known"
    ),
]
Name = Annotated[str, Query(min_length=1, max_length=LONGEST_NAME)]
Cosine = Annotated[float | None, Query(ge=-1, le=1, description="Instead of the stored threshold")]
Far = Annotated[
    float | None, Query(gt=0, lt=1, description="Instead: the threshold for this share of false accepts")
]
Top = Annotated[int, Query(ge=1, le=MOST_MATCHES, description="Names to return")]
Find = Annotated[
    str, Query(max_length=LONGEST_NAME, description="Only names with this text in them, in any case")
]
Start = Annotated[int, Query(ge=0, description="Names to leave out")]
Limit = Annotated[int, Query(ge=1, le=_MOST_NAMES, description="Names to return")]


def body(texts: Sequence[str] = (), needed: bool = True) -> dict:
    """Describe a body for the schema: a form of pictures and `texts`, which are needed or not; or one picture
    as it is."""
    fields = {name: {"type": "string", "minLength": 1, "maxLength": LONGEST_NAME} for name in texts}
    properties = {"picture": {"type": "array", "items": _PICTURE}, **fields}
    required = ["picture", *(texts if needed else ())]
    content = {
        "multipart/form-data": {"schema": {"type": "object", "properties": properties, "required": required}}
    }
    if not texts:
        content["image/*"] = {"schema": _PICTURE}
    return {"requestBody": {"required": True, "content": content}}


async def _check_query(request: Request) -> None:
    """Refuse what would be read as something else: unknown names (a slip in `threshold`), one that comes
    twice, bytes that are no text (of two names that end as one), and numbers that only Python reads, such as
    0_1."""
    known = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    try:
        text = request.scope["query_string"].decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict")
    except UnicodeError:
        raise Refusal(
            422, "the address has bytes that are not UTF-8; encode it as UTF-8, then by %XX"
        ) from None
    names = [name for name, _ in pairs]
    for name, value in pairs:
        if name not in known:
            raise Refusal(422, f"{name}: is not known here; there are {', '.join(known)}")
        if names.count(name) > 1:
            raise Refusal(422, f"{name}: comes {names.count(name)} times; give it once")
        if name not in _TEXTS and not _PLAIN.fullmatch(value):
            raise Refusal(422, f"{name}: must be a plain number or word, got '{value}'")


STRICT = [Depends(_check_query)]
TOKEN = [Security(HTTPBearer(auto_error=False))]  # for the schema; the service checks it
