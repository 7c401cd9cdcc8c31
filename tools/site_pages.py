"""Add the pages of the repository's root to the site of mkdocs.yml: README.md as its first page, and the
others.

mkdocs reads docs/ only. Links of these pages into docs/ are changed to where the pages are in the site, and
headings get the anchors that they have on GitHub, so the same files are right in both places. The page of the
config goes on with all keys.
"""

import re
from pathlib import Path

from config_page import to_markdown
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
PAGES = {path.name: path for path in [*ROOT.glob("*.md"), ROOT / "LICENSE"]}
PAGES["index.md"] = PAGES.pop("README.md")


def slugify(heading, separator):
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def on_config(config):
    """Make anchors as GitHub does."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify
    return config


def on_files(files, config):
    """Add the pages of the root."""
    for name, path in PAGES.items():
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, **_):
    """Change the links of the root's pages, and add all keys to the page of the config."""
    if page.file.src_uri == "config.md":
        return markdown + re.sub(r"docs/([\w/]+)\.md(#\w+)?", r"[\1](\1.md\2)", to_markdown())
    if page.file.src_uri not in PAGES:
        return markdown
    return markdown.replace("](docs/", "](").replace("](README.md", "](index.md")
