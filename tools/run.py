"""Train, and restart after failures: python tools/run.py --nproc_per_node 2 tools/train.py -c configs/"""

import sys

from plsc.cli import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))
