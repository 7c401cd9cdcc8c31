"""Translate the training configs of other programs: `plsc import --config FILE`."""
