"""Programs that measure speed and memory of the parts. They need a clone: pip does not install them."""

from pathlib import Path

MAIN = Path(__file__).with_name("__main__.py")
