"""Compiled C++ kernels of the head, and what does the same without them; loaded by plsc/native."""
