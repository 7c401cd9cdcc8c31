"""Hold what is done around a run, an app a folder; the core imports none of them, and no app needs another to
be read."""
