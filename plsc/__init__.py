"""Train classifiers with more classes than one device can hold, on PaddlePaddle: `from plsc import Entry`."""

import zlib  # noqa: F401 (before Paddle: on 2.6 a zlib that is loaded after it crashes)

from plsc.utils.version import __version__

__all__ = ["BACKBONES", "DATASETS", "MARGINS", "Entry", "__version__"]


def __getattr__(name: str):
    # Imported on first use: reading the version or a config should not import everything.
    if name == "Entry":
        from plsc.training.entry import Entry

        return Entry
    if name in ("BACKBONES", "DATASETS", "MARGINS"):
        from plsc.utils import registry

        return getattr(registry, name)
    raise AttributeError(f"module 'plsc' has no attribute '{name}'")
