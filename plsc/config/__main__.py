"""Print the page docs/config.md: `python -m plsc.config > docs/config.md`."""

from plsc.config import to_markdown

print(to_markdown(), end="")
