"""The acceptance kit: good conversions pass, planted faults are named, in Python and C alike, and pictures
are chosen with their pairs."""

import contextlib
import io
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import cv2
import numpy as np
import paddle
import pytest
from paddle import nn

from plsc.apps.export import export
from plsc.apps.export import kit as of_export
from plsc.apps.export.graphs import open_graph
from plsc.apps.export.kit import KitPictures, check, make_kit
from plsc.apps.export.kit import networks as of_kit
from plsc.apps.export.kit.pictures import choose, kit_pictures
from plsc.checkpoint.store import Checkpoint
from plsc.data.dataset import Dataset, IdentificationSet, PairSet, TemplatePairs
from plsc.data.preprocessing import Preprocessing
from plsc.entry import Entry
from plsc.errors import CorruptImageError, UserError
from plsc.evaluation.sets import eval_set
from plsc.utils.logging import setup
from tests.helpers import pictures
from tests.helpers.tiny_runs import TINY, checkpoint

SHAPE = (3, 24, 24)
PREPROCESSING = Preprocessing.of_images(SHAPE)
COUNT, SIZE = 20, 32


class Net(nn.Layer):
    def __init__(self, channels=3):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2D(channels, 16, 3, 2, 1), nn.BatchNorm2D(16), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2D(16, 24, 3, 2, 1), nn.BatchNorm2D(24), nn.ReLU())
        self.embed = nn.Sequential(nn.Flatten(), nn.Linear(24 * 6 * 6, SIZE), nn.BatchNorm1D(SIZE))

    def forward(self, images):
        return self.embed(self.second(self.first(images)))


def drawn(count, channels=3, seed=0):
    """Smooth pictures with an edge, whose colours and halves differ, uint8 [count, channels, 24, 24]."""
    draws = np.random.default_rng(seed)
    coarse = draws.uniform(0, 255, (count * channels, 4, 4)).astype(np.float32)
    images = np.stack([cv2.resize(plane, (24, 24)) for plane in coarse]).reshape(count, channels, 24, 24)
    images[:, 0, :, :12] *= draws.uniform(0.2, 1, (count, 1, 1))
    return images.astype(np.uint8)


def trained(channels=3):
    """With the batch norms' statistics of pictures."""
    paddle.seed(0)
    net = Net(channels)
    preprocessing = Preprocessing.of_images((channels, 24, 24))
    for seed in range(20):
        net(paddle.to_tensor(preprocessing(drawn(16, channels, seed + 1))))
    net.eval()
    return net


def pictures_of(count=COUNT, channels=3):
    pairs = np.array([[0, 1, 0], [2, 3, 0], [4, 4, 1]])
    return KitPictures(drawn(count, channels), pairs, "drawn pictures")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The network, and what embeds samples by its export, whose folder has the kit."""
    net, out = trained(), tmp_path_factory.mktemp("kit") / "out"
    facts = export(
        net, out, preprocessing=PREPROCESSING, formats=["paddle"], threshold=0.5, kit=pictures_of()
    )
    run = open_graph(out, facts["files"]["paddle"])
    return net, lambda samples: run(np.ascontiguousarray(samples, np.float32)), out / "kit"


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory):
    """check.c as a program; None without a compiler."""
    global PROGRAM
    PROGRAM = None
    if compiler := shutil.which("cc"):
        PROGRAM = tmp_path_factory.mktemp("c") / "check"
        strict = ["-std=c99", "-Wall", "-Wextra", "-pedantic"]
        source = of_export.__path__[0] + "/check.c"
        subprocess.run([compiler, *strict, source, "-o", PROGRAM, "-lm"], check=True)


def run_program(command, folder):
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def printed(folder, name):
    """What check.py says of a file in the kit's folder, and its exit status; check.c must say the same."""
    with contextlib.redirect_stdout(io.StringIO()) as text:
        status = check.main([str(folder / name)], folder)
    if PROGRAM:
        done = run_program([PROGRAM, folder / name], folder)
        assert (done.stdout, done.returncode, done.stderr) == (text.getvalue(), status, "")
    return text.getvalue().splitlines(), status


def judged(folder, rows):
    np.save(folder / "mine.npy", np.ascontiguousarray(rows, np.float32))
    lines, status = printed(folder, "mine.npy")
    assert status == int(lines[-1].startswith("fault: "))
    return lines


def network(net, inputs):
    return net(paddle.to_tensor(np.ascontiguousarray(inputs, np.float32))).numpy()


def test_the_programs_of_the_kit_run_alone(made, tmp_path):
    folder = tmp_path / "board"
    shutil.copytree(made[2], folder)
    (folder / "mine.npy").write_bytes((folder / "reference.npy").read_bytes())
    commands = {"check.py": [sys.executable, "check.py"]}
    if PROGRAM:
        subprocess.run(["cc", "-std=c99", "check.c", "-o", "check", "-lm"], cwd=folder, check=True)
        commands["check.c"] = ["./check"]
    for command in commands.values():
        done = run_program([*command, "mine.npy"], folder)
        assert done.stdout.endswith("\npass: as in float32\n") and done.returncode == 0
        done = run_program(command, folder)
        assert done.stdout.startswith("usage: ") and done.returncode == 2
    if not PROGRAM:
        pytest.skip("no cc here: check.c was not compared with check.py")


def test_right_embeddings_pass_with_the_pairs_counted(made):
    _, run, folder = made
    lines = judged(folder, run(drawn(COUNT)))
    right = int(lines[2].split()[-1])
    assert lines[0] == "cosine with the reference: mean 1.0000, least 1.0000"
    assert lines[1] == "mean length: 1.0000"
    assert (
        lines[2]
        == f"pairs right at 0.500000 (the main evaluation set): {right} of 3, of the reference {right}"
    )
    assert lines[3] == "pass: as in float32"
    reference = np.load(folder / "reference.npy")
    products = [reference[a] @ reference[b] > 0.5 for a, b in ((0, 1), (2, 3), (4, 4))]
    assert right == sum(found == same for found, same in zip(products, (False, False, True)))


@pytest.mark.parametrize("rounded", [of_kit.to_float16, of_kit.to_bits(8), of_kit.to_bits(7)])
def test_good_roundings_pass(made, rounded):
    net, _, folder = made
    with of_kit.rounding(net, rounded):
        rows = network(net, PREPROCESSING(drawn(COUNT)))
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    assert judged(folder, rounded(rows / lengths, None))[-1].startswith("pass: as in ")


MIDDLE = {"crop": (slice(2, 22), slice(2, 22)), "resize": (slice(2, 22), slice(None))}


def cut(pixels, rows, columns):
    planes = [cv2.resize(plane[rows, columns], (24, 24)) for plane in pixels.reshape(-1, 24, 24)]
    return np.stack(planes).reshape(pixels.shape)


FAULTS = {
    "colour order": lambda x: x[:, ::-1],
    "layout: [H, W, C]": lambda x: x.transpose(0, 2, 3, 1).reshape(x.shape),
    "layout: rows": lambda x: x.swapaxes(2, 3),
    "crop": lambda x: cut(x, *MIDDLE["crop"]),
    "resize: the height": lambda x: cut(x, *MIDDLE["resize"]),
    "mirror": lambda x: x[..., ::-1],
    "upside down": lambda x: x[:, :, ::-1],
    "bytes": lambda x: (x + 128) % 256,
    "mean: it is subtracted twice": lambda x: x - 127.5,
    "mean: it is not subtracted": lambda x: x + 127.5,
    "scale: it is twice": lambda x: (x - 127.5) * 1.8 + 127.5,
    "mean and scale: pixels were normalised before": lambda x: x / 255,
}


@pytest.mark.parametrize("cause", FAULTS)
def test_pictures_that_were_prepared_wrongly_are_named(made, cause):
    _, run, folder = made
    lines = judged(folder, run(FAULTS[cause](drawn(COUNT).astype(np.float32))))
    assert lines[-1].startswith(f"fault: {cause}"), lines


def test_faults_of_the_embeddings_are_named(made):
    net, run, folder = made
    right, prepared = run(drawn(COUNT)), PREPROCESSING(drawn(COUNT))
    assert judged(folder, network(net, prepared))[-1] == (
        "fault: no normalisation: embeddings are not of length 1"
    )
    swapped = right[[1, 0, *range(2, COUNT)]]
    for rows in (right[::-1], swapped):
        assert judged(folder, rows)[-1].startswith("fault: rows permuted: ")
    both = judged(folder, network(net, prepared[:, ::-1]))[-1]
    assert both.startswith("fault: no normalisation: ") and "; and colour order: " in both
    draws = np.random.default_rng(0).normal(size=right.shape)
    noise = draws / np.linalg.norm(draws, axis=1, keepdims=True)
    assert judged(folder, noise)[-1].startswith("fault: weights not loaded")
    coarse = right + 0.2 * noise
    coarse /= np.linalg.norm(coarse, axis=1, keepdims=True)
    assert judged(folder, coarse)[-1].startswith("fault: int8 too coarse: rounding")


@pytest.mark.parametrize(
    "cause, values",
    [
        ("variances are lost", {"_variance": 1.0}),
        ("means and variances", {"_variance": 1.0, "_mean": 0.0}),
        ("all its values", {"_variance": 1.0, "_mean": 0.0, "weight": 1.0, "bias": 0.0}),
    ],
)
def test_lost_batch_norms_are_named(made, cause, values):
    _, _, folder = made
    net = trained()
    for norm in (net.first[1], net.second[1], net.embed[2]):
        for name, value in values.items():
            getattr(norm, name).set_value(np.full(getattr(norm, name).shape, value, np.float32))
    rows = network(net, PREPROCESSING(drawn(COUNT)))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    assert judged(folder, rows)[-1].startswith("fault: BatchNorm: ")


def test_coarse_bits_are_named(made):
    net, _, folder = made
    with of_kit.rounding(net, of_kit.to_bits(3)):
        rows = network(net, PREPROCESSING(drawn(COUNT)))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    assert judged(folder, rows)[-1].startswith("fault: int8 too coarse")


class Loud(Net):
    def forward(self, images):
        return super().forward(images) * 1000.0


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_numbers_beyond_float16_are_named_where_the_network_has_them(made, tmp_path, value):
    _, run, folder = made
    rows = run(drawn(COUNT))
    rows[3] = value
    cause = "mean and scale: pixels were normalised before" if value == 0 else "not a number"
    line = judged(folder, rows)[-1]
    assert line.startswith(f"fault: {cause}") and line.endswith("(1 of 20 rows)")
    loud = Loud()
    loud.eval()
    kit = make_kit(loud, PREPROCESSING, pictures_of(), flip=False)
    kit.write(tmp_path / "kit", None, "nothing")
    assert judged(tmp_path / "kit", rows)[-1].startswith("fault: float16 overflow: numbers inside")


def test_files_that_are_no_such_embeddings_are_refused_in_one_line(made):
    folder = made[2]
    rows = np.load(folder / "reference.npy")
    np.save(folder / "short.npy", rows[:7])
    np.save(folder / "doubles.npy", rows.astype(np.float64))
    np.save(folder / "turned.npy", np.asfortranarray(rows))
    (folder / "cut.npy").write_bytes((folder / "reference.npy").read_bytes()[:-5])
    (folder / "short.f32").write_bytes(rows[:7].tobytes())
    (folder / "empty.f32").write_bytes(b"")
    (folder / "plain.f32").write_bytes(rows.tobytes())
    wrong, few = (
        "must be float32 [20, 32], it is of another type or shape",
        "must have 20 x 32 float32 numbers, has",
    )
    expected = {
        "short.npy": wrong,
        "doubles.npy": wrong,
        "turned.npy": wrong,
        "cut.npy": f"{few} 638.75",
        "short.f32": f"{few} 224",
        "empty.f32": f"{few} 0",
    }
    for name, message in expected.items():
        assert printed(folder, name) == ([f"fault: size: {folder / name}: {message}"], 1)
    assert printed(folder, "plain.f32")[0][-1] == "pass: as in float32"
    assert printed(folder, "none.npy") == ([f"error: {folder / 'none.npy'}: cannot be read"], 2)


def test_the_network_stays_as_it_was():
    net = trained()
    before = {name: value.numpy() for name, value in net.state_dict().items()}
    make_kit(net, PREPROCESSING, pictures_of(), flip=True)
    assert not net.training and not any(layer.training for layer in net.sublayers())
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name])
    assert not any(layer._forward_pre_hooks or layer._forward_post_hooks for layer in net.sublayers(True))


def test_image_and_mirror_image_belong_together_where_the_threshold_is_of_both(tmp_path):
    net = trained()
    kit = make_kit(net, PREPROCESSING, pictures_of(), flip=True)
    kit.write(tmp_path / "kit", 0.5, "people")
    alone, mirrored = (network(net, PREPROCESSING(x)) for x in (drawn(COUNT), drawn(COUNT)[..., ::-1]))
    alone, mirrored = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (alone, mirrored))
    both = alone + mirrored
    assert judged(tmp_path / "kit", both / np.linalg.norm(both, axis=1, keepdims=True))[-1].startswith("pass")
    assert judged(tmp_path / "kit", alone)[-1].startswith("fault: mirror left out")


@pytest.mark.parametrize("channels", ["RGB", "BGR", "grey", "2"])
def test_the_files_have_the_pictures(tmp_path, monkeypatch, channels):
    monkeypatch.setattr(cv2, "imwrite", lambda *_: False)  # as on a full disk
    count = {"grey": 1, "2": 2}.get(channels, 3)
    preprocessing = replace(PREPROCESSING, shape=(count, 24, 24), channels=channels)
    kit = make_kit(trained(count), preprocessing, pictures_of(4, count), flip=False)
    kit.write(tmp_path / "kit", None, "nothing")
    np.testing.assert_array_equal(np.load(tmp_path / "kit" / "samples.npy"), drawn(4, count))
    if channels == "2":
        assert not (tmp_path / "kit" / "pictures").exists()
        return
    for number, sample in enumerate(drawn(4, count)):
        read = cv2.imread(str(tmp_path / "kit" / "pictures" / f"{number:04d}.png"), cv2.IMREAD_UNCHANGED)
        read = read.reshape(24, 24, count).transpose(2, 0, 1)
        np.testing.assert_array_equal(read[::-1] if channels == "RGB" else read, sample)


def test_samples_that_are_no_pictures(tmp_path):
    paddle.seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(60, SIZE), nn.ReLU(), nn.Linear(SIZE, SIZE))
    net.eval()
    for linear in (net[1], net[3]):  # without a bias no scale would be wrong
        linear.bias.set_value(paddle.randn([SIZE]))
    preprocessing = Preprocessing((20, 3), "float32", None, 1.0, 0.5)
    samples = np.random.default_rng(0).normal(size=(COUNT, 20, 3)).astype(np.float32)
    out = tmp_path / "out"
    kit = KitPictures(samples, np.empty((0, 3), np.int64), "numbers")
    facts = export(net, out, preprocessing=preprocessing, formats=["paddle"], kit=kit)
    run = open_graph(out, facts["files"]["paddle"])
    assert judged(out / "kit", run(samples))[-1] == "pass: as in float32"
    turned = np.ascontiguousarray(samples.transpose(0, 2, 1).reshape(samples.shape))
    for cause, given in {"layout": turned, "mean: it is not": samples + 1, "scale": samples * 2 - 1}.items():
        assert judged(out / "kit", run(given))[-1].startswith(f"fault: {cause}")
    assert judged(out / "kit", 0 * run(samples))[-1].startswith("fault: zeros: ")
    assert "kit/samples.npy" in (out / "README.txt").read_text()


# ---- which pictures


class Pairs(PairSet):
    name = "pairs"
    image_shape = (1, 2, 2)

    def __init__(self, count=100, bad=(), black=()):
        self.num_images, self.bad, self.black = 2 * count, bad, black
        self.pairs = np.arange(2 * count).reshape(count, 2)
        self.same = np.arange(count) < count // 4

    def image(self, index):
        if index in self.bad:
            raise CorruptImageError(f"image {index}: not an image")
        return np.full(self.image_shape, 0 if index in self.black else 10 + index, np.uint8)


def numbers_of(chosen):
    return chosen.samples[:, 0, 0, 0].astype(int) - 10


def test_half_of_the_pairs_are_of_one_class():
    chosen = choose(eval_set(Pairs()), 40)
    numbers = numbers_of(chosen)
    assert len(numbers) == 40 and chosen.title == "pairs"
    assert chosen.pairs.shape == (20, 3) and chosen.pairs[:, 2].sum() == 10
    for first, second, same in chosen.pairs.tolist():
        assert numbers[second] == numbers[first] + 1 and same == (numbers[first] < 50)
    everything = choose(eval_set(Pairs(5)), 200)
    assert len(everything.samples) == 10 and everything.pairs[:, 2].tolist() == [1, 0, 0, 0, 0]


def test_corrupt_and_black_pictures_are_left_out_with_their_pairs():
    chosen = choose(eval_set(Pairs(5, bad=(0,), black=(5,))), 200)
    assert numbers_of(chosen).tolist() == [1, 2, 3, 4, 6, 7, 8, 9]
    assert chosen.pairs.tolist() == [[1, 2, 0], [4, 5, 0], [6, 7, 0]]


class Labelled(Dataset):
    image_shape = (1, 2, 2)
    labels = np.array([2, 0, 1, 0, 2, 1, 3])
    num_classes = 4

    def sample(self, index, epoch):
        return np.full(self.image_shape, 10 + index, np.uint8)


class Searched(IdentificationSet, Pairs):
    identities = Labelled.labels
    gallery, probe = np.array([0, 1]), np.array([2, 3])

    def __init__(self):
        self.num_images, self.bad, self.black = 7, (), ()


class Templates(TemplatePairs, Pairs):
    identity_of = None

    def __init__(self):
        super().__init__(4)
        self.template = self.media = np.arange(8) // 2
        self.pairs, self.same = np.array([[0, 1], [2, 3]]), np.array([True, False])


@pytest.mark.parametrize("data", [Labelled(), Searched()])
def test_samples_of_known_classes_make_pairs(data):
    chosen = choose(eval_set(data), 200)
    assert numbers_of(chosen).tolist() == [0, 1, 2, 3, 4, 5]  # class 3 has one sample
    labels = Labelled.labels[numbers_of(chosen)]
    assert len(chosen.pairs) == 6 and chosen.pairs[:, 2].sum() == 3
    assert all((labels[first] == labels[second]) == same for first, second, same in chosen.pairs.tolist())
    assert len(choose(eval_set(data), 4).samples) == 4


def test_templates_of_nobody_known_make_no_pairs():
    chosen = choose(eval_set(Templates()), 6)
    assert numbers_of(chosen).tolist() == [0, 1, 2, 4, 5, 7] and chosen.pairs.shape == (0, 3)


# ---- of a run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with contextlib.redirect_stdout(io.StringIO()), pictures.drawn():
        Entry(TINY, [f"Global.output_dir={folder}"]).train()
    setup()  # closes train.log
    return folder


def exported(run, *overrides):
    return Entry(TINY, [f"Global.output_dir={run}", "Export.formats=[paddle]", *overrides]).export()


def test_a_run_exports_pictures_of_its_main_set_and_says_so(run):
    facts = exported(run, "Export.kit=30")
    text = (run / "export" / "README.txt").read_text()
    assert facts["kit"] == {"folder": "kit", "samples": 27, "of": "noise pairs"}  # pairs share some
    assert "27 images are your own data, of noise pairs" in text and "Export.kit=0 leaves the kit out" in text
    assert len(list((run / "export" / "kit" / "pictures").iterdir())) == 27
    exported(run, "DataLoader.Eval.dataset=null")
    assert "of Synthetic" in (run / "export" / "README.txt").read_text()


def test_no_pictures_leave_the_house_where_the_kit_is_left_out(run):
    (run / "export" / "kit").mkdir(parents=True, exist_ok=True)
    facts = exported(run, "Export.kit=0")
    assert facts["kit"] is None and not (run / "export" / "kit").exists()
    assert "kit" not in (run / "export" / "README.txt").read_text()
    allowed = {".json", ".pdiparams", ".txt", ".md", ".pdmodel", ".info"}  # the last two of Paddle 2.6
    assert {path.suffix for path in (run / "export").iterdir()} <= allowed


@pytest.mark.parametrize(
    "override, message",
    [
        ("DataLoader.Eval.dataset={name: PairList, list: nowhere/pairs.txt, size: [12, 10]}", "nowhere"),
        ("DataLoader.Eval.dataset.image_shape=[1, 20, 10]", r"trained on \[1, 12, 10\]"),
    ],
)
def test_an_export_whose_pictures_are_not_here_goes_without_a_kit_and_says_why(
    run, caplog, override, message
):
    cfg = Entry(TINY, [f"Global.output_dir={run}", override]).config
    assert kit_pictures(cfg, Checkpoint.open(checkpoint(run))) is None
    assert "Export.kit: the export goes without its kit" in caplog.text
    assert re.search(message, caplog.text)


def test_a_kit_is_replaced_but_not_with_files_of_others(tmp_path):
    net, out = trained(), tmp_path / "out"
    facts = {"preprocessing": PREPROCESSING, "formats": ["paddle"], "kit": pictures_of()}
    export(net, out, **facts)
    (out / "kit" / "mine.npy").write_bytes(b"")
    export(net, out, **facts)
    assert not (out / "kit" / "mine.npy").exists()
    (out / "kit" / "pictures" / "holiday.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"out: holds other files \(kit/pictures/holiday.png\)"):
        export(net, out, **facts)
