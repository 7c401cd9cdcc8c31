"""README and docs against the disk and the code: links, paths, names, keys, tests; and the snippets are
run."""

import ast
import importlib
import re

import pytest

from plsc.cli import VERBS
from plsc.config import Config, load
from tests.helpers.launch import ROOT, run_forked

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
}


def blocks(page, *languages):
    """The texts of the fenced blocks in these languages."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return [text for language, text in found if language in languages]


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
        except ImportError as error:
            if not (error.name or "plsc").startswith("plsc"):
                return True  # the module is there; an extra that it imports is not
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


def test_the_readme_links_every_page():
    linked = re.findall(r"\]\(([^)\s#]+\.md)\)", PAGES["README.md"])
    assert PAGES.keys() - {*linked} == {"README.md"}


def test_what_is_not_there_is_found():
    page = "# One\n[a](docs/none.md) [b](#one) [c](#two) [d](https://x.y) [e](README.md#two-commands)"
    page += " [f](README.md#one)"
    assert dead_links(page) == ["docs/none.md", "#two", "README.md#one"]
    assert dead_paths("see plsc/nowhere.py, plsc/heads/, tools/train.py. And a/docs/x") == ["plsc/nowhere.py"]
    assert dead_names(
        "plsc.heads.softmax:SoftmaxHead plsc.training.progress.Progress.update plsc.training.progress.nothing"
    ) == ["plsc.training.progress.nothing"]
    assert dead_keys("Head.margin Head.margn Model.width DataLoader.Train.batch_size Optimizer.moment") == [
        "Head.margn",
        "Optimizer.moment",
    ]
    page = "`plsc tarin` `plsc eval`\n\n    plsc train -c a.yaml --ranks 2 --rank"
    assert dead_commands(page, '"--ranks" ""') == ["tarin", "train --rank"]


def dead_commands(page, source):
    """Commands of plsc whose verb is not there, or with an option that the source has nowhere."""
    shell = "\n".join(blocks(page, "bash"))
    commands = re.findall(r"(?:`|^ {4})plsc ([a-z]\w*)((?: [^`\n#]*)?)", page, re.MULTILINE)
    commands += re.findall(r"^plsc ([a-z]\w*)((?: [^\n#]*)?)", shell, re.MULTILINE)
    return [
        f"{verb} {option}".strip()
        for verb, words in commands
        for option in ["", *re.findall(r"(?<= )--[\w-]+", words)]
        if verb not in VERBS or f'"{option}"' not in source
    ]


@pytest.mark.parametrize("name", [name for name in PAGES if name != "docs/labbook.md"])
def test_commands_and_their_options_are_there(name):
    source = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("plsc/**/*.py"))
    assert not dead_commands(PAGES[name], source)


# ---- tables whose rows name tests


@pytest.mark.parametrize("name,rows", [("docs/labbook.md", 47)])
def test_every_row_names_tests_that_are_there(name, rows):
    lines = re.findall(r"^\| \d+(?:\.\d+)? \|.*$", PAGES[name], re.MULTILINE)
    assert len(lines) == rows
    for line in lines:
        tests = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)", line)
        assert tests, line
        for file, test in tests:
            assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {test}"


# ---- snippets


def snippets(page):
    """File name -> text of the python and yaml blocks whose first line is a comment with the name."""
    texts = (re.fullmatch(r"# (\S+)\n(.*)", text, re.DOTALL) for text in blocks(page, "python", "yaml"))
    return dict(found.groups() for found in texts if found)


@pytest.mark.slow
def test_the_run_of_the_extend_page_takes_all_its_classes(tmp_path):
    page = PAGES["docs/extend.md"]
    files = snippets(page)
    assert len(files) == len(re.findall(r"^```\w", page, re.MULTILINE)), (
        "a block without a file name is not run"
    )
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    run_forked("-m", *re.search(r"`(plsc train .*?)`", page)[1].split(), cwd=tmp_path)
    assert list((tmp_path / "output/mine/checkpoints").glob("step-*4"))
    assert '"loss/triplet": ' in (tmp_path / "output/mine/metrics.jsonl").read_text()
    config = (tmp_path / "my_run.yaml").read_text(encoding="utf-8")
    for name in files:
        assert name == "my_run.yaml" or f"{name.removesuffix('.py')}:" in config


def test_the_configs_in_the_pages_are_valid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, page in PAGES.items():
        for number, text in enumerate(blocks(page, "yaml")):
            if 'name: "my_' not in text:  # classes of the page itself
                (tmp_path / "a.yaml").write_text(text)
                assert load("a.yaml"), f"{name}, block {number}"


def test_the_python_blocks_of_all_pages_are_python():
    texts = [text for page in PAGES.values() for text in blocks(page, "python")]
    assert texts and all(ast.parse(text) for text in texts)
