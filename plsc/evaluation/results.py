"""Write an evaluation's results: the tables, results.json, and the report with its pictures.

Rank 0 calls `write_results` once, after training or in `plsc eval`. results.json contains every set's
numbers by the set's title:

    json.load(open("output/test/results.json"))["sets"]["lfw"]["tar@far=0.001"]
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plsc.errors import escape
from plsc.evaluation import report
from plsc.evaluation.intervals import percent
from plsc.evaluation.sets import EvalSet
from plsc.utils.atomic_write import replace_file
from plsc.utils.logging import print_lines
from plsc.utils.text import table
from plsc.utils.version import __version__


def write_results(
    folder: Path,
    sets: Mapping[str, EvalSet],
    results: Mapping[str, Any],
    rows: Sequence[dict],
    config_yaml: str,
    summary: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> Path:
    """Write the report and results.json into `folder`, and print the tables and the notes.

    Args:
        folder: where to write. It exists already.
        sets, results: the evaluation sets and their results, by title. The main set comes first.
        rows: the rows in metrics.jsonl.
        config_yaml: the resolved config, for the report.
        summary: facts about the run, for the report.
        facts: further content for results.json, such as the checkpoint.

    Returns the report's path.
    """
    results = {title: results[title] for title in sets if title in results}
    pairs = {title: result for title, result in results.items() if result.kind == "verification"}
    tables = tables_of(results)
    notes = [f"{title}: {note}" for title, result in results.items() for note in result.notes]
    page = folder / "report.html"
    text = report.render(
        title=escape(Path(summary.get("run", "plsc run")).resolve().name),
        headlines=headlines(results, facts),
        facts=summary.items(),
        tables=tables,
        notes=notes,
        pictures=report.draw(rows, pairs),
        worst={title: report.worst_of(result, sets[title]) for title, result in pairs.items()},
        config_yaml=config_yaml,
    )
    replace_file(page, text.encode("utf-8", "backslashreplace"))
    numbers = {
        title: {"kind": result.kind, **result.numbers(), "notes": list(result.notes)}
        for title, result in results.items()
    }
    content = {"plsc": __version__, **facts, "sets": numbers}
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    # results.json is written last, because it marks a run as finished.
    replace_file(folder / "results.json", text.encode("utf-8", "backslashreplace"))
    for headings, *lines in tables:
        print_lines(table(lines, headings))
    for note in notes:
        print_lines(note)
    return page


def tables_of(results: Mapping[str, Any]) -> list[list[list[str]]]:
    """Make a table for each kind of result.

    Each set has a column. A table has the headings first, and then a line for each number.
    """
    tables = []
    for kind in dict.fromkeys(result.kind for result in results.values()):
        columns = {name: result.results() for name, result in results.items() if result.kind == kind}
        labels = dict.fromkeys(label for column in columns.values() for label in column)
        lines = [[label, *(column.get(label, "-") for column in columns.values())] for label in labels]
        tables.append([[kind, *columns], *lines])
    return tables


def headlines(results: Mapping[str, Any], facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Format the main set's number, and the best step's number if it is another step.

    Args:
        results: results by title. The main set comes first.
        facts: results.json's content with "step", and with "best" if there is a best step.

    Returns (label, value) pairs.
    """
    if not results:
        return []
    main, result = next(iter(results.items()))
    lines = [(f"step {facts['step']}: {result.kind} on {main}", result.headline)]
    best = facts.get("best")
    if best and best["step"] != facts["step"]:
        label = f"best step {best['step']}: {result.kind} on {best['set']} (chosen on it)"
        lines.insert(0, (label, f"{best['metric']} {percent(best['value'])}"))
    return lines
