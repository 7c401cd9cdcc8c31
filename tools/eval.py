"""Verify the newest checkpoint of a run: python tools/eval.py -c configs/"""

import sys

from plsc.cli import main

if __name__ == "__main__":
    sys.exit(main(["eval", *sys.argv[1:]]))
