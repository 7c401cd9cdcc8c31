"""Name the version, without importing anything: setup.py reads it here; checkpoints, exports and reports write it."""

__version__ = "0.1.0"
