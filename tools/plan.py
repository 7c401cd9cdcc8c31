"""Predict memory and time of a run: python tools/plan.py -c configs/ --classes 1000000 --ranks 2"""

import sys

from plsc.cli import plan

if __name__ == "__main__":
    sys.exit(plan())
