"""docs/errors.md against the code: the words of each message that it quotes are in a string of the source, or
Python's own."""

import ast
import re
from functools import lru_cache

from tests.helpers.launch import ROOT

PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
OF_PYTHON = "ModuleNotFoundError: "


@lru_cache
def texts():
    """The strings of the source, with … for what an f-string fills in."""
    found = []
    for path in (ROOT / "plsc").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                found.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def missing_words(message):
    """The pieces of a message, which … separates, that no string of the source has."""
    said = re.sub(r"^(?:ERROR|WARNING|INFO|[\w.]+Error:) ", "", message)
    pieces = [piece.strip(" :;,'") for piece in said.split("…")]
    return [piece for piece in pieces if not any(piece in text for text in texts())]


def quoted():
    first_cells = re.findall(r"^\| (`.*?`(?:, `.*?`)*) \|", PAGE, re.MULTILINE)
    return [message for cell in first_cells for message in re.findall(r"`([^`]+)`", cell)]


def test_each_message_is_in_the_source():
    ours = [message for message in quoted() if not message.startswith((OF_PYTHON, "No module named"))]
    assert len(ours) > 30
    assert {message: missing_words(message) for message in ours if missing_words(message)} == {}


def test_other_words_are_noticed():
    assert missing_words("ERROR …: no such config file") == []
    assert missing_words("ERROR …: no such configuration …") == ["no such configuration"]
