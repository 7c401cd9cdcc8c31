"""Helpers for files, logs, progress and numbers. Nothing here knows about classes, networks or runs."""
