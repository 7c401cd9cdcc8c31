"""README and docs against the disk and the code: the tree, links, paths, names, keys, messages; and the snippets are run."""

import ast
import importlib
import re

import pytest

from plsc.config import Config, load
from tests.launch import run_python
from tests.structure import ROOT, sources

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
}
README = PAGES["README.md"]


def blocks(page, *languages):
    """The texts of the fenced blocks in these languages."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return [text for language, text in found if language in languages]


# ---- the tree in the README


def tree(page):
    """Path -> role, from the block with a line for plsc/; two spaces a level, names of folders end with /."""
    (block,) = [block for block in blocks(page, "") if "\nplsc/" in block]
    roles, above = {}, []
    for line in block.splitlines():
        indent, name, role = re.fullmatch(r"( *)(\S+)(?: +(.*))?", line).groups()
        above = above[: len(indent) // 2]
        roles["".join([*above, name])] = role or ""
        above.append(name)
    return roles


def tree_differs(page):
    """What the tree lacks, and what it has too much."""
    roles = tree(page)
    there = {
        path.relative_to(ROOT).as_posix()
        for folder in ("plsc", "configs", "tools", "docs")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".yaml", ".md") and "__pycache__" not in path.parts
    }
    # The line of a package stands for its __init__.py too.
    there = {path for path in there if not re.fullmatch(r"plsc/.+/__init__\.py", path)}
    folders = {path.rpartition("/")[0] + "/" for path in there}
    folders |= {f"{path.parent.relative_to(ROOT).as_posix()}/" for path in ROOT.glob("tests/**/test_*.py")}
    found = [f"{path} is not in the tree" for path in sorted((there | folders) - roles.keys())]
    found += [f"{path} is in the tree only" for path in roles if not (ROOT / path).exists()]
    return found + [f"{path} has no role" for path, role in roles.items() if not role]


def test_the_tree_is_what_is_there():
    assert not tree_differs(README)


def test_a_tree_that_differs_is_found():
    changed = re.sub(r"\n  trainer\.py .*", "\n  coach.py", README)
    assert tree_differs(changed) == [
        "plsc/trainer.py is not in the tree",
        "plsc/coach.py is in the tree only",
        "plsc/coach.py has no role",
    ]


# ---- what the pages name


def dead_links(page, folder=ROOT):
    """Links to files that are not there, and to headings that the page they lead to does not have."""
    links = (link for link in re.findall(r"\]\(([^)\s]+)\)", page) if not re.match(r"https?://", link))
    return [link for link in links if not _leads_somewhere(page, folder, *link.partition("#")[::2])]


def _leads_somewhere(page, folder, file, heading):
    if not (folder / file).exists():
        return False
    return not heading or heading in anchors((folder / file).read_text(encoding="utf-8") if file else page)


def anchors(page):
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def dead_paths(page):
    """Paths of the project that are not there."""
    named = re.findall(r"(?<![\w./-])((?:plsc|tests|tools|configs|docs|\.ci)/[\w./-]*)", page)
    return [path for path in named if not (ROOT / path.rstrip(".")).exists()]


def dead_names(page):
    """Dotted names below plsc that cannot be imported or looked up."""
    return [name for name in re.findall(r"(?<![\w/.-])plsc(?:\.\w+)+", page) if not _resolves(name)]


def _resolves(name):
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            found = getattr(found, part, None)
        return found is not None
    return False


def dead_keys(page):
    """Section.key of no config. Keyword arguments of plugged classes (Model.width) are theirs, not ours."""
    named = re.findall(r"(?<![\w.])((?:[A-Z]\w+\.)+[a-z]\w*)", page)
    plugs = ("Model.", "DataLoader.Train.dataset.", "DataLoader.Eval.dataset.", "DataLoader.Eval.more.")
    ours = [key for key in named if key.split(".")[0] in Config.model_fields and not key.startswith(plugs)]
    return [key for key in ours if not _is_key(load(), *key.split("."))]


def _is_key(section, first, *rest):
    return first in type(section).model_fields and (not rest or _is_key(getattr(section, first), *rest))


@pytest.mark.parametrize("name", PAGES)
def test_what_a_page_names_is_there(name):
    page = PAGES[name]
    assert not dead_links(page, (ROOT / name).parent)
    assert not dead_paths(page)
    assert not dead_names(page)
    assert not dead_keys(page)


def test_what_is_not_there_is_found():
    page = "# One\n[a](docs/none.md) [b](#one) [c](#two) [d](https://x.y) [e](README.md#two-commands) [f](README.md#one)"
    assert dead_links(page) == ["docs/none.md", "#two", "README.md#one"]
    assert dead_paths("see plsc/nowhere.py, plsc/heads/, tools/train.py. And a/docs/x") == ["plsc/nowhere.py"]
    assert dead_names("plsc.heads.softmax:SoftmaxHead plsc.log.Progress.update plsc.log.nothing") == [
        "plsc.log.nothing"
    ]
    assert dead_keys("Head.margin Head.margn Model.width DataLoader.Train.batch_size Optimizer.moment") == [
        "Head.margn",
        "Optimizer.moment",
    ]


# ---- messages


def unsaid(page):
    """Quoted messages (table cells that begin with `ERROR) of which a fragment between two … stands in no source."""
    texts = [
        node.value
        for text in sources().values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    fragments = [
        fragment.strip()
        for message in re.findall(r"^\| `ERROR (.*?)` \|", page, re.MULTILINE)
        for fragment in message.split("…")
        if fragment.strip()
    ]
    assert fragments
    return [fragment for fragment in fragments if not any(fragment in text for text in texts)]


def test_the_messages_in_the_pages_are_those_of_the_code():
    for name in ("docs/quickstart.md", "docs/data.md"):
        assert not unsaid(PAGES[name])
    page = "| `ERROR …: no such config file` | x |\n| `ERROR the moon … fell into the sea` | x |"
    assert unsaid(page) == ["the moon", "fell into the sea"]


# ---- snippets


def snippets(page):
    """File name -> text of the python and yaml blocks whose first line is a comment with the name."""
    texts = (re.fullmatch(r"# (\S+)\n(.*)", text, re.DOTALL) for text in blocks(page, "python", "yaml"))
    return dict(found.groups() for found in texts if found)


@pytest.mark.slow
def test_the_snippets_of_the_extend_page_run(tmp_path):
    page = PAGES["docs/extend.md"]
    files = snippets(page)
    assert len(files) == len(re.findall(r"^```\w", page, re.MULTILINE)) >= 10, (
        "a block without a file name is not run"
    )
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for name in files:
        if name.endswith(".py"):
            run_python(name, cwd=tmp_path)
    for run in ("tiny", "object", "halved", "stripes"):
        assert list((tmp_path / "output" / run / "checkpoints").glob("step-*4")), run


def test_the_configs_in_the_pages_are_valid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, page in PAGES.items():
        for number, text in enumerate(blocks(page, "yaml")):
            if "my_nets" not in text:
                (tmp_path / "a.yaml").write_text(text)
                assert load("a.yaml"), f"{name}, block {number}"


def test_the_python_blocks_of_all_pages_are_python():
    texts = [text for page in PAGES.values() for text in blocks(page, "python")]
    assert texts and all(ast.parse(text) for text in texts)
