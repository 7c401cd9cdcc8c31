"""What a user sees who computes on cards: commands, mistakes, ranks that fail; and that the stand-in shows
bugs."""

import json
import signal

import cv2
import numpy as np
import pytest

from tests.helpers.launch import run_python
from tests.standin.test_bits import THE_WAY_OF_DEVICES, TINY, arrays

pytestmark = pytest.mark.slow


def training(*overrides):
    """The words of a training of four steps into output, but for what the overrides say."""
    common = ["Global.max_steps=4", "Checkpoint.every_steps=2", "DataLoader.Eval.dataset=null"]
    return ["train", "-c", str(TINY), "-o", *common, "Global.output_dir=output", *overrides]


def train(folder, *overrides, ranks=None, check=True, **env):
    """Train into folder/output by the command of a user."""
    verb = ["run", "--nproc_per_node", str(ranks)] if ranks else []
    folder.mkdir(exist_ok=True)
    done = run_python("-m", "plsc", *verb, *training(*overrides), cwd=folder, check=check, **env)
    return done.returncode, done.stdout + done.stderr


RUN_VERBS = """
import json, sys
from plsc import cli
for verb in json.loads(sys.argv[1]):
    assert cli.main(verb) <= 1, verb  # 1: nobody was recognised
"""


def test_a_run_goes_on_from_the_cpu_to_a_card_and_back(plugin, tmp_path):
    untouched = {**plugin, "STANDIN_BYTES": "1"}  # a card that is touched has no memory
    for part, (kind, env) in enumerate([("cpu", untouched), ("standin", plugin)], 1):
        more = ["Global.resume=true", f"Global.max_steps={2 * part}", f"Global.device={kind}"]
        train(tmp_path, *more, **THE_WAY_OF_DEVICES, **env)
    end = ["Global.max_steps=6", "Global.device=cpu"]
    verbs = [training("Global.resume=true", *end), training("Global.output_dir=whole", *end)]
    run_python("-c", RUN_VERBS, json.dumps(verbs), cwd=tmp_path, **THE_WAY_OF_DEVICES)
    last = f"checkpoints/step-{6:08d}/backbone.safetensors"
    assert arrays(tmp_path / "output")[last] == arrays(tmp_path / "whole")[last]


FACES = """
Global: {max_steps: 4, output_dir: output}
Model: {widths: [4, 8], blocks: [1, 1], embedding_size: 8}
DataLoader:
  Train: {dataset: {name: ImageFolder, folder: faces, size: [16, 16], channels: grey, hold_out: 0.5}, batch_size: 8}
  Eval: {dataset: {name: ImagePairs, images: faces, size: [16, 16], channels: grey, hold_out: 0.5}}
"""
VERBS = [
    ["train", "-c", "faces.yaml"],
    ["eval", "-c", "output"],
    ["predict", "-c", "output", "faces/1/0.png"],
    ["gallery", "build", "known.gallery", "-c", "output", "faces"],
    ["gallery", "search", "known.gallery", "-c", "output", "faces/2/1.png"],
]


@pytest.fixture(scope="module")
def faces(plugin, tmp_path_factory):
    """Run the verbs on a card and on the CPU, all in one process -> of each kind its folder, and what the
    last verb said."""
    pixels = np.random.default_rng(0).integers(0, 256, (8, 3, 16, 16), np.uint8)
    done = {}
    for kind, env in (("standin", plugin), ("cpu", {})):
        folder = tmp_path_factory.mktemp(kind)
        for person, pictures in enumerate(pixels):
            (folder / f"faces/{person}").mkdir(parents=True)
            for number, picture in enumerate(pictures):
                cv2.imwrite(str(folder / f"faces/{person}/{number}.png"), picture)
        (folder / "faces.yaml").write_text(FACES)
        verbs = json.dumps([[*verb, "-o", f"Global.device={kind}"] for verb in VERBS])
        said = run_python("-c", RUN_VERBS, verbs, cwd=folder, **THE_WAY_OF_DEVICES, **env).stdout
        done[kind] = folder, said.splitlines()[-1]
    return done


def test_each_verb_gives_on_a_card_what_it_gives_on_the_cpu(faces):
    """Training, evaluation, embeddings, and who is found in a gallery. Exports are computed on the CPU."""
    found = {}
    for kind, (folder, said) in faces.items():
        files = ["test/results.json", "predict/embeddings.npy"]
        found[kind] = [said, *((folder / "output" / name).read_bytes() for name in files)]
    assert found["standin"] == found["cpu"] and "faces/2/1.png: " in found["cpu"][0]


def test_the_cpu_beside_a_plug_in_is_the_cpu(plugin, tmp_path):
    """A card that is touched has no memory here; ranks have no card of their own."""
    env = {**plugin, "STANDIN_CARDS": "1", "STANDIN_BYTES": "1"}
    code, said = train(tmp_path, "Global.device=cpu", ranks=2, **env)
    assert code == 0 and "done: nothing evaluated" in said


def test_auto_is_the_kind_of_the_plug_in_with_its_settings(plugin, tmp_path):
    code, said = train(tmp_path, "Global.deterministic=true", **plugin)
    assert code == 0 and "settings of standin: FLAGS_use_stride_kernel=0" in said
    assert "Global.deterministic: Paddle has no such setting for standin" in said


REFUSED = {
    "Global.device=standin:7": "there are 2 visible cards of standin, and this rank would take number 7",
    "Global.device=npu": "this Paddle has standin (install paddlepaddle and paddle-custom-npu)",
    "Global.amp={dtype: bfloat16}": "bfloat16 is none that Paddle's autocast has for standin",
}
TRY_VERBS = """
import json, sys
from plsc import cli
for verb in json.loads(sys.argv[1]):
    print(cli.main(verb), file=sys.stderr)
"""


def test_a_card_that_is_not_there_is_refused_in_a_line(plugin, tmp_path):
    verbs = json.dumps([training("Global.device=standin", override) for override in REFUSED])
    text = run_python("-c", TRY_VERBS, verbs, cwd=tmp_path, **plugin).stderr
    errors, codes = text.splitlines()[::2], text.splitlines()[1::2]
    assert codes == ["2"] * len(REFUSED) and len(errors) == len(REFUSED), text
    assert all(line in error for line, error in zip(REFUSED.values(), errors)), text


@pytest.mark.parametrize(
    ("ranks", "env", "said"),
    [
        (3, {}, "3 ranks on this machine, but 2 visible cards: a rank takes one"),
        (
            2,
            {"STANDIN_COLLECTIVES": "0"},
            "ERROR standin: its plug-in has no CCLGetUniqueId, which several ranks need",
        ),
    ],
)
def test_ranks_without_cards_are_refused_in_a_line(ranks, env, said, plugin, tmp_path):
    code, text = train(tmp_path, "Global.device=standin", ranks=ranks, check=False, **plugin, **env)
    assert code == 2 and said in text and "Traceback" not in text


def test_a_card_without_memory_is_one_line_with_the_remedy(plugin, tmp_path):
    code, text = train(tmp_path, "Global.device=standin", check=False, STANDIN_BYTES="40000", **plugin)
    assert code == 2 and "Traceback" not in text
    assert (
        "ERROR standin: its memory is used up (0.0 MB by tensors); lower DataLoader.Train.batch_size" in text
    )


MEMORY = """
import paddle
from benchmarks import measure
from plsc.distributed import device
from plsc.errors import UserError

try:
    device.use("standin")
except UserError as error:
    print(error)
    raise SystemExit(7)
before = measure.used_bytes()
tensor = paddle.ones([100_000])
assert measure.used_bytes() - before == 400_000 + 384  # in whole 512 bytes
del tensor
assert measure.peak_bytes() > measure.used_bytes()
measure.reset_peak()
assert measure.peak_bytes() == measure.used_bytes() == before
assert device.total_bytes() is None and device.name() == "standin"
for error in (OSError("a disk"), OSError("CustomDevice error of another kind")):
    try:
        with device.explained("remedy"):
            raise error
    except OSError as raised:
        assert raised is error
"""


@pytest.mark.parametrize("settings", [{}, {"FLAGS_use_stride_kernel": "0"}])
def test_the_memory_is_the_cards_and_settings_that_came_too_late_are_refused(settings, plugin, tmp_path):
    (tmp_path / "memory.py").write_text(MEMORY)
    done = run_python("memory.py", cwd=tmp_path, check=False, **plugin, **settings)
    assert done.returncode == (0 if settings else 7), done.stderr
    late = "but Paddle was imported without its settings; put FLAGS_use_stride_kernel=0 into the environment"
    assert settings or late in done.stdout


# -- that it finds what it is there to find
# --------------------------------------------------------------------------------------

PLANTED = """
import ctypes
import numpy as np, paddle
paddle.set_device("standin:1")

# A read of memory that nobody wrote.
assert np.isnan(paddle.empty([123_457]).numpy()).all()

# A source that is changed too early.
array = np.zeros(100_000, np.float32)
source = paddle.to_tensor(array, place=paddle.CPUPlace())
tensor = source._copy_to(paddle.framework._current_expected_place(), False)
np.from_dlpack(source)[...] = 7.0
assert (tensor.numpy() == 7.0).all()

# A touch by the host.
tensor = paddle.ones([1000])
assert tensor.numpy().sum() == 1000
print("so far", flush=True)
ctypes.string_at(tensor.data_ptr(), 4)
"""


def test_the_stand_in_shows_bugs(plugin, tmp_path):
    env = {**plugin, "FLAGS_use_stride_kernel": "0"}
    done = run_python("-c", PLANTED, cwd=tmp_path, check=False, **env)
    assert done.returncode == -signal.SIGSEGV and done.stdout.startswith("so far\n"), done.stderr
