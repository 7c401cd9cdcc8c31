"""Train one run.

Read trainer.py first, whose train_step is the whole step. Then read part.py, and build.py, which builds a run
from its config.
"""
