"""Say before a run what it takes of memory, disk and time: `plsc plan`."""
