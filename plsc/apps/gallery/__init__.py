"""Store known people and recognize them in pictures: `from plsc import Gallery`."""

from plsc.apps.gallery.answer import Answer, Face, Match, Verification
from plsc.apps.gallery.gallery import Gallery, verify

__all__ = ["Answer", "Face", "Gallery", "Match", "Verification", "verify"]
