"""Run Paddle's launcher: `python .../paddle_launch.py` in place of `python -m paddle.distributed.launch`.

With -m Python looks for modules in the working folder first, and would run a paddle.py there. Imports nothing
of plsc.
"""

import runpy
import sys
import warnings

if __name__ == "__main__":
    del sys.path[0]  # this folder: its modules must not shadow others
    warnings.filterwarnings("ignore", message="No ccache found")
    runpy.run_module("paddle.distributed.launch", run_name="__main__", alter_sys=True)
