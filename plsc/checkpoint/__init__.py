"""Write and read checkpoints.

A checkpoint is either complete or absent. Its files have checksums, and any number of ranks can read it.
Read store.py first, then manifest.py.
"""
