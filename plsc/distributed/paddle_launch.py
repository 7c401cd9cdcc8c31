"""Run Paddle's launcher: `python .../paddle_launch.py RANKS ...` in place of `python -m
paddle.distributed.launch ...`.

With -m Python looks for modules in the working folder first, and would run a paddle.py there. The launcher
gives each rank one of the labels in a variable of the environment, such as CUDA_VISIBLE_DEVICES, whether
there are such cards or not, and ends with an IndexError where labels are missing: the variable is set right
here, or the launch refused.
"""

from __future__ import annotations

import os
import runpy
import sys
import warnings


def prepare(ranks: int, kind: str | None, cards: int, on_cpu: bool) -> str:
    """Set the environment as Paddle's launcher needs it; return why it cannot start, "" if it can.

    Args:
        kind: of the cards that the launcher gives to ranks; None: this Paddle computes on CPUs alone.
        cards: visible ones, of which a rank needs one each unless there are none.
        on_cpu: the ranks are to compute on the CPU whatever cards there are.
    """
    if kind is None:  # the launcher would take any of them for cards
        for name in ("CUDA_VISIBLE_DEVICES", "XPU_VISIBLE_DEVICES", "XPULINK_VISIBLE_DEVICES"):
            os.environ.pop(name, None)
        return ""
    if on_cpu or cards == 0:
        name = "CUDA_VISIBLE_DEVICES" if kind == "gpu" else f"{kind.upper()}_VISIBLE_DEVICES"
        os.environ[name] = ",".join(["-1"] * ranks)  # cards that are not there
    elif ranks > cards:
        shown = "1 visible card" if cards == 1 else f"{cards} visible cards"
        remedy = f"a rank takes one; start at most {cards}, or set Global.device=cpu"
        return f"{ranks} ranks on this machine, but {shown}: {remedy}"
    return ""


def main() -> None:
    """Run Paddle's launcher; exit code 2, and one line on stderr, if it cannot start."""
    del sys.path[0]  # this folder: its modules must not shadow others
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    warnings.filterwarnings("ignore", message="No ccache found")
    from plsc.distributed import device
    from plsc.distributed.environment import CPU, DEVICE

    ranks = int(sys.argv.pop(1))
    kind = next(iter(device.kinds()), None)
    if why := prepare(ranks, kind, device.count(kind) if kind else 0, os.environ.get(DEVICE) == CPU):
        print(f"ERROR {why}", file=sys.stderr)
        sys.exit(2)
    runpy.run_module("paddle.distributed.launch", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
