"""Help the other packages with files, logs, progress and numbers; nothing here knows of classes, networks or
runs."""
