"""Write a checkpoint's backbone for other programs: `plsc export`."""

from __future__ import annotations

from collections.abc import Sequence

from plsc.cli.arguments import make_parser, parse


def main(argv: Sequence[str]) -> None:
    """Run `plsc export`."""
    what = "write the network for Paddle Inference, ONNX and others"
    args = parse(make_parser("export", what, "-c first/config.yaml"), argv)
    from plsc.entry import Entry

    Entry(args.config, args.override).export()
