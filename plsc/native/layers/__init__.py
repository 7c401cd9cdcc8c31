"""Compute layers of backbones on CPUs by compiled C++ kernels, which plsc/native loads."""
