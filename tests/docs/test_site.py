"""The site of the pages: mkdocs.yml names each of them; built, it is without a dead link and asks for nothing
from the network."""

import re

import pytest
import yaml

from tests.docs.test_docs import PAGES
from tests.helpers.launch import ROOT, run_python


def files(nav):
    """The files of a nav, at any depth."""
    for item in nav:
        for value in item.values():
            yield from [value] if isinstance(value, str) else files(value)


def test_the_nav_names_every_page_once():
    named = list(files(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    ours = [name.removeprefix("docs/").replace("README.md", "index.md") for name in PAGES]
    assert sorted(named) == sorted(ours)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    run_python("-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder, cwd=ROOT)
    return folder


def test_the_site_asks_for_nothing_from_the_network(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES)  # and 404.html
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=.?https?:[^>]*>", text), page


def test_links_lead_from_the_readme_into_the_site(site):
    links = re.findall(r'href="([^"]*)"', (site / "index.html").read_text(encoding="utf-8"))
    assert {"data.html", "CHANGELOG.html", "LICENSE"} <= {*links}
    assert not [link for link in links if link.startswith("docs/")]


def test_the_page_of_the_config_goes_on_with_all_keys(site):
    page = (site / "config.html").read_text(encoding="utf-8")
    assert {"dataloadertrainsampler", "shards"} <= {*re.findall(r'<h[23] id="(\w+)"', page)}
    assert "docs/" not in re.sub(r"href=\S+", "", page)
