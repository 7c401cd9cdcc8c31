"""Tests of tools/config_page.py, which writes docs/config.md."""

from plsc.utils.messages import keys_of
from plsc.utils.registry import BACKBONES, DATASETS
from plsc.utils.section import Section
from tools.config_page import PAGE, to_markdown


def sections_below(cls):
    """Yield the sections of plsc that derive from a class."""
    for below in cls.__subclasses__():
        yield from sections_below(below)
        if below.__module__.startswith("plsc.") and below.__name__.endswith("Cfg"):
            yield below


def test_the_page_is_what_the_script_writes():
    assert PAGE.read_text(encoding="utf-8") == to_markdown(), "run python tools/config_page.py"


def test_every_key_and_every_builtin_class_is_named():
    page = to_markdown()
    sections = set(sections_below(Section))
    assert len(sections) >= 10
    for section in sections:
        for key, field in section.model_fields.items():
            if not keys_of(field.annotation) and key != "dataset":  # a section's text is its docstring
                assert field.description, (section, key)
                assert f"| `{key}` |" in page
    for name in (*BACKBONES.builtin, *DATASETS.builtin):
        assert f"`{name}`" in page
    for name in DATASETS.builtin:
        assert f"\n### {name}\n" in page
