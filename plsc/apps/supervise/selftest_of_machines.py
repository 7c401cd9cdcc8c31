"""Check several machines together: `plsc selftest --nnodes N --rank r --master host:port`, on each of them.

The machines are compared as before a training (plsc.apps.supervise.preflight). If they agree, the parts of
the self-test run on the ranks of all of them, and the network is measured. Nothing is restarted. Imports no
Paddle.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from plsc.apps.supervise.machines import Machine
from plsc.apps.supervise.options import Options, read_options
from plsc.config import add_arguments, load
from plsc.distributed.environment import AUTO
from plsc.distributed.launcher import MAIN
from plsc.errors import UserError
from plsc.utils.disk import nearest_folder


def make_parser(parts: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Make the parser of plsc selftest. parts: the names that --parts takes; None: any."""
    parser = argparse.ArgumentParser(
        "plsc selftest", description="check this machine, or several, against dense numpy"
    )
    parser.add_argument(
        "--ranks", type=int, default=2, metavar="N", help="1: this process only; above 2: 2 and N"
    )
    parser.add_argument("--device", default=AUTO, help="as Global.device (auto)")
    parser.add_argument("--parts", nargs="+", choices=parts, metavar="PART", help="default: all")
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    several = parser.add_argument_group("several machines", "the same command on each, with its own --rank")
    several.add_argument("--nnodes", metavar="N", help="how many")
    several.add_argument("--rank", metavar="R", help="number of this machine, from 0")
    several.add_argument("--master", metavar="HOST:PORT", help="of machine 0")
    several.add_argument("--wait", default="600", metavar="SECONDS", help="for the other machines (600)")
    several.add_argument("--nproc_per_node", default="1", metavar="N", help="ranks of this machine (1)")
    add_arguments(several, device=False)  # what a training would compare
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `plsc selftest --nnodes`; return 0 if every part passed, 1 if one failed, 2 if the machines
    differ."""
    args = make_parser().parse_args(argv)
    cfg = load(args.config, args.override)
    folder = Path(
        tempfile.mkdtemp(prefix="plsc-selftest-", dir=nearest_folder(cfg.Global.output_dir))  # the same disk
    )
    code = 2
    try:
        device = cfg.Global.device if args.device == AUTO else args.device
        code = Machine(_options(args, device, folder)).run()
    finally:
        if code == 0 or not (folder / "log").exists():
            shutil.rmtree(folder)
    if code == 0:
        print("all parts passed on all machines")
    return code


def _options(args: argparse.Namespace, device: str, folder: Path) -> Options:
    """Return the options of a run whose program is the self-test."""
    program = [str(MAIN), "selftest", "--device", device]
    program += ["--parts", *args.parts] if args.parts else []
    program += ["-c", args.config] if args.config else []
    program += ["-o", *args.override, f"Global.output_dir={folder}", f"Global.device={device}"]
    given = {name: getattr(args, name) for name in ("nnodes", "rank", "master", "wait", "nproc_per_node")}
    launched = [f"--{name}={value}" for name, value in given.items() if value is not None]
    options = read_options([*launched, "--max_failures=1", *program])
    if options.machines is None:
        raise UserError(
            f"--nnodes: must be 2 or more (got {args.nnodes}); leave it out to check this machine alone"
        )
    return options
