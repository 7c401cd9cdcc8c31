"""Write docs/config.md: an introduction, and all keys from the texts, types and bounds of their sections.

python tools/config_page.py
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plsc.config import load
from plsc.data.image_list import ImageFiles
from plsc.data.images import EncodedImages, EncodedPairs
from plsc.data.remote_shards import Cache
from plsc.utils.messages import describe, item_of, keys_of
from plsc.utils.registry import DATASETS
from plsc.utils.section import Plug, Section, listed
from plsc.utils.yaml_lines import KeyPath, dump

PAGE = Path(__file__).resolve().parents[1] / "docs" / "config.md"

INTRODUCTION = """\
# The config

A config is a YAML file. It has only what differs from the defaults:

```yaml
# faces.yaml
Global: {epochs: 20, output_dir: output/faces}
Head: {margin: 0.3}
DataLoader:
  Train: {dataset: {name: ImageFolder, folder: faces}, batch_size: 64}
```

    plsc train -c faces.yaml
    plsc train -c faces.yaml -o Global.epochs=2 Head.margin=0.4
    plsc train -c faces.yaml --dry-run

- `--dry-run` prints the config with the source of each value, and trains nothing.
- `-c` takes a file, a folder with a `default.yaml`, or the folder of a run. Without it all keys have their
  defaults.
- A run is where its `config.yaml` lies, also after a move. Paths of data start in the current folder.
- `-o Section.key=value` wins over the file. The value is YAML: `5e-4` is a number, `[4, 8]` a list.
- `-o "Section={...}"` replaces a whole section.
- Unknown keys, wrong types and keys that exclude each other stop the start with exit code 2. All mistakes are
  shown at once, each with file and line.
- Nothing is converted: a number is written as a number, text as text. An integer may stand for a number.

## All keys

Made from the code by `python tools/config_page.py`.
"""


def to_markdown() -> str:
    """Return the page: the introduction, a chapter for each section, and one for each data set."""
    return "".join([INTRODUCTION, *_chapter(load(), ()), *_dataset_chapters()])


def _chapter(section: Section, path: KeyPath) -> Iterator[str]:
    if path:
        yield f"\n## {'.'.join(path)}\n\n{_one_line(type(section).__doc__)}\n"
    fields = type(section).model_fields
    values = [key for key in fields if not isinstance(getattr(section, key, None), Section)]
    if values:
        yield "\n| key | type | default | what it does |\n|---|---|---|---|\n"
    for key in values:
        field = fields[key]
        only = f" Only with {listed(section.only_with[key])}." if key in section.only_with else ""
        rule = describe(field.annotation, field.metadata)
        default = "required" if field.is_required() else f"`{dump(getattr(section, key))}`"
        yield f"| `{key}` | {rule} | {default} | {_one_line(field.description)}{only} |\n"
    for key, field in fields.items():
        below = _documented(field.annotation) if key in values else getattr(section, key)
        if below:
            yield from _chapter(below, (*path, key))
        if key not in values and (item := item_of(field.annotation)):
            yield from _item_chapter(item, (*path, key), type(below))


def _documented(annotation: Any) -> Section | None:
    """Return the defaults of a section that is null or in a list by default; None for other keys, and for
    data sets, whose keys are those of the main one."""
    kinds = [kind for kind in typing.get_args(annotation) if keys_of(kind) and not issubclass(kind, Plug)]
    return kinds[0].model_construct() if kinds else None


def _item_chapter(item: type[Section], path: KeyPath, single: type[Section]) -> Iterator[str]:
    """Write the chapter of the items of a list that may stand for the section `single`: their further
    keys."""
    yield f"\n## {'.'.join(path)}, a list\n\n{_one_line(item.__doc__)}\n"
    yield "\n| key | type | default | what it does |\n|---|---|---|---|\n"
    for key, field in item.model_fields.items():
        if key not in single.model_fields:
            rule = describe(field.annotation, field.metadata)
            yield f"| `{key}` | {rule} | `{dump(field.default)}` | {_one_line(field.description)} |\n"


def _dataset_chapters() -> Iterator[str]:
    """Write the docstrings of the data sets, and of the classes whose keys several of them have."""
    yield "\n## Data sets\n"
    for cls in (*map(DATASETS.get, DATASETS.builtin), ImageFiles, EncodedImages, EncodedPairs, Cache):
        yield f"\n### {cls.__name__}\n\n{inspect.getdoc(cls)}\n"


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    PAGE.write_text(to_markdown(), encoding="utf-8")
