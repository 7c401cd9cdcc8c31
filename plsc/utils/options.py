"""Define the options that commands share.

They are not in plsc.config, because a command that needs a config only with `-c` would import all of it.
"""

import argparse


def add_overrides(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add -o to a command, with `meaning` as its help, and --device, which is short for an override."""
    key = "Section.key=value"
    parser.add_argument("-o", "--override", metavar=key, nargs="+", action="extend", default=[], help=meaning)
    device = {"dest": "override", "type": "Global.device={}".format, "action": "append", "metavar": "KIND"}
    parser.add_argument("--device", **device, help="cpu, gpu, gpu:1, npu, ...: -o Global.device=KIND")
