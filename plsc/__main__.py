"""`python -m plsc train -c configs/`: the verbs without installed scripts, and what Entry.launch starts on each rank."""

import sys
from pathlib import Path

if not __package__:  # started as a file: this folder's module names must not shadow anybody's
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from plsc.cli import main

sys.exit(main())
