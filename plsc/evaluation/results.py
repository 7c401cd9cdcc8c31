"""Write the results of an evaluation: the table, results.json, and the report with its pictures.

Rank 0 calls it once, after training or testing. results.json has every number of every set, under its title:

    json.load(open("output/test/results.json"))["sets"]["lfw"]["tar@far=0.001"]
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from plsc.errors import UserError, reading, shown
from plsc.evaluation import Verification, worst_pairs
from plsc.evaluation.intervals import percent
from plsc.evaluation.report.html import WorstPair, tables_of, write_report
from plsc.evaluation.sets import EvalSet, VerificationSet
from plsc.utils.atomic_write import replace_file
from plsc.utils.files import parse_json, read_regular
from plsc.utils.logging import say
from plsc.utils.text import table as text_table
from plsc.utils.version import __version__

WORST_PAIRS, OF_FURTHER_SETS = 6, 3  # of each kind in the report: of the main set, of each other one


def write_results(
    folder: Path,
    sets: Mapping[str, EvalSet],
    results: Mapping[str, Any],
    rows: list[dict],
    config_yaml: str,
    summary: Mapping[str, Any],
    facts: Mapping[str, Any],
    compared: tuple[str, dict[str, dict[str, str]]] | None = None,
) -> Path:
    """Write the report and results.json into `folder`, print its tables and the notes -> the path of the
    page.

    Args:
        sets, results: by title, the main set first.
        rows: of metrics.jsonl.
        summary: of the report, see plsc.evaluation.report.html.write_report.
        facts: further content of results.json, such as the checkpoint.
        compared: another run, as `read_compared` gives it, for a second column in the tables.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results = {title: results[title] for title in sets if title in results}
    content = {"plsc": __version__, **facts, "sets": numbers_of(results)}
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    worst = {
        title: worst_of(result, sets[title], OF_FURTHER_SETS if place else WORST_PAIRS)
        for place, (title, result) in enumerate(results.items())
        if result.kind == "verification"
    }
    main = next(iter(results), None)
    page = write_report(
        folder,
        Path(summary.get("run", "plsc run")).resolve().name,
        rows,
        results,
        worst,
        config_yaml,
        summary,
        headlines=headlines(main, results, facts) if main else (),
        remarks=overfitting(rows, results[main]) if main else (),
        compared=compared,
    )
    # Last: plsc run takes this file as the sign of a finished run.
    replace_file(folder / "results.json", text.encode("utf-8", "backslashreplace"))
    for headings, *lines in tables_of(results, compared):
        say(text_table(lines, headings))
    for title, result in results.items():
        for note in result.notes:
            say(f"{title}: {note}")
    return page


def numbers_of(results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return every number of each set by its title, as plain values."""
    return {
        title: {
            "kind": result.kind,
            **result.numbers(),
            "notes": list(result.notes),
            "table": result.results(),
        }
        for title, result in results.items()
    }


_METRICS = {"accuracy": "accuracy", "rank1": "rank-1"}


def headlines(main: str, results: Mapping[str, Any], facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Format the main set's number at the best and at the last step, or of the tested checkpoint: label and
    value each."""
    result = results[main]
    key = result.metric
    value = result.row()[key]
    here = result.headline if value is None else f"{_METRICS[key]} {percent(value)}"
    step, best = facts.get("step"), facts.get("best")
    if "checkpoint" in facts or not best:
        return [(f"{result.kind} on {main}" + (f", step {step:,}" if step is not None else ""), here)]
    if best["step"] == step:
        return [(f"best and last step, {step:,}: {result.kind} on {main}", here)]
    there = f"{_METRICS.get(best['metric'], best['metric'])} {percent(best['value'])}"
    return [
        (f"best step, {best['step']:,}: {result.kind} on {best['set']} (chosen on it)", there),
        (f"last step, {step:,}: {result.kind} on {main}", here),
    ]


KNOWS_ALL = 0.99
LOW = 0.95
LAST_ROWS = 20


def overfitting(rows: list[dict], result: Any) -> list[str]:
    """Write a remark on a network that has learned its training images by heart; empty if it has not."""
    seen = [row["accuracy"] for row in rows if "eval" not in row and row.get("accuracy") is not None]
    value = result.row()[result.metric]
    if not seen or value is None or value > LOW:
        return []
    trained = sum(seen[-LAST_ROWS:]) / len(seen[-LAST_ROWS:])
    if trained < KNOWS_ALL:
        return []
    remark = (
        f"Overfitting: the network recognises {percent(trained)} of the images it trains on, but has "
        f"{_METRICS[result.metric]} {percent(value)} on others. More people, augmentation, dropout or a smaller network "
        "help; longer training does not."
    )
    return [remark]


def read_compared(path: str | os.PathLike, titles: Collection[str]) -> tuple[str, dict[str, dict[str, str]]]:
    """Read the name of another run, and its table of each set, by title, from its folder or results.json.

    titles: of this run's sets. UserError: there is no such file, an older plsc wrote it, it has none of these
    sets.
    """
    file = Path(path) / "results.json" if Path(path).is_dir() else Path(path)
    with reading(f"--compare: {file}", missing="no such file; name the folder of a finished run"):
        text = read_regular(file)
    content = parse_json(text, f"--compare: {file}", "name the results.json of a run")
    sets = content.get("sets") if isinstance(content, dict) else None
    if not isinstance(sets, dict):
        raise UserError(f"--compare: {shown(file)}: has no 'sets'; name the results.json of a run")
    tables = {title: numbers.get("table") for title, numbers in sets.items() if isinstance(numbers, dict)}
    if not all(_is_table(table) for table in tables.values()):
        raise UserError(
            f"--compare: {shown(file)}: has no tables, an older plsc wrote it; evaluate that run again"
        )
    if not tables.keys() & set(titles):
        raise UserError(
            f"--compare: {shown(file)}: has none of these sets, but {shown(', '.join(tables) or 'none')}; evaluate both on the same"
        )
    run = file.resolve().parent
    name = f"{run.parent.name}/{run.name}" if run.name == "test" else run.name
    return shown(name), tables


def _is_table(table: Any) -> bool:
    return isinstance(table, dict) and all(isinstance(text, str) for text in table.values())


def worst_of(result: Verification, pairs: VerificationSet, count: int = WORST_PAIRS) -> list[WorstPair]:
    """Collect the worst errors, `count` of each kind, with their pictures; of a template its first image."""
    indices = worst_pairs(result.similarity, result.same, result.threshold, count)
    return [
        WorstPair(
            kind, float(result.similarity[index]), *zip(*(_shown(pairs, int(i)) for i in pairs.pairs[index]))
        )
        for kind, chosen in zip(("false reject", "false accept"), indices)
        for index in chosen
    ]


def _shown(pairs: VerificationSet, index: int) -> tuple[Any, str]:
    """Return a picture of one side of a pair, uint8 [C, H, W] or None, and its name."""
    preprocessing = pairs.preprocessing
    drawable = preprocessing.is_image and preprocessing.shape[0] in (1, 3)
    image, name = pairs.side(index)
    return pairs.data.image(image) if drawable else None, name
