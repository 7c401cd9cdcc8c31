"""Run Paddle's launcher: `python .../paddle_launch.py` in place of `python -m paddle.distributed.launch`.

With -m Python looks for modules in the working folder first, and would run a paddle.py there. The launcher gives each
rank one of the labels in CUDA_VISIBLE_DEVICES, whether there are such GPUs or not, and ends with an IndexError where
labels are missing: the variable is set right here, or the launch refused. Variables that would override its arguments
are dropped. Imports nothing of plsc.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import warnings
from collections.abc import Sequence

NAME = "CUDA_VISIBLE_DEVICES"

# In these the launcher prefers the environment to its arguments. An operator on Kubernetes sets some.
_OVERRIDES = (
    *("PADDLE_MASTER", "PADDLE_NNODES", "PADDLE_RANK", "PADDLE_TRAINER_ID", "POD_IP"),
    *("PADDLE_NPROC_PER_NODE", "PADDLE_LOG_DIR", "PADDLE_JOB_ID"),
)


def prepare(argv: Sequence[str], gpus: int | None) -> str:
    """Set the environment as Paddle's launcher needs it; return why it cannot start, "" if it can.

    Args:
        argv: arguments of the launcher. With its --devices the GPUs are not looked at.
        gpus: visible ones, of which a rank needs one each unless there are none; None: Paddle is built for CPUs.
    """
    for name in _OVERRIDES:
        os.environ.pop(name, None)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--nproc_per_node", type=int, default=1)
    parser.add_argument("--devices", "--gpus")
    given, _ = parser.parse_known_args(argv)
    ranks = given.nproc_per_node
    if given.devices:
        return ""
    if gpus is None:
        os.environ.pop(NAME, None)
    elif gpus == 0:
        if NAME in os.environ:
            os.environ[NAME] = hidden(ranks)
    elif ranks > gpus:
        return (
            f"{ranks} ranks on this machine, but {gpus} visible GPU{'s' * (gpus > 1)}: a rank takes one; start at most {gpus}, "
            "or set Global.device=cpu"
        )
    return ""


def hidden(ranks: int) -> str:
    """Return the CUDA_VISIBLE_DEVICES with which so many ranks of one launch see no GPU."""
    return ",".join(["-1"] * ranks)


def main() -> None:
    """Run Paddle's launcher; exit code 2, and one line on stderr, if it cannot start."""
    del sys.path[0]  # this folder: its modules must not shadow others
    warnings.filterwarnings("ignore", message="No ccache found")
    import paddle

    gpus = paddle.device.cuda.device_count() if paddle.is_compiled_with_cuda() else None
    if why := prepare(sys.argv[1:], gpus):
        print(f"ERROR {why}", file=sys.stderr)
        sys.exit(2)
    runpy.run_module("paddle.distributed.launch", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
