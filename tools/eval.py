"""Verify a run's newest checkpoint: python tools/eval.py -c configs/"""

import sys

from plsc.cli import main

if __name__ == "__main__":
    sys.exit(main(["eval", *sys.argv[1:]]))
