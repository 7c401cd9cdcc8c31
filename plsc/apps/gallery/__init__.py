"""Keep known people, and find out whom a picture shows: `from plsc import Gallery`."""

from plsc.apps.gallery.gallery import Gallery, Match

__all__ = ["Gallery", "Match"]
