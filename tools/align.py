"""Align the faces of photos: python tools/align.py photos/ aligned/"""

import sys

from plsc.cli import align

if __name__ == "__main__":
    sys.exit(align())
