"""Train as a config says.

python -m paddle.distributed.launch --nproc_per_node 2 tools/train.py -c configs/
"""

import sys

from plsc.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
