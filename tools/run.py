"""Train, and restart after failures: python tools/run.py --nproc_per_node 2 tools/train.py -c configs/"""

import sys

from plsc.cli import supervise

if __name__ == "__main__":
    sys.exit(supervise())
