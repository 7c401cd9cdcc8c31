"""Take people out of a trained network: python tools/forget.py output Ann --to output-without"""

import sys

from plsc.cli import forget

if __name__ == "__main__":
    sys.exit(forget())
