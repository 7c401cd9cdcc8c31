"""Print the page docs/config.md from the texts, types and bounds of a config's sections.

python tools/config_page.py > docs/config.md
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

from plsc.config import load
from plsc.utils.messages import describe, item_of, keys_of
from plsc.utils.section import Plug, Section, listed
from plsc.utils.yaml_lines import KeyPath, dump

_PAGE = """# The config

<!-- Made by `python tools/config_page.py > docs/config.md` from the texts of the sections -->

A config is a YAML file that states only what differs from the defaults below.

    plsc train -c configs/default.yaml -o Global.epochs=2 -o Head.margin=0.3

- `-c` takes a file, or a folder, which means its `default.yaml`, or that of a run its `config.yaml`. `-o Section.key=value` wins over the
  file; the value is YAML: `5e-4` is a number, `[4, 8]` a list, `null` nothing. `-o "Section={...}"` replaces a
  whole section.
- A run is where its `config.yaml` lies, also after it was moved or copied: there `Global.output_dir` is the file's folder, whatever
  the file says. Paths of data are relative to the current folder.
- Numbers must be written as numbers and text as text: nothing is converted, except that an integer may stand
  where a number is wanted. `true` and `false` are the only booleans.
- Unknown keys, wrong types and impossible combinations stop the start; all of them are shown at once, with
  file and line. `--dry-run` prints the resolved config with the source of each value.
- An empty section means its defaults. A key that says "Only with" is refused beside other names, unless the
  name came by `-o`: then the file's key falls away. Likewise `-o Global.max_steps=100` replaces `epochs`.
"""


def to_markdown() -> str:
    """Write the page docs/config.md."""
    return _PAGE + "".join(_chapter(load(), ()))


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
    """Return the defaults of a section that is null or in a list by default; None for other keys, and for data
    sets, whose keys are those of the main one."""
    kinds = [kind for kind in typing.get_args(annotation) if keys_of(kind) and not issubclass(kind, Plug)]
    return kinds[0].model_construct() if kinds else None


def _item_chapter(item: type[Section], path: KeyPath, single: type[Section]) -> Iterator[str]:
    """Write the chapter of the items of a list that may stand for the section `single`: their further keys."""
    yield f"\n## {'.'.join(path)}, a list\n\n{_one_line(item.__doc__)}\n"
    yield "\n| key | type | default | what it does |\n|---|---|---|---|\n"
    for key, field in item.model_fields.items():
        if key not in single.model_fields:
            rule = describe(field.annotation, field.metadata)
            yield f"| `{key}` | {rule} | `{dump(field.default)}` | {_one_line(field.description)} |\n"


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    print(to_markdown(), end="")
