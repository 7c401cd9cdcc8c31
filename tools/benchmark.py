"""Measure a part: python tools/benchmark.py head --classes 1000000 --dim 128 --batch 256"""

import sys

from plsc.benchmark import main

if __name__ == "__main__":
    sys.exit(main())
