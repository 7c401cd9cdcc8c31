"""The features of a run, a file each."""
