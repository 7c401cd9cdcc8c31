"""Compute the last layer's loss, whose class centres are split over the ranks or whole on each. Read
softmax.py, then step.py."""
