"""Programs that measure speed and memory of the parts. They need a clone: pip does not install them."""

from pathlib import Path

from plsc.distributed import launcher

MAIN = Path(__file__).with_name("__main__.py")


def run_ranks(arguments: list[str], ranks: int, logs: Path, device: str) -> str:
    """Run `python -m benchmarks *arguments` on `ranks` new processes, and return the last line that they
    print.

    device: which the arguments ask for. Raises UserError if there are more ranks than cards.
    """
    lines: list[str] = []
    launcher.launch(arguments, ranks, logs, lines.append, MAIN, device)
    launchers = ("LAUNCH", "Container rank")
    printed = [line.strip() for line in lines if line.strip() and not line.startswith(launchers)]
    return printed[-1] if printed else "nothing was printed"
