"""Hold the size of the project: lines, statements and config keys only fall, towards BUDGETS.

    # lowers the limits of tests/size.json to what is there; prints what is above budget
    python -m tests.test_size

Lines are those of all tracked files, in tests/ of Python alone; statements are `ast.stmt` of Python files,
since denser lines are no gain.
"""

import ast
import functools
import json
import subprocess
from pathlib import Path

import pytest

from plsc.config import Config
from plsc.utils.section import Section, sections_in

ROOT = Path(__file__).resolve().parents[1]
LIMITS = Path(__file__).with_name("size.json")
LARGEST_FILE = 500_000  # bytes
BUDGETS = {
    **{
        f"{package} {unit}": budget
        for package, *budgets in (
            ("plsc/*", 250, 150),
            ("plsc/utils", 900, 520),
            ("plsc/config", 850, 500),
            ("plsc/cli", 600, 350),
            ("plsc/distributed", 1_150, 670),
            ("plsc/native", 2_550, 400),
            ("plsc/data", 3_100, 1_850),
            ("plsc/backbones", 1_850, 1_020),
            ("plsc/heads", 2_850, 1_700),
            ("plsc/training", 2_650, 1_550),
            ("plsc/checkpoint", 950, 570),
            ("plsc/evaluation", 1_300, 740),
            ("plsc/apps", 3_900, 2_250),
            ("plsc", 23_400, 12_300),
            ("tests", 23_000, 14_000),
        )
        for unit, budget in zip(("lines", "statements"), budgets, strict=True)
    },
    "benchmarks lines": 2_000,
    "config keys": 80,
}


def tracked(*folders: str) -> list[Path]:
    """List the files that git tracks."""
    git = subprocess.run(
        ["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if git.returncode:
        pytest.skip("this is no git checkout")
    return [path for name in git.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def all_sections(base: type[Section] = Section) -> set[type[Section]]:
    """Return the sections of plsc's own config."""
    below = {section for section in base.__subclasses__() if section.__module__.startswith("plsc.")}
    return below.union(*map(all_sections, below))


def config_keys(section: type[Section] = Config, path: str = "") -> set[str]:
    """Return the keys of a config that have values, "Section.key"; one of sections of several names counts
    once.

    The keys of Optimizer.head are those of Optimizer.
    """
    keys = set()
    for key, field in section.model_fields.items():
        below = sections_in(field.annotation)
        if path + key == "Optimizer.head" or not below:
            keys.add(path + key)
        else:
            keys.update(*(config_keys(kind, f"{path}{key}.") for kind in below))
    return keys


@functools.cache
def sizes() -> dict[str, int]:
    """Count lines and statements by package, and the config keys."""
    found: dict[str, int] = {}
    for path in tracked("plsc", "tests", "benchmarks"):
        top, *rest = path.relative_to(ROOT).parts
        text = path.read_bytes()
        packages = [top]
        if top == "tests" and path.suffix != ".py":
            continue
        if top == "plsc":
            packages.append(f"plsc/{rest[0]}" if len(rest) > 1 else "plsc/*")
        for package in packages:
            found[f"{package} lines"] = found.get(f"{package} lines", 0) + text.count(b"\n")
            if path.suffix == ".py":
                statements = sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(text)))
                found[f"{package} statements"] = found.get(f"{package} statements", 0) + statements
    found["config keys"] = len(config_keys())
    return dict(sorted(found.items()))


def above_budget(found: dict[str, int]) -> list[str]:
    """Say which budgets are not met yet."""
    return [
        f"{name}: {found[name]:,}, budget {budget:,}"
        for name, budget in BUDGETS.items()
        if found.get(name, 0) > budget
    ]


def test_no_number_rises():
    found, limits = sizes(), json.loads(LIMITS.read_text())
    risen = [
        f"{name}: {count:,}, limit {limits.get(name, 0):,}"
        for name, count in found.items()
        if count > limits.get(name, 0)
    ]
    still = "; ".join(above_budget(found)) or "none"
    assert not risen, f"{'; '.join(risen)}. Above the budgets: {still}"


def test_a_budget_stands_for_something_that_is_counted():
    assert BUDGETS.keys() <= sizes().keys()


def test_no_large_file_is_tracked():
    large = [str(path.relative_to(ROOT)) for path in tracked() if path.stat().st_size > LARGEST_FILE]
    assert not large, f"above {LARGEST_FILE:,} bytes: {', '.join(large)}"


def lower() -> None:
    """Write what is there as the limits, and print what is above budget."""
    found = sizes()
    LIMITS.write_text(json.dumps(found, indent=1) + "\n")
    print(*above_budget(found), sep="\n")


if __name__ == "__main__":
    lower()
