"""Check this machine: python tools/selftest.py --ranks 4"""

import sys

from plsc.cli import selftest

if __name__ == "__main__":
    sys.exit(selftest())
