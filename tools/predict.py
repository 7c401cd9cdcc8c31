"""Compute embeddings of images: python tools/predict.py -c configs/ pictures.txt"""

import sys

from plsc.cli import predict

if __name__ == "__main__":
    sys.exit(predict())
