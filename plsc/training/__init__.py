"""Train one run. Read trainer.py, whose train_step is the whole step, part.py, then build.py, which
puts a run together."""
