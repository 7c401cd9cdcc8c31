"""Export a run's newest checkpoint: python tools/export.py -c configs/"""

import sys

from plsc.cli import main

if __name__ == "__main__":
    sys.exit(main(["export", *sys.argv[1:]]))
