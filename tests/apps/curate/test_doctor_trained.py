"""Wrong labels by the network of a run: the list and the page of `plsc doctor --trained`, and a training with
the list."""

import re

import numpy as np
import pytest

from plsc import cli
from plsc.apps.curate import doctor
from plsc.data.dataset import Dataset
from plsc.data.synthetic import Synthetic
from plsc.errors import CorruptImageError, UserError
from tests.helpers.tiny_runs import IMAGE_SHAPE, checkpoint, train

WRONG = {7: 9, 50: 2, 61: 20}  # sample -> its wrong label
DATA = "DataLoader.Train.dataset={name: tests.apps.curate.test_doctor_trained:Mislabelled}"
MORE = ["Model.embedding_size=32", "DataLoader.Train.max_corrupt=0.2", "DataLoader.Eval.dataset=null"]


class Mislabelled(Dataset):
    """The images of tiny.yaml with some wrong labels; the last one is corrupt, and the classes have names
    that are HTML, with a TAB."""

    image_shape = IMAGE_SHAPE

    def __init__(self, seed: int = 0):
        self._source = Synthetic(23, 5, IMAGE_SHAPE, seed)
        self.num_classes = 23
        self.labels = self._source.labels.copy()
        self.labels[[*WRONG]] = [*WRONG.values()]
        names = [f"<b>\t{number}" for number in range(23)]
        names[4] = "<b> 4"  # a config can name it, which takes no TAB
        self.identities = np.array(names)

    def sample(self, index, epoch):
        if index == 114:
            raise CorruptImageError("not an image")
        return self._source.sample(index, epoch)


@pytest.fixture(scope="module")
def examined(tmp_path_factory):
    """A run on wrong labels, and the doctor's folder."""
    folder = tmp_path_factory.mktemp("noisy")
    trainer = train(folder / "run", DATA, *MORE)
    (folder / "run/config.yaml").write_text(trainer.cfg.to_yaml())
    assert cli.main(["doctor", "--trained", str(folder / "run"), "--output", str(folder / "doctor")]) == 1
    return folder


def test_the_list_names_the_wrong_labels(examined, capsys, caplog):
    lines = (examined / "doctor/corrections.tsv").read_text().splitlines()
    fields = [line.split("\t") for line in lines if not line.startswith("#")]
    assert {int(line[1]) for line in fields} == {*WRONG}
    for action, number, _, to, _, _ in fields:
        assert (action, to) in (("relabel", str(int(number) // 5)), ("drop", "-"))
    again = ["--trained", str(examined / "run/config.yaml"), "--output", str(examined / "again")]
    newest = f"Global.checkpoint={checkpoint(examined / 'run')}"
    with caplog.at_level("INFO", "plsc"):
        assert cli.main(["doctor", *again, "-o", newest]) == 1
    said, logged = capsys.readouterr()
    assert "embedding 115 samples" in logged + caplog.text
    assert "115 samples in 23 classes" in said and "step 12: 4 views of each sample" in said
    assert re.search(r"wrong labels: \d+ \(\d\.\d\d%\), \d+ with another label, \d+ to drop", said)
    assert "left out: 1 images that cannot be decoded" in said


def test_the_page_shows_them(examined):
    page = (examined / "doctor/label_noise.html").read_text()
    assert page.count('class="case"') >= len(WRONG) and page.count("data:image/png;base64,") >= 3 * len(WRONG)
    assert r"labelled &lt;b&gt;\t9, nearest &lt;b&gt;\t1<" in page and "<b>" not in page
    assert not re.search(r"<script|https?://(?!www\.w3\.org)", page)


def test_mistakes_are_refused_in_a_line(examined, tmp_path):
    for arguments, message in (
        (["--trained", str(tmp_path / "none")], "no such folder; name a run's folder, or its config.yaml"),
        (["--trained", "a", "-c", "b"], "give either a set of images to train on, or -c with a config, or --trained"),
        (["--trained", "a", "--validation", "b"], "--validation: has no meaning with --trained"),
        (["--trained", str(examined / "run"), "--output", __file__], f"{__file__}: cannot be written: "),
    ):  # fmt: skip
        with pytest.raises(UserError, match=re.escape(message)):
            doctor.main(arguments)
