"""Compute the loss of the last layer, whose class centres are split over the ranks or whole on each. Read
softmax.py, then step.py.

    head = make_head(num_classes=1000, embedding_size=128, margin=ArcFace())

`make_head` imports Paddle, and so is imported on first use: config.py, which checks the section Head, does
without.
"""

import importlib

__all__ = ["make_head"]


def __getattr__(name: str):
    if name == "make_head":
        return importlib.import_module("plsc.heads.build").make_head
    raise AttributeError(f"module 'plsc.heads' has no attribute '{name}'")
