"""Tests of docs/config.md, the page of all keys."""

from plsc.utils.messages import keys_of
from plsc.utils.registry import BACKBONES, DATASETS
from plsc.utils.section import Section
from tests.helpers.launch import ROOT
from tools.config_page import to_markdown


def sections_below(cls):
    """Yield the sections of plsc that derive from a class."""
    for below in cls.__subclasses__():
        yield from sections_below(below)
        if below.__module__.startswith("plsc.") and below.__name__.endswith("Cfg"):
            yield below


def test_docs_are_fresh():
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    assert page == to_markdown(), "run: python tools/config_page.py > docs/config.md"


def test_docs_name_every_key_and_every_builtin_class():
    page = to_markdown()
    sections = set(sections_below(Section))
    assert len(sections) >= 20
    for section in sections:
        for key, field in section.model_fields.items():
            if not keys_of(field.annotation) and key != "dataset":  # a section's text is its docstring
                assert field.description, (section, key)
                assert f"| `{key}` |" in page
    for name in (*BACKBONES.builtin, *DATASETS.builtin):
        assert f"`{name}`" in page
