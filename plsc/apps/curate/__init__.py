"""Align photos of faces for training: `plsc align`."""
