"""Run the commands and the Python of README and guides, page by page, in the order in which they stand.

A page has a folder with what its text asks the reader to have. What is run differs from what is read by
SHORTER and HELPERS: nothing is installed, a training ends after four steps, a service runs beside those who
ask it. Not run are README's pytest, what needs a second machine, and Python for packages that are not
installed (insightface, paddlex).
"""

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys

import cv2
import pytest

from plsc import cli
from plsc.backbones.mobilefacenet import MobileFaceNet
from tests.apps.faces.lfw import ZOO, needs_faces, portraits, scene, write
from tests.apps.migrate.test_import_weights import of_torch
from tests.apps.migrate.torch_files import write_torch
from tests.docs.test_docs import PAGES
from tests.helpers.image_files import png
from tests.helpers.launch import ROOT

pytestmark = pytest.mark.slow

SHORTER = {
    "--device gpu --ranks 8": "--device cpu --ranks 2",
    "--model IResNet50": "--model MobileFaceNet",
    '("configs/", [': '("configs/", ["Global.max_steps=4", ',
    '"Global.epochs=2", ': "",
}
HELPERS = """
set -e
pip() { :; }
pytest() { :; }
python() { case "$*" in *tools/train.py*) set -- "$@" -o Global.max_steps=4;; esac; "$PYTHON" "$@"; }
plsc() {
    case $1 in
    train) python -m plsc "$@" -o Global.max_steps=4;;
    doctor | gallery) python -m plsc "$@" || [ $? = 1 ];;  # it has found something; a picture has no name
    serve) "$PYTHON" -m plsc "$@" --port $PORT & trap "kill $!" EXIT; curl -s --retry 60 \\
        --retry-connrefused --retry-delay 1 http://127.0.0.1:$PORT/health;;
    *) python -m plsc "$@";;
    esac
}
"""
RUN = """
Global: {max_steps: 4, output_dir: trained}
Model: {widths: [8], blocks: [1]}
DataLoader:
  Train: {dataset: {name: ImageFolder, folder: faces, size: [32, 32]}, batch_size: 8}
  Eval: {dataset: null}
"""


def programs(page):
    """Return the blocks that a reader types: (language, text)."""
    fenced = r"^```(\w*)\n(.*?)^```$"
    indented = r"(?<=\n\n)((?: {4}[^\n]*\n)+)"
    for language, text, lines in re.findall(f"{fenced}|{indented}", page, re.DOTALL | re.MULTILINE):
        text = text or re.sub("^ {4}", "", lines, flags=re.MULTILINE)
        if lines and re.match("plsc |pip |python ", text):
            yield "bash", text
        elif language in ("bash", "python", "yaml"):
            yield language, text


def script(page):
    """Make one shell script of a page."""
    parts = [HELPERS]
    for language, text in programs(page):
        for read, run in SHORTER.items():
            text = text.replace(read, run)
        if name := re.match(r"# (\S+\.(?:py|yaml))\n", text):
            parts.append(f"cat > {name[1]} << 'END'\n{text}END\n")
        elif language == "bash" and "--nnodes 2" not in text:
            parts.append(text.replace("127.0.0.1:8000", "127.0.0.1:$PORT"))
        elif language == "python":
            packages = re.findall(r"^(?:import|from) (insightface|paddlex)\b", text, re.MULTILINE)
            if all(map(importlib.util.find_spec, packages)):
                parts.append(f"python - << 'END'\n{text}END\n")
    return "\n".join(parts)


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A folder with all that a page may ask for, and what a small run of its pictures has written."""
    folder = tmp_path_factory.mktemp("given")
    for number in range(48):
        for name, first in (("faces", 0), ("others", 100)):
            path = folder / name / f"{number % 12}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(first + number))
    for number, name in enumerate(("a.png", "b.png")):
        write(folder / name, cv2.imread(str(folder / f"faces/{number}/{number}.png")))
    (folder / "pictures.txt").write_text("a.png\nb.png\n")
    (folder / "pairs.txt").write_text("faces/0/0.png\tfaces/0/12.png\t1\nfaces/1/1.png\tfaces/2/2.png\t0\n")
    for name in ("my.yaml", "config.yaml"):
        (folder / name).write_text(RUN)
    write_torch(folder / "backbone.pt", of_torch(MobileFaceNet(512, (3, 112, 112))))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert not cli.main(["convert", "others", "train.rec"])
        assert not cli.main(["convert", "pairs.txt", "lfw.bin"])
        assert not cli.main(["train", "-c", "my.yaml"])
    return folder


def run(page, given, folder):
    """Run a page in a copy of what is given. Return all its output."""
    shutil.copytree(given, folder)
    place = {
        "docs/data.md": "output/faces",
        "docs/export.md": "output/faces",
        "docs/training.md": "output/before",
    }
    if page in place:
        shutil.copytree(folder / "trained", folder / place[page])
    shutil.rmtree(folder / "trained")
    for name in ("configs", "tools"):
        (folder / name).symlink_to(ROOT / name)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    env = {**os.environ, "PYTHON": sys.executable, "PORT": port, "PLSC_CACHE": str(ZOO)}
    env |= {"PYTHONPATH": f"{ROOT}:{folder}"}
    command = ["bash", "-c", script(PAGES[page])]
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def photos(given, tmp_path_factory):
    """The same, with photos of people."""
    folder = tmp_path_factory.mktemp("photos") / "given"
    shutil.copytree(given, folder)
    names = ["Ann", "Bob", *(f"P{number}" for number in range(10))]
    for number, (name, faces) in enumerate(zip(names, portraits(4, 13).values())):
        for place, face in enumerate(faces[:3]):
            write(folder / f"photos/{name}/{place}.jpg", scene([face], seed=number))
    ann, *_, stranger = portraits(4, 13).values()
    for name, face in {
        "who": ann[3],
        "more": ann[3],
        "cy1": stranger[0],
        "cy2": stranger[1],
        "x": stranger[3],
    }.items():
        write(folder / f"{name}.jpg", scene([face]))
    return folder


@needs_faces
@pytest.mark.parametrize("page", ["README.md", "docs/faces.md"])
def test_a_page_with_photos_names_the_right_person(page, photos, tmp_path):
    said = run(page, photos, tmp_path / "here")
    assert re.search(r"^who.jpg: Ann \(similarity 0.\d\d, threshold 0.\d\d\)$", said, re.MULTILINE)
    assert re.search(
        r"^x.jpg: nobody \(nearest \w+, similarity 0.\d\d, threshold 0.\d\d\)$", said, re.MULTILINE
    )
    for line in re.findall(r"^INFO (plan: .*)$", PAGES[page], re.MULTILINE):
        assert line in said
    assert '"name":"Ann"' in said or page == "README.md"  # the service's answer


GUIDES = [
    *("quickstart", "data", "training", "evaluation", "export"),
    *("running", "head", "core", "extend", "paddle"),
]


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_does_what_it_says(name, given, tmp_path):
    said = run(f"docs/{name}.md", given, tmp_path / "here")
    assert name != "extend" or "loss/triplet" in said


@pytest.mark.parametrize("read", SHORTER)
def test_what_is_replaced_is_on_a_page(read):
    """Otherwise a whole training would run, and nobody would notice."""
    assert any(read in page for page in PAGES.values())


def test_every_page_is_run():
    tables = {"README.zh.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/config.md", "docs/labbook.md"}
    assert PAGES.keys() == {"README.md", "docs/faces.md", *(f"docs/{name}.md" for name in GUIDES)} | tables
    assert [*programs(PAGES["README.zh.md"])] == [*programs(PAGES["README.md"])]
