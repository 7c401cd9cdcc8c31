"""The commands of docs/gallery.md, as they stand there, after a training of a few steps."""

import glob
import json
import re
import shlex
import subprocess

import pytest

from tests.helpers.launch import ROOT, run_forked

PAGE = (ROOT / "docs" / "gallery.md").read_text()
COMMANDS = re.search(r"```bash\n(.*?)```", PAGE, re.DOTALL)[1].splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the commands were run; said.json has what each printed."""
    folder = tmp_path_factory.mktemp("page")
    quick = ["Global.max_steps=30", "DataLoader.Train.dataset.repeats=1", "Global.eval_every=0"]
    run_forked("-m", "plsc", "train", "-o", *quick, cwd=folder)
    said = [[command, _run(command, folder)] for command in COMMANDS]
    (folder / "said.json").write_text(json.dumps(said))
    return folder


def _run(command, folder):
    """What a line of a shell prints: plsc's commands are forked, to save the time that importing Paddle
    takes."""
    words = shlex.split(command, comments=True)
    if words[0] != "plsc":
        return subprocess.run(
            ["sh", "-ec", command], cwd=folder, check=True, text=True, capture_output=True
        ).stdout
    words = [
        name
        for word in words
        for name in (sorted(glob.glob(word, root_dir=folder)) if "*" in word else [word])
    ]
    done = run_forked("-m", *words, cwd=folder, check=False)
    allowed = (0, 1) if words[2] == "search" else (0,)  # a network of 30 steps need not accept it
    assert done.returncode in allowed, f"{command}: {done.returncode}\n{done.stderr[-3000:]}"
    return done.stdout


def test_the_page_has_at_most_twelve_lines_of_shell():
    assert 0 < len(COMMANDS) <= 12


def test_the_commands_say_what_the_page_says(folder):
    said = dict(json.loads((folder / "said.json").read_text()))
    built = next(text for command, text in said.items() if "gallery build" in command)
    assert "built, 116 people, 116 rows" in built and "116 of them" in PAGE
    assert "a stranger gets a name in 1 % of the searches (" in built
    evaluated = next(
        text for command, text in said.items() if command.endswith("evaluate glyphs.gallery queries/")
    )
    assert "464 pictures of them, 708 of strangers" in evaluated and "rank-1" in evaluated
    assert "464 of known characters, 708 of strangers" in PAGE
    search = next(text for command, text in said.items() if "gallery search" in command)
    assert "U+0152" in search


def test_strangers_are_nobody_and_the_last_one_is_added(folder):
    done = run_forked("-m", "plsc", "gallery", "list", "glyphs.gallery", "--json", cwd=folder)
    facts = json.loads(done.stdout)
    assert facts["people"][-1]["name"] == "wheel of dharma" and len(facts["people"][-1]["pictures"]) == 8
    assert facts["measured"]["size"] == 117, "measured again"
    said = run_forked(
        "-m", "plsc", "gallery", "evaluate", "glyphs.gallery", "queries/", "--json", cwd=folder
    ).stdout
    stored = json.loads(said)["thresholds"]["stored"]
    assert stored["cosine"] == facts["threshold"] and stored["strangers_rejected"] >= 0.97
