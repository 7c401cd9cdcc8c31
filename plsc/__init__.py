"""Training classifiers whose classes do not fit one device, on PaddlePaddle."""

__version__ = "0.1.0"
