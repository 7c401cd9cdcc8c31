"""Tests of tools/config_page.py, which writes docs/config.md."""

from plsc.backbones.config import BACKBONES
from plsc.data.config import DATASETS
from tests.helpers.sections import config_keys
from tools.config_page import PAGE, to_markdown


def test_the_page_is_what_the_script_writes():
    assert PAGE.read_text(encoding="utf-8") == to_markdown(), "run python tools/config_page.py"


def test_every_key_and_every_builtin_class_is_named():
    page = to_markdown()
    for key in config_keys():
        assert f"| `{key.rpartition('.')[2]}` |" in page, key
    for name in (*BACKBONES.builtin, *DATASETS.builtin):
        assert f"`{name}`" in page
    for name in DATASETS.builtin:
        assert f"\n### {name}\n" in page
