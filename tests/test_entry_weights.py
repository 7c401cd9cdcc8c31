"""Which weights an Entry uses if the user gives a layer or changes one, and a class that a script defines."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
from paddle import inference

from plsc.entry import Entry
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import TINY, Linear, checkpoints

SHAPE = (1, 12, 10)
PIXELS = np.random.default_rng(0).integers(0, 256, (5, *SHAPE), np.uint8)
KEYS = ("Global.max_steps=1", "DataLoader.Eval.dataset=null", "Export.formats=[paddle]")


def entry(output, model=None):
    return Entry(TINY, [f"Global.output_dir={output}", *KEYS], model)


def exported_embeddings(facts):
    folder, names = Path(facts["folder"]), facts["files"]["paddle"]
    config = inference.Config(str(folder / names["model"]), str(folder / names["params"]))
    config.disable_glog_info()
    predictor = inference.create_predictor(config)
    predictor.get_input_handle("image").copy_from_cpu(PIXELS.astype(np.float32))
    predictor.run()
    return predictor.get_output_handle(names["output"]).copy_to_cpu()


def test_a_changed_layer_is_the_one_that_is_exported(tmp_path, capsys):
    run = entry(tmp_path)
    run.train()
    same = run.export(tmp_path / "same")
    assert np.allclose(exported_embeddings(same), run.predict(PIXELS)[0], atol=1e-5) and same["network"]
    layer, _ = run.model()
    before, _ = run.predict(PIXELS)
    with paddle.no_grad():
        for weight in layer.parameters():
            weight.set_value(weight + 0.1 * paddle.rand(weight.shape))
    changed, _ = run.predict(PIXELS)
    facts = run.export(tmp_path / "out")
    assert "with the weights that were changed since" in capsys.readouterr().out
    assert np.allclose(exported_embeddings(facts), changed, atol=1e-5)
    assert not np.allclose(before, changed, atol=1e-3)
    assert facts["threshold"] is None and facts["network"] is None  # those are the checkpoint's


def test_a_given_layer_keeps_its_weights(tmp_path, capsys):
    net = Linear(8, SHAPE)
    entry(tmp_path, model=net).train()
    trained = net.linear.weight.numpy()
    expected, _ = entry(tmp_path, model=net).predict(PIXELS)
    assert "its own weights are not used" not in capsys.readouterr().out
    net.linear.weight.set_value(trained + 1)
    user = entry(tmp_path, model=net)
    facts = user.export(tmp_path / "out")
    assert capsys.readouterr().out.count("model=: its own weights are not used and not changed") == 1
    assert np.array_equal(net.linear.weight.numpy(), trained + 1)
    assert np.array_equal(user.predict(PIXELS)[0], expected)
    assert np.allclose(exported_embeddings(facts), expected, atol=1e-5) and facts["network"]


def test_a_layer_that_cannot_be_copied_is_one_line(tmp_path):
    net = Linear(8, SHAPE)
    entry(tmp_path, model=net).train()
    net.file = open(os.devnull)  # noqa: SIM115
    with net.file:
        line = refusal(entry(tmp_path, model=net).predict, PIXELS)
    assert line.startswith("model=: Linear cannot be copied (") and line.endswith(
        "; name its class in Model.name instead"
    )


SCRIPT = """
import numpy as np
from plsc import Entry
from plsc.data.dataset import Dataset

class Noise(Dataset):
    def __init__(self, classes: int = 20):
        self.num_classes, self.image_shape = classes, (1, 12, 10)
        self.labels = np.repeat(np.arange(classes, dtype=np.int64), 8)

    def sample(self, index, epoch):
        return np.random.default_rng([index, epoch]).integers(0, 256, self.image_shape, np.uint8)

if __name__ == "__main__":
    train = {"dataset": {"name": "__main__:Noise", "classes": 12}, "num_workers": 0}
    Entry(CONFIG, {**{f"DataLoader.Train.{key}": value for key, value in train.items()},
        "DataLoader.Eval.dataset": None, "Global.max_steps": 1, "Global.output_dir": OUT}).train()
"""


def test_a_script_names_its_own_class_by_main(tmp_path):
    names = {"CONFIG": repr(str(TINY)), "OUT": repr(str(tmp_path / "out"))}
    script = SCRIPT
    for name, value in names.items():
        script = script.replace(name, value)
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert checkpoints(tmp_path / "out") == [1]
