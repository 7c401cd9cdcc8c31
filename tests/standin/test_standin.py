"""Trainings on a stand-in for an accelerator: the numbers of the CPU to the last bit, by the way that a device takes.

standin.cc is a plug-in for Paddle's CPU wheel. Its memory starts as NaN and ends the process when the host touches it, and
a queued copy is done as late as may be. So these trainings also show that nothing is read before it is written, nothing
behind the device's back, and no source changed too early.
"""

import json
import os
import signal

import cv2
import numpy as np
import pytest

from tests.launch import ROOT, launch, run_python

TINY = ROOT / "tests/tiny.yaml"
CASES = ROOT / "tests/standin/run_cases.py"
STEPS = os.environ.get("PLSC_TEST_STANDIN_STEPS", "3")  # 20 show the same
THE_WAY_OF_DEVICES = {"FLAGS_use_stride_kernel": "0", "PLSC_KERNELS": "0"}
SOME = ["plain", "sampled", "host bank", "AdamW, clipped", "SyncBN", "several sets", "teacher"]


def run_cases(device, folder, ranks, *names, **env):
    """Train the cases in new processes on a device -> the folder of each."""
    env = {**THE_WAY_OF_DEVICES, "STANDIN_CARDS": str(ranks), **env}
    folder.mkdir()
    if ranks == 1:
        run_python(CASES, device, folder, STEPS, *names, cwd=folder, timeout=600, **env)
    else:
        launch(CASES, ranks, folder, device, folder, STEPS, *names, timeout=600, real=True, **env)
    return {path.parent.name: path.parent for path in folder.glob("*/metrics.jsonl")}


def losses(folder):
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "loss" in row]


def arrays(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.glob("checkpoints/*/*.safetensors")
    }


@pytest.mark.parametrize(
    ("ranks", "names"), [(1, []), (2, [*SOME, "compatible", "evaluated"]), (4, SOME[:3])]
)
def test_cards_compute_the_bits_of_the_cpu(ranks, names, plugin, tmp_path):
    """Every head, bank, optimizer and part on one card; on several those that do something else there."""
    names = [] if STEPS == "20" and ranks < 4 else names
    on_cards = run_cases("standin", tmp_path / "cards", ranks, *names, **plugin)
    on_cpu = run_cases("cpu", tmp_path / "cpu", ranks, *names)
    assert on_cards.keys() == on_cpu.keys() and len(on_cpu) >= len(names) >= 0 and on_cpu
    for name, folder in on_cpu.items():
        assert len(losses(folder)) == int(STEPS) and np.isfinite(losses(folder)).all(), name
        assert losses(on_cards[name]) == losses(folder), name
        assert arrays(folder) and arrays(on_cards[name]) == arrays(folder), name


IMAGES = 12 * 12 * 10  # bytes of the 12 pictures of a step
LABELS = 12 * 8
KEYS = 12 * 2 * 8  # for dropout, of each sample
FLAGS = 3 * 8  # what the parts tell the other ranks
OUT = 8 * 8  # the five numbers of a step, and the flags


@pytest.mark.parametrize("case", ["plain", "AdamW, clipped", "sampled"])
def test_a_step_copies_the_batch_in_and_the_verdict_out_and_waits_once(case, plugin, tmp_path):
    """Counted by the plug-in; operators without a kernel, which Paddle copies for, are left out by their names."""
    run_cases("standin", tmp_path / "cards", 1, case, PLSC_TEST_COUNT="1", **plugin)
    for step in range(2, int(STEPS) + 1):
        counted = json.loads((tmp_path / f"cards/{case}/rank-0-step-{step}.json").read_text())
        operators = counted.pop("operators")
        assert {"conv2d", "where"} <= operators.keys()
        counted.pop("on_device")
        copies, copied = counted.pop("to_device")
        drawn = copied - IMAGES - LABELS - KEYS - FLAGS  # the classes of the step, int64
        assert (copies, drawn) == (4, 0) if case != "sampled" else copies == 5 and 0 < drawn <= 23 * 8
        assert counted == {"to_host": [1, OUT], "waits": [1, 0]}


# -- as a user starts it --------------------------------------------------------------------------------------------------------


def train(folder, *overrides, ranks=None, check=True, **env):
    """Train into folder/output by the command of a user."""
    verb = ["run", "--nproc_per_node", str(ranks), "train"] if ranks else ["train"]
    common = ["Global.max_steps=4", "Checkpoint.every_steps=2", "DataLoader.Eval.dataset=null"]
    command = ["-m", "plsc", *verb, "-c", TINY, "-o", *common, "Global.output_dir=output", *overrides]
    folder.mkdir(exist_ok=True)
    done = run_python(*command, cwd=folder, check=check, **env)
    return done.returncode, done.stdout + done.stderr


def test_a_run_goes_on_from_the_cpu_to_a_card_and_back(plugin, tmp_path):
    mixed, cpu = tmp_path / "mixed", tmp_path / "cpu"
    for part, (kind, env) in enumerate([("cpu", {}), ("standin", plugin), ("cpu", {})], 1):
        more = ["Global.resume=true", f"Global.max_steps={2 * part}", f"Global.device={kind}"]
        train(mixed, *more, **THE_WAY_OF_DEVICES, **env)
    train(cpu, "Global.max_steps=6", **THE_WAY_OF_DEVICES)
    last = f"checkpoints/step-{6:08d}/backbone.safetensors"
    assert arrays(mixed / "output")[last] == arrays(cpu / "output")[last]


FACES = """
Global: {max_steps: 4, output_dir: output}
Model: {widths: [4, 8], blocks: [1, 1], embedding_size: 8}
DataLoader:
  Train: {dataset: {name: ImageFolder, folder: faces, size: [16, 16], channels: grey, hold_out: 0.5}, batch_size: 8}
  Eval: {dataset: {name: ImagePairs, images: faces, size: [16, 16], channels: grey, hold_out: 0.5}}
Export: {kit: 0}
"""
VERBS = [
    ["train", "-c", "faces.yaml"],
    ["eval", "-c", "output"],
    ["predict", "-c", "output", "faces/1/0.png"],
    ["export", "-c", "output"],
    ["gallery", "build", "known.gallery", "-c", "output", "faces", "--review", "off"],
    ["gallery", "search", "known.gallery", "-c", "output", "--threshold", "0.5", "--json", "faces/2/1.png"],
]


def test_each_verb_gives_on_a_card_what_it_gives_on_the_cpu(plugin, tmp_path):
    """Training, evaluation, embeddings, the exported graph, and who is found in a gallery."""
    pixels = np.random.default_rng(0).integers(0, 256, (8, 3, 16, 16), np.uint8)
    found = {}
    for kind, env in (("standin", plugin), ("cpu", {})):
        folder = tmp_path / kind
        for person, pictures in enumerate(pixels):
            (folder / f"faces/{person}").mkdir(parents=True)
            for number, picture in enumerate(pictures):
                cv2.imwrite(str(folder / f"faces/{person}/{number}.png"), picture)
        (folder / "faces.yaml").write_text(FACES)
        said = [
            run_python(
                "-m", "plsc", *verb, "-o", f"Global.device={kind}", cwd=folder, **THE_WAY_OF_DEVICES, **env
            )
            for verb in VERBS
        ]
        files = ["test/results.json", "predict/embeddings.npy", "export/model.onnx"]
        found[kind] = [said[-1].stdout, *((folder / "output" / name).read_bytes() for name in files)]
    assert found["standin"] == found["cpu"] and '"similarity"' in found["cpu"][0]


def test_the_cpu_beside_a_plug_in_is_the_cpu(plugin, tmp_path):
    """A card that is touched has no memory here; ranks have no card of their own."""
    for ranks in (None, 2):
        code, said = train(
            tmp_path / f"{ranks}",
            "Global.device=cpu",
            ranks=ranks,
            STANDIN_CARDS="1",
            STANDIN_BYTES="1",
            **plugin,
        )
        assert code == 0 and "done: nothing evaluated" in said


def test_auto_is_the_kind_of_the_plug_in_with_its_settings(plugin, tmp_path):
    code, said = train(tmp_path, "Global.deterministic=true", **plugin)
    assert code == 0 and "settings of standin: FLAGS_use_stride_kernel=0" in said
    assert "Global.deterministic: Paddle has no such setting for standin" in said
    assert '"device": "standin"' in (tmp_path / "output/card.json").read_text()


@pytest.mark.parametrize(
    ("device", "ranks", "env", "said"),
    [
        ("standin:7", None, {}, "there are 2 visible cards of standin, and this rank would take number 7"),
        ("npu", None, {}, "this Paddle has standin (install paddlepaddle and paddle-custom-npu)"),
        (
            "standin Global.amp={dtype: bfloat16}",
            None,
            {},
            "bfloat16 is none that Paddle's autocast has for standin",
        ),
        ("standin", 3, {}, "3 ranks on this machine, but 2 visible cards: a rank takes one"),
    ],
)
def test_a_card_that_is_not_there_is_refused_in_a_line(device, ranks, env, said, plugin, tmp_path):
    device, *more = device.split(" ", 1)
    code, text = train(tmp_path, f"Global.device={device}", *more, ranks=ranks, check=False, **plugin, **env)
    assert code == 2 and said in text and "Traceback" not in text


def test_a_card_without_memory_is_one_line_with_the_remedy(plugin, tmp_path):
    code, text = train(tmp_path, "Global.device=standin", check=False, STANDIN_BYTES="40000", **plugin)
    assert code == 2 and "Traceback" not in text
    assert (
        "ERROR standin: its memory is used up (0.0 MB by tensors); lower DataLoader.Train.batch_size" in text
    )


FAULTY = "Model={{name: 'tests.faults:FaultyNet', plan: ['{plan}'], marks: '{marks}', embedding_size: 8, widths: [4, 6], blocks: [0, 1], dropout: 0.2}}"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("killed", "rank 1 was killed (signal 9) at step 3; restart 1 from step 2"),
        ("late", "no progress for 3 s: rank 1 is at step 3 in"),
        ("short", "failed at step"),
    ],
)
def test_a_rank_that_fails_the_others_is_restarted_with_them(fault, said, plugin, tmp_path):
    plans = {"killed": "1:3:SIGKILL", "late": "1:3:late", "short": "0:99:late"}
    env = {"STANDIN_PATIENCE": "3"}
    if fault == "short":
        env["STANDIN_SHORT"] = f"1:75:{tmp_path}/mark"
    model = FAULTY.format(plan=plans[fault], marks=tmp_path)
    code, text = train(tmp_path, model, "Global.device=standin", ranks=2, **env, **plugin)
    assert code == 0 and said in text and "newest checkpoint step 4" in text


MEMORY = """
import paddle
from plsc.distributed import accelerator
from plsc.errors import UserError

try:
    accelerator.use("standin")
except UserError as error:
    print(error)
    raise SystemExit(7)
before = accelerator.used_bytes()
tensor = paddle.ones([100_000])
assert accelerator.used_bytes() - before == 400_000 + 384  # in whole 512 bytes
del tensor
assert accelerator.peak_bytes() > accelerator.used_bytes()
accelerator.reset_peak()
assert accelerator.peak_bytes() == accelerator.used_bytes() == before
assert accelerator.total_bytes() is None and accelerator.name() == "standin"
for error in (OSError("a disk"), OSError("CustomDevice error of another kind")):
    try:
        with accelerator.out_of_memory("remedy"):
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


# -- that it finds what it is there to find --------------------------------------------------------------------------------------

PLANTED = """
import ctypes, sys
import numpy as np, paddle
paddle.set_device("standin:1")
what = sys.argv[1]
if what == "read of memory that nobody wrote":
    assert np.isnan(paddle.empty([123_457]).numpy()).all()
elif what == "touch by the host":
    tensor = paddle.ones([1000])
    assert tensor.numpy().sum() == 1000
    ctypes.string_at(tensor.data_ptr(), 4)
else:
    array = np.zeros(100_000, np.float32)
    source = paddle.to_tensor(array, place=paddle.CPUPlace())
    tensor = source._copy_to(paddle.framework._current_expected_place(), False)
    np.from_dlpack(source)[...] = 7.0  # too early
    assert (tensor.numpy() == 7.0).all()
"""


@pytest.mark.parametrize(
    ("bug", "code"),
    [
        ("read of memory that nobody wrote", 0),
        ("touch by the host", -signal.SIGSEGV),
        ("source changed too early", 0),
    ],
)
def test_the_stand_in_shows_a_bug(bug, code, plugin, tmp_path):
    (tmp_path / "planted.py").write_text(PLANTED)
    env = {**plugin, "FLAGS_use_stride_kernel": "0"}
    done = run_python("planted.py", bug, cwd=tmp_path, check=False, **env)
    assert done.returncode == code, done.stderr
