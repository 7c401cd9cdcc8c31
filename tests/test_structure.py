"""The rules of structure.py on every source file.

A rule that fails names file, line and what to do. To allow an exception, change the table in structure.py: it is the
place where the next reader looks for it.
"""

import pytest

from tests import structure

SOURCES = structure.sources()


@pytest.mark.parametrize(
    "rule",
    [
        structure.layering,
        structure.collectives,
        structure.paddle_imports,
        structure.unsafe,
        structure.docstrings,
    ],
    ids=lambda rule: rule.__name__,
)
def test_the_sources_keep_the_rule(rule):
    assert len(SOURCES) > 30
    breaches = [line for path, text in SOURCES.items() for line in rule(path, text)]
    assert not breaches, "\n".join(breaches)


def test_the_tables_name_rooms_that_are_there():
    rooms = {structure.room(path) for path in SOURCES}
    for table in (*structure.FLOORS, structure.WITHOUT_PADDLE, structure.WITHOUT_RANKS):
        assert set(table.split()) <= rooms, table
    placed = " ".join(structure.FLOORS).split()
    assert len(placed) == len(set(placed)), "a room is on two floors"
    assert {f"plsc/{module}.py" for module in structure.ROOM_OF if module} <= SOURCES.keys()
