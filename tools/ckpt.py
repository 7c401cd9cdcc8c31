"""Look at, check and cut checkpoints: python tools/ckpt.py inspect output/checkpoints/step-00000656"""

import sys

from plsc.cli import ckpt

if __name__ == "__main__":
    sys.exit(ckpt())
