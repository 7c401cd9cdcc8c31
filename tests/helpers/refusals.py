"""What a call says when it refuses what it is given."""

from collections.abc import Callable

import pytest

from plsc.errors import UserError


def refusal(call: Callable, *arguments, kind: type[UserError] = UserError, **keywords) -> str:
    """Return the one line from the UserError of this kind that a call raises."""
    with pytest.raises(kind) as raised:
        call(*arguments, **keywords)
    assert "\n" not in str(raised.value)
    return str(raised.value)
