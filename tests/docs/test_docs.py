"""README and docs against the disk and the code: links, paths, names, keys, commands and tests that they
name. test_blocks.py runs what they show."""

import pkgutil
import re

import pytest

from plsc.cli import VERBS
from plsc.config import Config, load
from tests.helpers.launch import ROOT

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
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def dead_functions(page):
    """Names that a page gives to a file, as in `plsc/a.py`: `b`, `C.d`, and that the file does not have."""
    named = re.findall(r"`(plsc/[\w/]+)\.py`: (`[\w.]+`(?:, `[\w.]+`)*)", page)
    names = ((file.replace("/", "."), name) for file, list_ in named for name in re.findall(r"[\w.]+", list_))
    return [f"{module}.{name}" for module, name in names if not _resolves(f"{module}:{name}")]


def dead_keys(page):
    """Return each Section.key that no config has. Keyword arguments of a user's classes (Model.width) are
    theirs, not ours."""
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
    assert not dead_functions(page)
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
    page = "`plsc/heads/step.py`: `HeadStep.forward`, `HeadStep.backwards` and\n`plsc/heads/build.py`: `make`"
    assert dead_functions(page) == ["plsc.heads.step.HeadStep.backwards", "plsc.heads.build.make"]
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


def test_every_row_names_tests_that_are_there():
    lines = re.findall(r"^\| \d\.\d+ \|.*$", PAGES["docs/labbook.md"], re.MULTILINE)
    assert len(lines) == 47
    for line in lines:
        tests = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)", line)
        assert tests, line
        for file, test in tests:
            assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {test}"


def test_the_configs_in_the_pages_are_valid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, page in PAGES.items():
        for number, text in enumerate(blocks(page, "yaml")):
            if 'name: "mine:' not in text:  # classes of the page itself
                (tmp_path / "a.yaml").write_text(text)
                assert load("a.yaml"), f"{name}, block {number}"


def test_guides_are_short():
    """At most 180 lines (the core 150), of at most 110 characters where it is text."""
    for name in PAGES.keys() - {"README.zh.md", "docs/config.md"}:
        lines = PAGES[name].splitlines()
        assert len(lines) <= {"docs/labbook.md": 600, "docs/core.md": 150}.get(name, 180), name
        text = re.sub(r"^```.*?^```$", "", PAGES[name], flags=re.DOTALL | re.MULTILINE).splitlines()
        assert not [line for line in text if len(line) > 110 and not line.startswith(("| ", "    ", "`"))], (
            name
        )
