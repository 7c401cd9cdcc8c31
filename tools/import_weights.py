"""Import weights: python tools/import_weights.py backbone.pt --model IResNet50 --output imported"""

import sys

from plsc.cli import import_weights

if __name__ == "__main__":
    sys.exit(import_weights())
