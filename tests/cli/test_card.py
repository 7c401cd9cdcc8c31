"""plsc card: a run is what its card says, and is not when a byte of what the numbers depend on is another."""

import json
import re
import shutil

import cv2
import numpy as np
import pytest

from plsc import cli
from plsc.checkpoint.saved import Checkpoint
from plsc.entry import Entry
from plsc.evaluation.card import Card, files_of, read_card, write_card
from plsc.training.card import files_for_export
from tests.helpers.checkpoints import flip
from tests.helpers.launch import ROOT, launch
from tests.helpers.tiny_runs import TINY, checkpoint

NOT_COMPARED = "; not compared: folder, date, command, pictures"
TRAIN = ROOT / "tools" / "train.py"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A list of pairs of picture files."""
    folder = tmp_path_factory.mktemp("pictures")
    for number, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (8, 12, 10), np.uint8)):
        cv2.imwrite(str(folder / f"{number}.png"), pixels)
    lines = [f"{2 * n}.png\t{2 * n + 1}.png\t{n % 2}\n" for n in range(4)]
    (folder / "pairs.txt").write_text("".join(lines))
    return folder


def settings(folder, pictures):
    files = {"name": "PairList", "list": str(pictures / "pairs.txt"), "size": [12, 10], "channels": "grey"}
    more = f"DataLoader.Eval.more={json.dumps({'files': files})}"
    return [f"Global.output_dir={folder}", more, "Export.formats=[paddle]", "Global.data_licence=our own"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, pictures):
    folder = tmp_path_factory.mktemp("trained") / "run"
    Entry(TINY, settings(folder, pictures)).train()
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy in another place, to be damaged."""
    return shutil.copytree(trained, tmp_path / "moved")


def card(capsys, *args):
    capsys.readouterr()
    code = cli.main(["card", *map(str, args)])
    out, err = capsys.readouterr()
    return code, [line for line in out.splitlines() if line.startswith(("DIFFERS", "done"))], err


def test_a_moved_run_is_what_its_card_says(run, capsys):
    code, lines, _ = card(capsys, "verify", run)
    assert code == 0 and len(lines) == 1
    headline = read_card(run).headline
    assert re.fullmatch(r"accuracy \d+\.\d\d % ± \d+\.\d\d", headline)
    assert lines[0] == f"done: {run} is what the card says: {headline}, equal to the last bit{NOT_COMPARED}"


def test_the_card_says_what_the_run_is(trained, capsys):
    card(capsys, "show", trained)
    found = read_card(trained)
    text = (trained / "card.md").read_text()
    results = json.loads((trained / "results.json").read_text())
    assert found.sets == results["sets"] and found.licence == "our own" and "our own" in text
    assert found.step == 12 and found.facts["trained on"] == "Synthetic: 115 samples of 23 classes"
    assert "noise pairs: 40 pairs of 80 images; files: 4 pairs of 8 images" in text
    for digest in (*found.files.values(), *found.data.values()):
        assert re.fullmatch("[0-9a-f]{64}", digest) and digest in text
    assert len(found.files) == 4 and len(found.data) == 3 and found.network in text


@pytest.mark.parametrize(
    "file, line",
    [
        ("checkpoints/step-00000012/backbone.safetensors", "backbone.safetensors: fails its checksum"),
        ("checkpoints/step-00000012/head-00000-of-00001.safetensors", "safetensors: fails its checksum"),
        ("checkpoints/step-00000012/manifest.json", "manifest.json: fails its checksum"),
        ("config.yaml", "config.yaml: is not the one that the card was written with"),
        ("card.md", "card.md: is not the text that this plsc writes of card.json"),
    ],
)
def test_a_changed_byte_of_the_run_is_named(run, capsys, file, line):
    data = bytearray((run / file).read_bytes())
    place = data.index(b"# default") + 2 if file == "config.yaml" else len(data) - 2
    data[place] ^= 1
    (run / file).write_bytes(data)
    code, lines, _ = card(capsys, "verify", run)
    assert code == 1 and len(lines) == 2
    assert lines[0].startswith("DIFFERS ") and line in lines[0]
    assert lines[1] == f"done: {run} is not what the card says: the numbers were not computed again"


@pytest.mark.parametrize(
    "file, line",
    [
        ("7.png", "files: all samples, and what is compared: "),
        ("pairs.txt", "the file DataLoader.Eval.more.files.list: "),
    ],
)
def test_a_changed_byte_of_the_pairs_is_named(run, pictures, tmp_path, capsys, file, line):
    there = shutil.copytree(pictures, tmp_path / "pictures")
    moved = f"DataLoader.Eval.more.files.list={there / 'pairs.txt'}"
    assert card(capsys, "verify", run, "-o", moved)[0] == 0
    flip(there / file)  # of the picture the last byte of a checksum, of the list a line break
    code, lines, _ = card(capsys, "verify", run, "-o", moved)
    assert code == 1 and lines[0].startswith(f"DIFFERS {line}")


def test_a_changed_number_is_named(run, capsys):
    text = (run / "card.json").read_text()
    accuracy = json.loads(text)["sets"]["noise pairs"]["accuracy"]
    changed = text.replace(f'"accuracy": {accuracy}', f'"accuracy": {accuracy + 0.01}', 1)
    (run / "card.json").write_text(changed)
    code, lines, _ = card(capsys, "verify", run)
    assert code == 1 and lines[0] == f"DIFFERS {run}/card.json: was changed since it was written"
    write_card(read_card(run), run)  # as one who means to change it would
    code, lines, _ = card(capsys, "verify", run)
    assert (
        code == 1
        and lines[0] == f"DIFFERS noise pairs: accuracy: {accuracy + 0.01} in the card, {accuracy} now"
    )


def raised(headline, points):
    """Return the headline with an accuracy that is higher by so many points."""
    return re.sub(r"\d+\.\d\d", lambda found: f"{float(found[0]) + points:.2f}", headline, count=1)


def test_other_rounding_is_allowed_where_it_has_a_reason(run, capsys):
    found = read_card(run)
    numbers = found.sets["noise pairs"]
    numbers["auc"] += 1e-6
    numbers["table"]["area under ROC"] = f"{numbers['auc'] + 0.001:.5f}"
    numbers["calibration"]["bins"][0]["pairs"] += 1
    headline = found.headline
    found.headline = raised(headline, 0.1)
    write_card(found, run)
    assert card(capsys, "verify", run)[0] == 1
    found.machine["processor"] = "another"
    write_card(found, run)
    code, lines, _ = card(capsys, "verify", run)
    assert code == 0 and lines[-1].endswith(
        f"is what the card says: {headline}, compared within 0.002, since rounding may differ where these do: processor{NOT_COMPARED}, "
        "processor"
    )
    found.headline = raised(headline, 0.3)
    numbers["table"]["area under ROC"] = f"{numbers['auc'] - 0.01:.5f}"
    numbers["table"]["pairs"] += " of the whole world"
    numbers["auc"] += 0.01
    write_card(found, run)
    code, lines, _ = card(capsys, "verify", run)
    places = [re.match(r"DIFFERS (.+): .+ in the card", line)[1] for line in lines[:-1]]
    of_table = ["noise pairs: table: area under ROC", "noise pairs: table: pairs"]
    assert code == 1 and sorted(places) == ["headline", "noise pairs: auc", *of_table]


FORGERIES = {
    "headline": lambda card: card.update(headline="accuracy 100.00 % ± 0.00"),
    "licence": lambda card: card.update(licence="CC0"),
    "step": lambda card: card.update(step=12_000),
    "network": lambda card: card.update(network="0" * 64),
    "facts: trained on": lambda card: card["facts"].update({"trained on": "10,000,000 people"}),
    "facts: audited by": lambda card: card["facts"].update({"audited by": "nobody"}),
    "limits": lambda card: card.update(limits=[]),
    "limits 0": lambda card: card["limits"].__setitem__(0, "None."),
    "config": lambda card: card.update(config="a: 1\n"),
    "pictures": lambda card: card["pictures"].update({"ROC": "/etc/passwd"}),
    "software and machine": lambda card: card["machine"].update({"certified": True}),
    "order of the sets": lambda card: card.update(sets=dict(reversed(card["sets"].items()))),
    "noise pairs: table: area under ROC": lambda card: card["sets"]["noise pairs"]["table"].update(
        {"area under ROC": "1.00000"}
    ),
    "noise pairs: notes": lambda card: card["sets"]["noise pairs"]["notes"].append("Flawless."),
    "noise pairs: accuracy": lambda card: card["sets"]["noise pairs"].update(accuracy=1.0),
    "another set": lambda card: card["sets"].update({"another set": card["sets"]["files"]}),
}


@pytest.mark.parametrize("place", FORGERIES)
def test_a_forged_card_is_named(run, capsys, place):
    """Whoever forges a card can compute its seal and write its text, too."""
    fields = read_card(run).model_dump()
    headline = fields["headline"]
    FORGERIES[place](fields)
    write_card(Card(**fields), run)
    code, lines, _ = card(capsys, "verify", run)
    assert code == 1 and len(lines) == 2 and lines[0].startswith(f"DIFFERS {place}: ")
    assert lines[1].startswith(f"done: {run} is not what the card says: {headline}, ")


def test_a_text_that_says_more_than_the_card_is_named(run, capsys):
    text = run / "card.md"
    text.write_text(text.read_text().replace(" 115 samples", " 115,000 samples", 1))
    code, lines, _ = card(capsys, "verify", run)
    assert code == 1 and lines[0] == f"DIFFERS {text}: is not the text that this plsc writes of card.json"


def test_the_json_of_a_card_controls_no_terminal(run, capsys):
    path = run / "card.json"
    path.write_text(path.read_text().replace("our own", "our \u202e\x9bown"))
    assert cli.main(["card", "show", str(run), "--json"]) == 0
    assert "our \\u202e\\u009bown" in capsys.readouterr().out


def test_other_training_data_are_named(run, capsys):
    other = "DataLoader.Train.dataset.images_per_class=6"
    code, lines, _ = card(capsys, "verify", run, "-o", other)
    assert code == 1 and lines[0].startswith("DIFFERS training data: names and labels: ")
    code, lines, _ = card(capsys, "verify", run, "-o", "DataLoader.Eval.more={}")
    assert code == 1 and "DataLoader.Eval.more.files.list" in lines[0] and lines[0].endswith("not here now")
    code, lines, _ = card(capsys, "verify", run, "--no-training-data", "-o", other)
    assert code == 0 and lines[-1].endswith(f"equal to the last bit{NOT_COMPARED}, training data")


def test_a_run_without_a_card_gets_one(run, capsys):
    before = read_card(run)
    (run / "card.json").unlink()
    code, _, err = card(capsys, "verify", run)
    assert code == 2 and err.endswith(
        f"no such file; plsc card write {run} evaluates the run and writes it\n"
    )
    assert card(capsys, "write", run)[0] == 0
    after = read_card(run)
    assert after.sets == before.sets and after.headline == before.headline
    assert (after.files, after.data) == (before.files, before.data)
    (run / "card.json").write_text('{"format": 1}')
    assert card(capsys, "show", run)[2].endswith(
        "it is not as plsc wrote it: plsc card write writes it anew\n"
    )


def test_a_run_without_evaluation_has_a_card(tmp_path, capsys):
    Entry(
        TINY, [f"Global.output_dir={tmp_path}", "Global.max_steps=1", "DataLoader.Eval.dataset=null"]
    ).train()
    assert "nothing was evaluated" in (tmp_path / "card.md").read_text()
    code, lines, _ = card(capsys, "verify", tmp_path)
    assert code == 0 and lines == [
        f"done: {tmp_path} is what the card says: nothing was evaluated{NOT_COMPARED}"
    ]


def test_an_export_carries_the_card_of_its_network(run, capsys):
    Entry(run / "config.yaml", [f"Global.output_dir={run}"]).export()
    exported = read_card(run / "export")
    assert exported.network == read_card(run).network and exported.pictures == {}
    assert (run / "export" / "card.md").read_bytes() == files_of(exported)["card.md"]
    assert files_for_export(run, Checkpoint.open(checkpoint(run, 8))) == {}
    said = capsys.readouterr().out
    assert "is of step-00000012, another network: the export goes without it" in said


def test_two_ranks_write_a_card_that_one_and_two_verify(tmp_path, pictures, capsys):
    run = tmp_path / "run"
    launch(TRAIN, 2, tmp_path, "-c", TINY, "-o", *settings(run, pictures), "Global.max_steps=2")
    assert card(capsys, "verify", run)[0] == 0
    shutil.rmtree(tmp_path / "log")
    said = launch(ROOT / "plsc/__main__.py", 2, tmp_path, "card", "verify", "run").stdout
    assert said.count("done: run is what the card says: ") == 1 and "equal to the last bit" in said
    flip(checkpoint(run, 2) / "head-00001-of-00002.safetensors")
    code, lines, _ = card(capsys, "verify", run)
    assert code == 1 and lines[0].endswith("head-00001-of-00002.safetensors: fails its checksum")
