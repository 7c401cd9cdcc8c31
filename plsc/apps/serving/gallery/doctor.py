"""Write what plsc gallery doctor has found: a page with the pictures, and a list that plsc gallery remove
--list applies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from plsc.apps.serving.gallery.quality import Finding, Pictures, Review, describe, is_refused
from plsc.data.images import decode_pixels, read_file, to_sample
from plsc.data.preprocessing import Preprocessing
from plsc.errors import UserError, reading, shown
from plsc.evaluation.report import template
from plsc.utils.atomic_write import replace_file
from plsc.utils.files import read_regular
from plsc.utils.text import counted

LIST, PAGE = "doctor.tsv", "doctor.html"
_SHOWN = 100  # findings of a rule that the page has pictures of
_PER_PERSON = 4
_TITLE = "# plsc gallery doctor 1"


def write_list(path: Path, findings: Sequence[Finding], pictures: Pictures, review: Review) -> None:
    """Write the list that `plsc gallery remove --list` applies; what the review does not refuse stands behind
    a #."""
    lines = [_TITLE, f"# of {counted(len(pictures.files), 'picture')}; remove, name, file, rule, value"]
    for finding in findings:
        person, file = pictures.names[pictures.owners[finding.picture]], pictures.files[finding.picture]
        fields = ("remove", shown(person), shown(file), finding.rule, shown(finding.value))
        lines.append(("" if is_refused(finding, review) else "# ") + "\t".join(fields))
    replace_file(path, "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))


def read_list(path: Path) -> list[tuple[int, str, str]]:
    """Read a list: the line, name and file of each picture to remove, as `shown` writes them. UserError for
    anything else."""
    with reading(path, missing="no such list; plsc gallery doctor writes one"):
        lines = read_regular(path).decode("utf-8-sig", "replace").splitlines()
    if lines[:1] != [_TITLE]:
        raise UserError(f"{shown(path)}: is no list of plsc gallery doctor, which begins with '{_TITLE}'")
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.split("\t")
        if fields[0] != "remove" or len(fields) < 3:
            raise UserError(
                f"{shown(path)}:{number}: must be remove, a name and a file, with TABs between, got '{shown(line[:80])}'"
            )
        found.append((number, fields[1], fields[2]))
    return found


def as_json(findings: Sequence[Finding], pictures: Pictures) -> list[dict[str, Any]]:
    """Return the findings as plain values."""
    return [
        {
            "name": pictures.names[pictures.owners[finding.picture]],
            "file": pictures.files[finding.picture],
            "rule": finding.rule,
            "value": finding.value,
            "remedy": finding.remedy,
            "sure": finding.sure,
        }
        for finding in findings
    ]


def write_page(
    path: Path,
    title: str,
    findings: Sequence[Finding],
    pictures: Pictures,
    preprocessing: Preprocessing,
    notes: Sequence[str],
) -> None:
    """Write the page with the pictures; doctor.html.jinja escapes every value."""
    found = {finding.picture for finding in findings}
    members: dict[int, list[int]] = {}
    for number, owner in enumerate(pictures.owners.tolist()):
        if number not in found:
            members.setdefault(owner, []).append(number)

    def strip(numbers: Sequence[int], text: str) -> tuple[bytes | None, str]:
        return _strip([pictures.files[number] for number in numbers], preprocessing), text

    def case(finding: Finding) -> tuple[str, list[tuple[bytes | None, str]]]:
        owner = int(pictures.owners[finding.picture])
        strips = [strip([finding.picture], shown(pictures.files[finding.picture]))]
        strips += [
            strip(members[person][:_PER_PERSON], shown(pictures.names[person]))
            for person in dict.fromkeys((owner, finding.other))
            if person in members
        ]
        return describe(finding, pictures), strips

    rules = dict.fromkeys(finding.rule for finding in sorted(findings, key=lambda finding: not finding.sure))
    sections = [
        (rule, len(of_rule), [case(finding) for finding in of_rule[:_SHOWN]])
        for rule in rules
        if (of_rule := [finding for finding in findings if finding.rule == rule])
    ]
    page = template(Path(__file__).with_name("doctor.html.jinja")).render(
        title=title,
        facts=[
            ("pictures", f"{len(pictures.files):,}"),
            ("people", f"{len(pictures.names):,}"),
            ("surely wrong", f"{sum(finding.sure for finding in findings):,}"),
            ("doubtful", f"{sum(not finding.sure for finding in findings):,}"),
        ],
        notes=notes,
        sections=sections,
        shown=_SHOWN,
    )
    replace_file(path, page.encode("utf-8", "backslashreplace"))


def _strip(files: Sequence[str], preprocessing: Preprocessing) -> bytes | None:
    """Encode pictures as the network sees them, beside each other, as a PNG; None: none of them can be
    read."""
    rows = []
    for file in files:
        try:
            pixels = decode_pixels(read_file(file), preprocessing.channels == "grey", lambda: shown(file))  # noqa: B023
        except UserError:
            continue
        sample = np.moveaxis(to_sample(pixels, preprocessing), 0, -1)
        rows.append(sample[..., ::-1] if preprocessing.channels == "RGB" else sample)
    return cv2.imencode(".png", np.concatenate(rows, axis=1))[1].tobytes() if rows else None
