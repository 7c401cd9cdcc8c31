"""Compare and look up pictures over HTTP: python tools/serve.py -c output/config.yaml --gallery people"""

import sys

from plsc.cli import serve

if __name__ == "__main__":
    sys.exit(serve())
