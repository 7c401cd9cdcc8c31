"""Compute embeddings of images: python tools/predict.py -c configs/ pictures.txt"""

import sys

from plsc.cli import main

if __name__ == "__main__":
    sys.exit(main(["predict", *sys.argv[1:]]))
