"""Measure the parts' speed and memory: `python -m benchmarks PART`, in a clone's root folder.

benchmarks/measure.py describes the method.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # started as a file, like a measurement's ranks
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from plsc.cli.mistakes import without_traceback
from plsc.distributed import environment


def main(argv: Sequence[str] | None = None) -> int:
    """Run `python -m benchmarks PART ...`. Raises UserError for a user's mistake."""
    # These are imported here because some of them import Paddle, whose environment must be prepared first.
    from benchmarks import (
        backbone,
        collectives,
        end2end,
        evaluation,
        faces,
        head,
        loader,
        save,
        step,
    )

    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["backbone"]:
        return backbone.main(argv[1:])
    measures = {
        "head": (head, head.head),
        "loader": (loader, loader.loader),
        "collectives": (collectives, collectives.collectives),
        "end2end": (end2end, end2end.end2end),
        "eval": (evaluation, evaluation.evaluation),
        "faces": (faces, faces.faces),
        "save": (save, save.save),
        "step": (step, step.step),
    }
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("backbone", help="parameters, MACs and speed of the backbones; see its own --help")
    for name, (module, measure) in measures.items():
        part = parts.add_parser(name, help=measure.__doc__)
        module.add_arguments(part)
        part.add_argument("--json", type=Path, help="also write the numbers to this file")
    args = parser.parse_args(argv)
    module, measure = measures[args.part]
    result = measure(args)
    row = getattr(args, "row", None)
    if row:  # A benchmark has started this process. Rank 0 writes the result.
        if environment.rank_from_env() == 0:
            row.write_text(json.dumps(result))
        return 0
    print(module.show(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(without_traceback(main))
