"""Compute evaluations on CPUs by compiled C++ kernels, which plsc/native loads."""
