"""Write the report of a run: report.html, a self-contained page without scripts, and its pictures.

curves.png and, of a verification, roc.png, det.png, histogram.png, calibration.png and worst_pairs.png, of an
identification, cmc.png, of a classification, confusion.png, with Global.profile steps.png lie beside the page
and are embedded in it. There is no section for what a run does not have (nothing logged, no pairs, no
errors). The page's HTML is report.html.jinja, which escapes every value. Try it:

    pytest tests/evaluation/test_html.py --basetemp=/tmp/report    # then open a report.html below that folder
"""

from __future__ import annotations

import base64
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from plsc.errors import shown
from plsc.evaluation.calibration import cosine_with_interval
from plsc.evaluation.intervals import percent, with_interval
from plsc.evaluation.report.figures import Result, WorstPair, draw
from plsc.utils.atomic_write import replace_file
from plsc.utils.text import number

__all__ = ["WorstPair", "write_report"]

Rows = list[list[str]]


def write_report(
    folder: str | Path,
    title: str,
    rows: Sequence[Mapping[str, Any]],
    results: Mapping[str, Result],
    worst: Mapping[str, Sequence[WorstPair]],
    config_yaml: str,
    summary: Mapping[str, Any],
    headlines: Sequence[tuple[str, str]] = (),
    remarks: Sequence[str] = (),
    compared: tuple[str, Mapping[str, Mapping[str, str]]] | None = None,
) -> Path:
    """Write the pictures and report.html into `folder` -> the page's path.

    Args:
        rows: of metrics.jsonl.
        results, worst: of plsc.evaluation, by the title of the set, the main one first.
        config_yaml: the resolved config.
        summary: facts of the run, name -> value with units in one of them.
        headlines: label and value of the numbers in large type. remarks: highlighted sentences.
        compared: the name of another run, and the `results()` of its sets by title, for a second column each.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pictures = draw(rows, results, worst)
    for picture in pictures:
        if picture.png is None:
            (folder / picture.file).unlink(missing_ok=True)  # an earlier report's would contradict the page
        else:
            replace_file(folder / picture.file, picture.png)
    thresholds = _of_each(results, _thresholds)
    page = template(Path(__file__).with_name("report.html.jinja")).render(
        title=shown(title),
        headlines=headlines,
        remarks=remarks,
        facts=[(name, _value(value)) for name, value in summary.items()],
        evaluations=tables_of(results, compared),
        notes=[f"{name}: {note}" for name, result in results.items() for note in _notes(result)],
        thresholds=thresholds,
        unbounded=any("or more" in row[1] for rows in thresholds for row in rows),
        hardest=_of_each(results, _hardest),
        pictures=[picture for picture in pictures if picture.png],
        config_yaml=config_yaml,
    )
    replace_file(folder / "report.html", page.encode("utf-8", "backslashreplace"))
    return folder / "report.html"


@functools.cache
def template(path: Path) -> jinja2.Template:
    """Load a template, which may include those of this folder; it escapes every value."""
    loader = jinja2.FileSystemLoader([path.parent, Path(__file__).parent])
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters["breakable"] = _breakable
    environment.filters["base64"] = lambda content: base64.b64encode(content).decode()
    return environment.get_template(path.name)


def _breakable(text: str) -> markupsafe.Markup:
    """Escape text and allow line breaks after its slashes."""
    return markupsafe.Markup("/<wbr>").join(text.split("/"))


def tables_of(
    results: Mapping[str, Result], compared: tuple[str, Mapping[str, Mapping[str, str]]] | None = None
) -> list[Rows]:
    """Make a table for each kind: a line for each number, a column for each set, and beside it the other
    run's."""
    tables = []
    for kind in dict.fromkeys(result.kind for result in results.values()):
        columns = {}
        for name, result in results.items():
            if result.kind != kind:
                continue
            columns[name] = result.results()
            if compared and name in compared[1]:
                columns[f"{name}, {compared[0]}"] = compared[1][name]
        labels = dict.fromkeys(label for column in columns.values() for label in column)
        lines = [[label, *(column.get(label, "-") for column in columns.values())] for label in labels]
        tables.append([[kind, *columns], *lines])
    return tables


def _of_each(results: Mapping[str, Result], rows_of: Any) -> list[Rows]:
    tables = (rows_of(name, result) for name, result in results.items() if result.kind == "verification")
    return [rows for rows in tables if len(rows) > 1]


def _thresholds(name: str, result: Any) -> Rows:
    lines = [
        [f"at most {point.far:g}", cosine_with_interval(point), with_interval(tar, interval)]
        for point, tar, interval in result.operating_points()
    ]
    if lines and result.threshold is not None:
        accepted = result.similarity > result.threshold
        far, tar = accepted[~result.same].mean(), accepted[result.same].mean()
        lines.insert(0, [f"{far:.4g}, with the fewest errors", f"{result.threshold:.4f}", percent(tar)])
    return [[f"FAR on {name}", "threshold (cosine, 95 % confidence)", "TAR (95 % confidence)"], *lines]


def _hardest(name: str, result: Any) -> Rows:
    here = os.path.join(os.getcwd(), "")
    lines = [
        [shown(who.removeprefix(here)), f"{rejects:,} of {same:,}", f"{accepts:,} of {different:,}"]
        for who, rejects, same, accepts, different in result.hardest()
    ]
    return [[name, "same pairs rejected", "different pairs accepted"], *lines]


def _notes(result: Any) -> list[str]:
    if result.kind != "verification" or result.threshold is None or result.roc is None:
        return list(result.notes)
    right = (result.similarity > result.threshold) == result.same
    none_wrong = "No pair is on the wrong side of the threshold; the interval says how far to trust it."
    return [*result.notes, *([none_wrong] if right.all() else [])]


def _value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else number(value)
