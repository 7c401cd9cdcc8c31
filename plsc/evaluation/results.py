"""Write the results of an evaluation: the table, results.json, and the report with its pictures.

Rank 0 calls it once, after training or testing. results.json has every number of every set, under its title:

    json.load(open("output/test/results.json"))["sets"]["lfw"]["tar@far=0.001"]
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plsc.errors import shown
from plsc.evaluation.intervals import percent
from plsc.evaluation.report import tables_of, write_report
from plsc.evaluation.sets import EvalSet
from plsc.utils.atomic_write import replace_file
from plsc.utils.logging import say
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
    """Write the report and results.json into `folder`, and print its tables and the notes; return the page's
    path.

    Args:
        sets, results: by title, the main set first.
        rows, summary: see plsc.evaluation.report.write_report.
        facts: further content of results.json, such as the checkpoint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results = {title: results[title] for title in sets if title in results}
    numbers = {
        title: {"kind": result.kind, **result.numbers(), "notes": list(result.notes)}
        for title, result in results.items()
    }
    content = {"plsc": __version__, **facts, "sets": numbers}
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    title = shown(Path(summary.get("run", "plsc run")).resolve().name)
    large = headlines(results, rows, facts)
    page = write_report(folder, title, rows, results, sets, config_yaml, summary, large)
    # Last: the file is the sign of a finished run.
    replace_file(folder / "results.json", text.encode("utf-8", "backslashreplace"))
    for headings, *lines in tables_of(results):
        say(table(lines, headings))
    for title, result in results.items():
        for note in result.notes:
            say(f"{title}: {note}")
    return page


def headlines(
    results: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Format the main set's number at the best and at the last step, or of the tested checkpoint: label and
    value each."""
    if not results:
        return []
    main, result = next(iter(results.items()))
    step, best = facts.get("step"), facts.get("best")
    if "checkpoint" in facts or not best or best["step"] == step:
        which = "step" if "checkpoint" in facts or not best else "best and last step"
        return [(f"{which} {step}: {result.kind} on {main}", result.headline)]
    then = [row for row in rows if row.get("eval") == best["set"] and row["step"] == best["step"]]
    deviation = f" ± {100 * then[-1]['std']:.2f}" if then and then[-1].get("std") is not None else ""
    return [
        (
            f"best step {best['step']}: {result.kind} on {best['set']} (chosen on it)",
            f"{best['metric']} {percent(best['value'])}{deviation}",
        ),
        (f"last step {step}: {result.kind} on {main}", result.headline),
    ]
