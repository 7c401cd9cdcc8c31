"""Measure the speed and memory of plsc's parts. The programs need a clone, since pip does not install
them."""

from pathlib import Path

from plsc.distributed import launcher

MAIN = Path(__file__).with_name("__main__.py")


def run_ranks(arguments: list[str], ranks: int, logs: Path, main: Path = MAIN) -> str:
    """Run `python -m benchmarks *arguments` on `ranks` new processes. Return the last line that rank 0
    prints.

    Args:
        arguments: the command's arguments.
        ranks: how many processes.
        logs: folder for the ranks' output.
        main: the program of this clone or another one.
    """
    texts: list[str] = []
    launcher.launch(arguments, ranks, logs, texts.append, main)
    printed = "".join(texts).split("\n")
    return next((line.strip() for line in reversed(printed) if line.strip()), "nothing was printed")
