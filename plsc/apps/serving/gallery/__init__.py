"""Keep the embeddings of known people in a file, and find out whom a picture shows.

    gallery = Gallery.open("people.gallery")
    gallery.search(["who.jpg"], top=5)

`gallery.py` has the class, `store.py` the SQLite file, which is the truth, `index.py` and `rows.py` what is
searched.
"""

from plsc.apps.serving.gallery.gallery import Gallery, Match

__all__ = ["Gallery", "Match"]
