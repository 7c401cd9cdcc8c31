"""Check the names of people, and compose them: one name is one text, whatever characters it is written
with."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import TypeVar

from plsc.errors import UserError, shown

# Categories of Unicode: control and format characters, white space.
_INVISIBLE = {"Cc", "Cf", "Zs", "Zl", "Zp"}
_Pictures = TypeVar("_Pictures")


def composed(name: str) -> str:
    """Return a name as galleries have it: accents are part of their letters (NFC). File systems and keyboards
    give either form."""
    return unicodedata.normalize("NFC", name)


def name_of(person: object) -> str:
    """Return the name of a person to be added, composed. Raises UserError for one that is no text, or is
    empty or seems to be another."""
    if not isinstance(person, str) or not person:
        raise UserError(f"a person needs a name, text that is not empty; got {shown(repr(person))}")
    if any(unicodedata.category(end) in _INVISIBLE for end in (person[0], person[-1])):
        raise UserError(
            f"a person's name must not begin or end with white space or an invisible character; got {shown(repr(person))}"
        )
    return composed(person)


def by_name(people: Mapping[str, _Pictures]) -> dict[str, _Pictures]:
    """Return people to be added by their names as of `name_of`. UserError, too, where two names become
    one."""
    named: dict[str, _Pictures] = {}
    for person, pictures in people.items():
        name = name_of(person)
        if name in named:
            raise UserError(
                f"'{shown(name)}': two names are the same text, of other Unicode characters (NFC and NFD); rename one, or join the two"
            )
        named[name] = pictures
    return named
