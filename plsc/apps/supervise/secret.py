"""Sign what the machines of a run send each other by a secret that all of them have, PLSC_RUN_SECRET in the
environment.

signature = secret.sign(b"POST", b"/", body)                   # HMAC-SHA256, of a report
secret.signed(given, b"POST", b"/", body)
"""

from __future__ import annotations

import hmac
import os

from plsc.errors import UserError

NAME = "PLSC_RUN_SECRET"
HEADER = "PLSC-Signature"
_SHORTEST = 16  # characters: a shorter one can be tried out by who has heard a report


class Secret:
    """What all machines of a run know, and nobody else."""

    def __init__(self, text: str):
        self._key = os.fsencode(text)

    def sign(self, *parts: bytes) -> str:
        """Return the signature of `parts`, of which only the last may have line breaks."""
        return hmac.new(self._key, b"\n".join(parts), "sha256").hexdigest()

    def signed(self, signature: str, *parts: bytes) -> bool:
        """Say whether `signature` is that of `parts`."""
        return hmac.compare_digest(self.sign(*parts).encode(), signature.encode(errors="replace"))


def read_secret() -> Secret | None:
    """Return the secret of the environment, None without one. Raises UserError for a short one."""
    text = os.environ.get(NAME)
    if text is None:
        return None
    if len(text) < _SHORTEST:
        raise UserError(
            f"{NAME}: must have {_SHORTEST} characters or more, the same on all machines; make one: "
            "python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return Secret(text)
