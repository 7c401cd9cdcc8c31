"""What an evaluation leaves for people and programs: the table, results.json, the report with its pictures.

Rank 0 calls it once, after training or testing. results.json has every number of every set, under its title:

    json.load(open("output/test/results.json"))["sets"]["lfw"]["tar@far=0.001"]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import plsc
from plsc import log
from plsc.atomic_write import replace_file
from plsc.data.dataset import PairSet, TemplatePairs
from plsc.evaluation import Verification, worst_pairs
from plsc.report import WorstPair, write_report

WORST_PAIRS, OF_FURTHER_SETS = 6, 3  # of each kind in the report: of the main set, of each other one


def write_results(
    folder: Path,
    sets: Mapping[str, Any],
    results: Mapping[str, Any],
    rows: list[dict],
    config_yaml: str,
    summary: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> Path:
    """Write the report and results.json into `folder`, print the table and what could not be computed; the path of the page.

    Args:
        sets, results: by title, the main set first.
        rows: of metrics.jsonl.
        summary: of the report, see plsc.report.write_report.
        facts: what results.json says besides the numbers: which checkpoint, which mode.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results = {title: results[title] for title in sets if title in results}
    numbers = {
        title: {"kind": found.kind, **found.numbers(), "notes": list(found.notes)}
        for title, found in results.items()
    }
    content = {"plsc": plsc.__version__, **facts, "sets": numbers}
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    worst = {
        title: worst_of(found, sets[title], OF_FURTHER_SETS if place else WORST_PAIRS)
        for place, (title, found) in enumerate(results.items())
        if isinstance(found, Verification)
    }
    page = write_report(folder, "plsc run", rows, results, worst, config_yaml, summary)
    # Last: plsc-run takes it for the mark of a finished run, and would train a run without report from the beginning.
    replace_file(folder / "results.json", text.encode())
    for kind in dict.fromkeys(found.kind for found in results.values()):
        print(table({title: found for title, found in results.items() if found.kind == kind}))
    for title, found in results.items():
        for note in found.notes:
            print(f"{title}: {note}")
    return page


def table(results: Mapping[str, Any]) -> str:
    """Results of one kind as text, a column a set."""
    columns = [found.results() for found in results.values()]
    labels = dict.fromkeys(label for column in columns for label in column)
    kind = next(iter(results.values())).kind
    return log.table([[label, *(c.get(label) for c in columns)] for label in labels], [kind, *results])


def worst_of(found: Verification, pairs: PairSet, count: int = WORST_PAIRS) -> list[WorstPair]:
    """The worst errors, `count` of each kind, with their pictures; of a template, its first image."""
    indices = worst_pairs(found.similarity, found.same, found.threshold, count)
    return [
        WorstPair(
            kind, float(found.similarity[index]), *zip(*(_shown(pairs, int(i)) for i in pairs.pairs[index]))
        )
        for kind, chosen in zip(("false reject", "false accept"), indices)
        for index in chosen
    ]


def _shown(pairs: PairSet, index: int) -> tuple[Any, str]:
    """A picture of one side of a pair, uint8 [C, H, W], and its name."""
    if not isinstance(pairs, TemplatePairs):
        return pairs.image(index), pairs.image_name(index)
    images = (pairs.template == index).nonzero()[0]
    first = int(images[0])
    return pairs.image(first), f"template {index} ({len(images)} images): {pairs.image_name(first)}"
