"""The tests that a page names, "`tests/x.py::test_y[case]`": whether they are there, and run on every machine.

named("| 1 | ... | `tests/test_lock.py::test_a` |")  ->  [("tests/test_lock.py", "test_a", "")]
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from tests.structure import ROOT


def named(text: str) -> list[tuple[str, str, str]]:
    """(file, function, "[parameters]" or "") of each test that `text` names."""
    return re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)(\[[^`]*\])?`", text)


def rows(page: str, number: str) -> dict[str, list[tuple[str, str, str]]]:
    """First cell of each line of a table that matches `number` -> the tests that the line names."""
    return {match[1]: named(match[0]) for match in re.finditer(rf"^\| ({number}) \|.*$", page, re.MULTILINE)}


@lru_cache
def functions(file: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def assert_there_and_run(tests: list[tuple[str, str, str]]) -> None:
    for file, name, parameters in tests:
        assert name in functions(file), f"{file} has no {name}"
        marks = [ast.unparse(mark) for mark in functions(file)[name].decorator_list]
        assert not parameters or any("parametrize" in mark for mark in marks), f"{name} takes no parameters"
        assert all(mark.startswith(("pytest.mark.parametrize", "pytest.mark.slow")) for mark in marks), marks
        assert not re.search(r"pytest\.(skip|importorskip)", ast.unparse(functions(file)[name])), (
            f"{name} may be skipped"
        )
