"""Convert a set of images: python tools/convert.py faces/ train.rec"""

import sys

from plsc.cli import convert

if __name__ == "__main__":
    sys.exit(convert())
