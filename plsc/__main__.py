"""Run `python -m plsc train -c configs/`: commands without installed scripts, and ranks that plsc starts."""

import sys
from pathlib import Path

if not __package__:  # started as a file: this folder's modules must not shadow others
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from plsc.cli import main

sys.exit(main())
