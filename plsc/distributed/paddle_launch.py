"""Run Paddle's launcher: `python .../paddle_launch.py` in place of `python -m paddle.distributed.launch`.

With -m Python looks for modules in the working folder first, and would run a paddle.py there. The launcher
gives each rank one of the labels in a variable of the environment, such as CUDA_VISIBLE_DEVICES, whether
there are such cards or not, and ends with an IndexError where labels are missing: the variable is set right
here, or the launch refused. Variables that would override its arguments are dropped.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import warnings
from collections.abc import Sequence

# In these the launcher prefers the environment to its arguments. An operator on Kubernetes sets some.
_OVERRIDES = (
    *("PADDLE_MASTER", "PADDLE_NNODES", "PADDLE_RANK", "PADDLE_TRAINER_ID", "POD_IP"),
    *("PADDLE_NPROC_PER_NODE", "PADDLE_LOG_DIR", "PADDLE_JOB_ID"),
)


def prepare(argv: Sequence[str], variables: Sequence[str], cards: int, on_cpu: bool = False) -> str:
    """Set the environment as Paddle's launcher needs it; return why it cannot start, "" if it can.

    Args:
        argv: arguments of the launcher. With its --devices the cards are not looked at.
        variables: those in which the launcher looks for labels; first that of the kind it starts ranks on, if any.
        cards: visible ones of that kind, of which a rank needs one each unless there are none.
        on_cpu: the ranks are to compute on the CPU whatever cards there are.
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
    if on_cpu or cards == 0:
        labels = ",".join(["-1"] * ranks)  # cards that are not there
        for name in variables:
            if on_cpu or name in os.environ:
                os.environ[name] = labels
    elif ranks > cards:
        shown = "1 visible card" if cards == 1 else f"{cards} visible cards"
        return f"{ranks} ranks on this machine, but {shown}: a rank takes one; start at most {cards}, or set Global.device=cpu"
    return ""


def main() -> None:
    """Run Paddle's launcher; exit code 2, and one line on stderr, if it cannot start."""
    del sys.path[0]  # this folder: its modules must not shadow others
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    warnings.filterwarnings("ignore", message="No ccache found")
    from plsc.distributed import device
    from plsc.distributed.environment import CPU, DEVICE, GPU

    on_cpu = os.environ.get(DEVICE) == CPU
    if kinds := device.kinds():
        variable = "CUDA_VISIBLE_DEVICES" if kinds[0] == GPU else f"{kinds[0].upper()}_VISIBLE_DEVICES"
        why = prepare(sys.argv[1:], [variable], device.count(kinds[0]), on_cpu)
    else:  # the launcher would take any of them for cards
        for name in ("CUDA_VISIBLE_DEVICES", "XPU_VISIBLE_DEVICES", "XPULINK_VISIBLE_DEVICES"):
            os.environ.pop(name, None)
        why = prepare(sys.argv[1:], [], 0)
    if why:
        print(f"ERROR {why}", file=sys.stderr)
        sys.exit(2)
    runpy.run_module("paddle.distributed.launch", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
