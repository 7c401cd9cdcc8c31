"""Check this machine, or several together: `plsc selftest`. The parts of the check: parts.py."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Run `plsc selftest`; return 0 if every part passed, 1 if one failed, 2 if machines differ."""
    if any(word.partition("=")[0] == "--nnodes" for word in argv):
        from plsc.apps.supervise import selftest_of_machines

        return selftest_of_machines.main(argv)
    from plsc.cli.selftest import selftest  # imports Paddle

    return selftest.main(argv)
