"""Measure a part: python tools/benchmark.py head --classes 1000000 --dim 128 --batch 256"""

import sys

from plsc.cli import benchmark

if __name__ == "__main__":
    sys.exit(benchmark())
