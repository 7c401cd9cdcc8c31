"""Keep the embeddings of known people in a folder, and find out whom a picture shows.

    gallery = Gallery.open("faces.gallery")
    gallery.search(embedder.embed(pixels), top=5)

`gallery.py` has the class, `rows.py` what is searched, `files.py` and `log.py` what is on the disk.
"""

from plsc.apps.serving.gallery.gallery import Gallery, Match

__all__ = ["Gallery", "Match"]
