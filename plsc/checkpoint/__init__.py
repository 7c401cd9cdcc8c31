"""Write and read checkpoints: whole or absent, checksummed, for any number of ranks. Read store.py, then
manifest.py."""
