"""Compiled C++ kernels of the backbones' layers on CPUs; loaded by plsc/native."""
