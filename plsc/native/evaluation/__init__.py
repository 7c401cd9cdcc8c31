"""Kernels of evaluation."""
