"""Find errors in sets of images: python tools/doctor.py train.rec --validation lfw.bin"""

import sys

from plsc.cli import doctor

if __name__ == "__main__":
    sys.exit(doctor())
