"""Show, write and verify the model card of a run: python tools/card.py verify output"""

import sys

from plsc.cli import card

if __name__ == "__main__":
    sys.exit(card())
