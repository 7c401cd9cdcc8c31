"""State the version, without any import: setup.py reads it. Checkpoints, exports and reports record it."""

__version__ = "0.1.0"
