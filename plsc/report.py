"""The report of a run: report.html, a page that stands alone, without scripts, and its pictures.

curves.png and, of a verification, roc.png, det.png, histogram.png and worst_pairs.png, of an identification, cmc.png, of a
classification, confusion.png, with Global.profile steps.png lie beside the page, which has them inside. What a run cannot show (nothing logged, no pairs, no negatives) has no picture; the page says why. Try it:

    pytest tests/test_report.py --basetemp=/tmp/report    # then open a report.html below that folder
"""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plsc.atomic_write import replace_file
from plsc.figures import Picture, Result, WorstPair, draw
from plsc.log import number

__all__ = ["WorstPair", "write_report"]

CSS = """
:root { color-scheme: light dark;
  --ink: #1d2129; --faint: #5f6670; --line: #e3e6ea; --back: #ffffff; --card: #f6f7f9; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e6ea; --faint: #9aa1ab; --line: #33383f; --back: #16181c; --card: #1f2227; }
  figure img { filter: brightness(0.92); }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 960px; padding: 3rem 30px 4rem; background: var(--back); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 1.2rem; letter-spacing: -0.01em; }
h2 { font-size: 1.2rem; margin: 3rem 0 0.8rem; padding-top: 1.2rem; border-top: 1px solid var(--line); }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(200px, 1fr)); gap: 1rem 1.5rem;
  margin: 0; }
dl div:first-child { grid-column: 1 / -1; }
dl div:first-child dd { font-size: 2rem; font-weight: 600; line-height: 1.3; }
dt { color: var(--faint); font-size: 0.82rem; }
dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.45rem 1.2rem 0.45rem 0; vertical-align: top;
  border-bottom: 1px solid var(--line); }
th { font-weight: 500; color: var(--faint); }
.wide { overflow-x: auto; margin-bottom: 1.2rem; }
figure { margin: 0; }
figure img { display: block; width: 100%; background: #fff; border-radius: 6px; }
figcaption, .note { color: var(--faint); font-size: 0.9rem; margin: 0.7rem 0 0; max-width: 46rem; }
details { margin-top: 3rem; padding-top: 1.2rem; border-top: 1px solid var(--line); }
summary { cursor: pointer; font-size: 1.2rem; font-weight: 700; }
pre { background: var(--card); border-radius: 6px; padding: 1rem; overflow-x: auto;
  font-size: 0.82rem; line-height: 1.5; }
"""


def write_report(
    folder: str | Path,
    title: str,
    rows: Sequence[Mapping[str, Any]],
    results: Mapping[str, Result],
    worst: Mapping[str, Sequence[WorstPair]],
    config_yaml: str,
    summary: Mapping[str, Any],
) -> Path:
    """Write the pictures and report.html into `folder`; the page's path.

    rows: of metrics.jsonl. results (of plsc.evaluation) and worst: by the title of the set,
    the main one first. config_yaml: the resolved config. summary: the facts at the top of the page,
    name -> value with units in one of them; the first fact is set large.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pictures = draw(rows, results, worst)
    for picture in pictures:
        if picture.png is None:
            (folder / picture.file).unlink(missing_ok=True)  # an earlier report's would contradict the page
        else:
            replace_file(folder / picture.file, picture.png)
    page = folder / "report.html"
    replace_file(page, _page(title, results, pictures, config_yaml, summary).encode())
    return page


def _page(
    title: str,
    results: Mapping[str, Result],
    pictures: Sequence[Picture],
    config_yaml: str,
    summary: Mapping[str, Any],
) -> str:
    e = html.escape
    facts = "".join(
        f"<div><dt>{e(name)}</dt><dd>{e(_value(value))}</dd></div>" for name, value in summary.items()
    )
    parts = [f"<h1>{e(title)}</h1>", f"<dl>{facts}</dl>", "<h2>Evaluation</h2>", _results(results)]
    for picture in pictures:
        parts.append(f"<h2>{e(picture.heading)}</h2>")
        if picture.png is None:
            parts.append(f'<p class="note">{e(picture.text)}</p>')
        else:
            source = "data:image/png;base64," + base64.b64encode(picture.png).decode()
            caption = f"<figcaption>{e(picture.text)}</figcaption>"
            parts.append(f'<figure><img alt="{e(picture.heading)}" src="{source}">{caption}</figure>')
    parts.append(f"<details><summary>Resolved config</summary><pre>{e(config_yaml)}</pre></details>")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{e(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _results(results: Mapping[str, Result]) -> str:
    """A table for each kind, a line each number and a column each set, and what could not be computed."""
    if not results:
        return '<p class="note">No evaluation: the run had no set for it.</p>'
    kinds = dict.fromkeys(result.kind for result in results.values())
    tables = [_table({name: r for name, r in results.items() if r.kind == kind}) for kind in kinds]
    notes = [
        f'<p class="note">{html.escape(name)}: {html.escape(note)}</p>'
        for name, result in results.items()
        for note in result.notes
    ]
    return "".join([*tables, *notes])


def _table(results: Mapping[str, Result]) -> str:
    e = html.escape
    columns = {name: result.results() for name, result in results.items()}
    labels = dict.fromkeys(label for column in columns.values() for label in column)
    kind = next(iter(results.values())).kind
    head = f"<tr><th>{e(kind)}</th>" + "".join(f"<th>{e(name)}</th>" for name in columns) + "</tr>"
    body = "".join(
        f"<tr><th>{e(label)}</th>"
        + "".join(f"<td>{e(column.get(label, ''))}</td>" for column in columns.values())
        + "</tr>"
        for label in labels
    )
    return f'<div class="wide"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def _value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else number(value)
