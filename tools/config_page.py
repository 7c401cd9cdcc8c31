"""Write docs/config.md: an introduction and the list of all keys.

The list is made from the texts, types and bounds in the config's sections. Try it:

python tools/config_page.py
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from plsc.config import Config
from plsc.data.config import DATASETS
from plsc.data.images import EncodedImages, EncodedPairs
from plsc.utils.section import ClassSection, Section, names_of, sections_in

PAGE = Path(__file__).resolve().parents[1] / "docs" / "config.md"

_WORDS = {"object": "mapping of keys", "array": "list", "string": "text", "boolean": "true or false"}
_BOUNDS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}

INTRODUCTION = """\
# The config

A config is a YAML file. It contains only what differs from the defaults:

```yaml
# faces.yaml
Global: {epochs: 20, output_dir: output/faces}
Head: {margin: 0.3}
DataLoader:
  Train: {dataset: {name: ImageFolder, folder: faces}, batch_size: 64}
```

    plsc train -c faces.yaml
    plsc train -c faces.yaml -o Global.epochs=2 Head.margin=0.4
    # prints the whole config and the plan, and trains nothing
    plsc train -c faces.yaml --dry-run

- `-c` takes a file, a folder with a `default.yaml`, or the folder of a run. Without `-c` all keys have their
  defaults.
- The folder of a run is the one that contains its `config.yaml`, also after a move or a copy. Paths of data
  are relative to the current folder.
- `-o Section.key=value` overrides the file. The value is YAML: `5e-4` is a number, `[4, 8]` a list, `null`
  no value.
- `-o "Section={...}"` replaces a whole section.
- Unknown keys, wrong types and keys that the chosen `name` does not have are refused with exit code 2. All
  mistakes are shown at once, each with file and line. Missing files are among them. Mistakes that only the
  data show, such as a batch larger than the training set, are shown together, too.
- Nothing is converted: write a number as a number and text as text. An integer is accepted as a number.

## All keys

`python tools/config_page.py` generates this list from the code.
"""


def to_markdown() -> str:
    """Return the page, with the introduction, a chapter for each section, and a chapter for each data set."""
    return "".join([INTRODUCTION, *_chapters([Config], ""), *_dataset_chapters()])


def _chapters(kinds: list[type[Section]], path: str) -> Iterator[str]:
    """Yield the chapters for a section and its subsections.

    Args:
        kinds: the section's class. There are several if the section's `name` chooses one.
        path: keys that lead to the section, such as "DataLoader.Train".
    """
    bases = (base for kind in kinds for base in reversed(kind.__mro__) if issubclass(base, Section))
    own = [cls for cls in dict.fromkeys(bases) if cls not in (Section, ClassSection)]
    for number, section in enumerate(own):
        table = [*_table(section)]
        if number == 0 and path:
            yield f"\n## {path}\n\n{_one_line(section.__doc__)}\n"
        elif table and path:
            names = names_of(kind for kind in kinds if issubclass(kind, section))
            chosen = ", ".join(f"`{name}`" for name in names) or "`package.module:Class`"
            yield f"\n{_one_line(section.__doc__)} `{path}.name` is one of {chosen}:\n"
        yield from table
    for key, field in kinds[0].model_fields.items():
        below = sections_in(field.annotation)
        if below and f"{path}.{key}" != "Optimizer.head":  # its keys are Optimizer's
            yield from _chapters(below, f"{path}.{key}".lstrip("."))


def _table(section: type[Section]) -> Iterator[str]:
    """Yield the lines for a table of the keys that this class of section adds."""
    own = vars(section).get("__annotations__", {})
    fields = {key: field for key, field in section.model_fields.items() if key in own and field.description}
    if fields:
        yield "\n| key | type | default | what it does |\n|---|---|---|---|\n"
    for key, field in fields.items():
        rule = _type(section.model_json_schema(mode="validation")["properties"][key])
        yield f"| `{key}` | {rule} | {_default(field)} | {_one_line(field.description)} |\n"


def _type(schema: dict[str, Any]) -> str:
    """Describe a key's JSON schema in words, such as "integer >= 1 or null"."""
    if "anyOf" in schema or "oneOf" in schema:
        return " or ".join(dict.fromkeys(map(_type, schema.get("anyOf") or schema["oneOf"])))
    if "enum" in schema or "const" in schema:
        return "one of " + ", ".join(map(str, schema.get("enum") or [schema["const"]]))
    words = _WORDS.get(schema.get("type", "object"), schema.get("type"))
    if "items" in schema:
        words += f", each {_type(schema['items'])}"
    bounds = (f"{sign} {schema[key]}" for key, sign in _BOUNDS.items() if key in schema)
    return f"{words} {' and '.join(bounds)}".rstrip()


def _default(field: FieldInfo) -> str:
    """Format a key's default."""
    if field.is_required():
        return "required"
    default = to_jsonable_python(field.default)
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _dataset_chapters() -> Iterator[str]:
    """Yield the docstrings of the data sets, and of the classes whose keys several data sets share."""
    yield "\n## Data sets\n"
    for cls in (*map(DATASETS.get, DATASETS.builtin), EncodedImages, EncodedPairs):
        yield f"\n### {cls.__name__}\n\n{inspect.getdoc(cls)}\n"


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    PAGE.write_text(to_markdown(), encoding="utf-8")
