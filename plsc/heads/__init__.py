"""Compute the loss of the last layer, whose class centres are split over the ranks or whole on each. Read
softmax.py, then step.py."""
