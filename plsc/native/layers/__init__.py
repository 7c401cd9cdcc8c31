"""Compute backbone layers on CPUs by compiled C++ kernels, which plsc/native loads."""
