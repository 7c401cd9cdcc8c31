"""Write what stands beside the graphs in a folder: preprocessing.json and README.txt."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plsc.apps.export.readme import readme_text
from plsc.utils.files import sha256_of


@dataclass(frozen=True)
class Description:
    """Describes a network for those who run its graph.

    card: see make_card.
    """

    card: dict
    preprocessing: Any

    def write(self, folder: Path, files: dict[str, dict], checks: list[dict]) -> dict:
        """Write the files to `folder`; return the content of preprocessing.json.

        Args:
            files: format -> names of its files, input and output.
            checks: comparisons with the training graph.
        """
        sha256 = {name: sha256_of(folder / name) for names in files.values() for name in names["files"]}
        card = {**self.card, "files": files, "sha256": sha256, "checks": checks}
        (folder / "README.txt").write_text(readme_text(card), encoding="utf-8")
        (folder / "preprocessing.json").write_text(json.dumps(card, indent=1) + "\n")
        return card
