"""plsc import: weights of torch, safetensors and PLSC 2.4 give the network that they came from, and nothing
is passed over."""

import os
import pickle

import numpy as np
import paddle
import pytest
from safetensors.numpy import save_file

from plsc import cli
from plsc.apps.migrate.import_weights import import_weights, match, read_weights
from plsc.backbones.mobilefacenet import MobileFaceNet
from plsc.checkpoint.store import Checkpoint
from plsc.config import load
from plsc.entry import Entry
from plsc.errors import UserError
from plsc.utils.preprocessing import Preprocessing
from tests.apps.migrate.torch_files import numbers, write_torch
from tests.backbones.numpy_layers import scatter
from tests.helpers.bounds import assert_within, rounded
from tests.helpers.checkpoints import full_disk
from tests.helpers.refusals import refusal

MODEL = ["Model.name=MobileFaceNet", "Model.embedding_size=6", "Model.scale=1", "Model.blocks=[1,1,1,1]"]
PREPROCESSING = Preprocessing((3, 20, 16))


@pytest.fixture(scope="module")
def net():
    """Random weights and statistics, each tensor another."""
    net = MobileFaceNet(6, (3, 20, 16), scale=1, blocks=[1, 1, 1, 1])
    scatter(net)
    return net


def plain(net):
    return {name: tensor.numpy() for name, tensor in net.state_dict().items()}


def of_torch(net):
    """The state dict as torch would have it: its names, linear weights [outputs, inputs], and its
    counters."""
    state = {}
    for name, value in plain(net).items():
        place, _, part = name.rpartition(".")
        part = {"_mean": "running_mean", "_variance": "running_var", "_weight": "weight"}.get(part, part)
        state[f"{place}.{part}"] = value.T if value.ndim == 2 else value
        if part == "running_var":
            state[f"{place}.num_batches_tracked"] = np.array(7, np.int64)
    return state


def write(path, state):
    if path.suffix == ".pt":
        return write_torch(path, state)
    if path.suffix == ".safetensors":
        save_file({name: np.ascontiguousarray(value) for name, value in state.items()}, path)
    else:
        path.write_bytes(pickle.dumps(state, 2))
    return str(path)


def run(tmp_path, weights, *overrides, preprocessing=PREPROCESSING):
    return import_weights(weights, load(None, [*MODEL, *overrides]), tmp_path / "out", preprocessing)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("change", [lambda name: name, lambda name: f"module.{name}"])
def test_weights_of_torch_become_the_network(tmp_path, net, suffix, change):
    state = {change(name): value for name, value in of_torch(net).items()}
    said = run(tmp_path, write(tmp_path / f"a{suffix}", state))
    saved = Checkpoint.open(tmp_path / "out")
    found, wanted = saved.arrays("backbone"), plain(net)
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    count = sum(name.endswith("num_batches_tracked") for name in state)
    assert said == (
        f"skipped {count} tensors: torch counts batches there; nothing reads it\n"
        f"done: {len(wanted)} tensors in {tmp_path / 'out'}"
    )
    assert (saved.num_classes, saved.row_width, saved.preprocessing) == (0, 6, PREPROCESSING)
    assert saved.head(0, 0)["centres"].shape == (0, 6)


def test_a_square_linear_weight_is_transposed_by_its_origin_not_its_shape():
    net = paddle.nn.Sequential(paddle.nn.Linear(3, 3), paddle.nn.BatchNorm1D(3))
    square, ours = numbers(3, 3), plain(net)
    paddle_file = {**ours, "0.weight": square}
    torch_file = {name: paddle_file[name] for name in ("0.weight", "0.bias", "1.weight", "1.bias")}
    torch_file.update({"1.running_mean": ours["1._mean"], "1.running_var": ours["1._variance"]})
    assert np.array_equal(match(torch_file, net, "a")[0]["0.weight"], square.T)
    assert np.array_equal(match(paddle_file, net, "a")[0]["0.weight"], square)


def test_without_batch_norm_the_files_ending_shows_whose_linear_weights_it_has():
    net, state = (
        paddle.nn.Sequential(paddle.nn.Linear(3, 3)),
        {"0.weight": numbers(3, 3), "0.bias": numbers(3)},
    )
    for path, wanted in {"a.pdparams": state["0.weight"], "a.pt": state["0.weight"].T}.items():
        assert np.array_equal(match(state, net, path)[0]["0.weight"], wanted)


def test_weights_of_plsc_2_4(tmp_path, net):
    names = {name: f"param_{number}" for number, name in enumerate(plain(net))}
    state = {**plain(net), "head.weight": numbers(6, 50), "StructuredToParameterName@@": names}
    said = run(tmp_path, write(tmp_path / "a.pdparams", state))
    found = Checkpoint.open(tmp_path / "out").arrays("backbone")
    assert all(np.array_equal(found[name], value) for name, value in plain(net).items())
    assert said.splitlines()[:-1] == [
        "skipped 1 tensor: the class centres of PLSC 2.4; the head is not imported",
        "skipped 1 tensor: Paddle's own names of the tensors",
    ]


def test_half_precision_and_other_shapes_of_the_same_numbers(tmp_path):
    slopes = paddle.nn.Sequential(paddle.nn.PReLU(4))
    for given in (np.float16([[[1]], [[2]], [[3]], [[4]]]), np.float16([1, 2, 3, 4])):
        found, _ = match({"0.weight": given}, slopes, "a")
        assert found["0._weight"].dtype == np.float32
        assert found["0._weight"].tolist() == [1, 2, 3, 4]
    bits = write_torch(tmp_path / "a.pt", {"a": np.array([0x3F80, 0xC000], np.uint16)})
    assert read_weights(bits)["a"].tolist() == [1.0, -2.0]


def test_a_state_dict_inside_a_training_checkpoint(tmp_path, net):
    state = of_torch(net)
    path = write_torch(tmp_path / "a.pt", state, wrap=lambda made: {"epoch": 3, "state_dict_backbone": made})
    assert read_weights(path).keys() == state.keys()


def test_the_verbs_work_on_the_folder(tmp_path, net, monkeypatch, capsys):
    weights = write(tmp_path / "a.pt", of_torch(net))
    arguments = [weights, "-o", *MODEL, "--model", "MobileFaceNet", "--size", "20", "16", "--aligned"]
    assert cli.main(["import", *arguments, "--output", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.endswith(f"done: {len(plain(net))} tensors in {tmp_path / 'out'}\n")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 20, 16), np.uint8)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").rename(tmp_path / "moved")
    entry = Entry("moved", ["Export.formats=[paddle]"])
    found, _ = entry.predict(pixels)
    net.eval()

    def unit():
        emb = net(paddle.to_tensor((pixels.astype(np.float32) - 127.5) / 127.5)).numpy()
        return emb / np.linalg.norm(emb, axis=1, keepdims=True)

    assert_within(found, *rounded(net, unit), paths=2)
    exported = entry.export()
    assert exported["embedding_size"] == 6 and exported["preprocessing"]["aligned"] is True


@pytest.mark.parametrize(
    "given, said",
    [
        (["--size", "0", "112"], "--size: Input should be greater than or equal to 1 (got [0, 112])"),
        (["--mean", "nan"], "--mean: Input should be a finite number (got nan)"),
        (["--scale", "0"], "--scale: Input should be greater than 0 (got 0.0)"),
    ],
)
def test_preprocessing_that_cannot_be_is_one_line(tmp_path, capsys, given, said):
    output = str(tmp_path / "out")
    assert cli.main(["import", "a.pt", "--model", "LeNet", "--output", output, *given]) == 2
    assert capsys.readouterr().err == f"ERROR {said}\n"


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"conv_sep.layers.0.weight": None}, "conv_sep.layers.0.weight is not in the file"),
        ({"more.weight": np.zeros(3, np.float32)}, "more.weight is not in MobileFaceNet"),
        (
            {"conv_sep.layers.1.bias": np.zeros(7, np.float32)},
            "conv_sep.layers.1.bias is [7] in the file, [512] in MobileFaceNet",
        ),
        (
            {"module.conv_sep.layers.1.bias": np.zeros(512, np.float32)},
            "module.conv_sep.layers.1.bias is not in MobileFaceNet",
        ),
    ],
)
def test_each_difference_is_named(tmp_path, net, changes, said):
    state = {name: value for name, value in {**of_torch(net), **changes}.items() if value is not None}
    weights = write(tmp_path / "a.pt", state)
    assert refusal(run, tmp_path, weights) == f"{weights}: {said}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pt"]


def test_a_file_of_another_network(tmp_path):
    assert refusal(
        run, tmp_path, write(tmp_path / "a.pt", {"conv9.weight": numbers(3), "conv9.bias": numbers(3)})
    ) == (
        f"{tmp_path / 'a.pt'}: none of its 2 tensors is one of MobileFaceNet's (the first is "
        "conv9.weight); name the model that they belong to"
    )


@pytest.mark.parametrize(
    "file, data, said",
    [
        ("a.safetensors", b"123", "the file is damaged; fetch it again"),
        (
            "a.pdparams",
            pickle.dumps([1, 2]),
            "contains no named tensors; torch's format before 1.6 is not read",
        ),
        (
            "a.pdparams",
            pickle.dumps(print),
            "refused: the file asks for builtins.print; none of it was run",
        ),
        (
            "a.pt",
            b"\x08\x0a",
            "is not a weights file (a .pt of torch.save, .safetensors, or .pdparams",
        ),
        (
            "a.onnx",
            b"\x08\x0a",
            "is an ONNX file, not a weights file (a .pt of torch.save, .safetensors",
        ),
    ],
)
def test_files_that_hold_no_weights(tmp_path, file, data, said):
    (tmp_path / file).write_bytes(data)
    assert said in refusal(run, tmp_path, str(tmp_path / file))


def test_what_is_there_is_not_replaced(tmp_path, net):
    weights = write(tmp_path / "a.pt", of_torch(net))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    assert (
        refusal(run, tmp_path, weights)
        == f"{tmp_path / 'out'}: exists already; name a new folder for what is imported"
    )
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/out: cannot be written: (Not a directory|File exists)"):
        import_weights(weights, load(None, MODEL), tmp_path / "file" / "out", PREPROCESSING)


def test_a_full_disk_leaves_nothing_and_a_second_try_works(tmp_path, net):
    weights = write(tmp_path / "a.pt", of_torch(net))
    with full_disk():
        line = refusal(run, tmp_path, weights)
    assert line == f"{tmp_path}/out: cannot be written: No space left on device; make space, and try again"
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]
    assert "done: " in run(tmp_path, weights)


def test_weights_of_a_run_are_sent_to_its_config_and_to_init_from(tmp_path, net):
    made = tmp_path / "output" / "checkpoints" / "step-00000004"
    import_weights(write(tmp_path / "a.pt", of_torch(net)), load(None, MODEL), made, PREPROCESSING)
    said = refusal(run, tmp_path, str(made / "backbone.safetensors"))
    assert said.endswith(f"with -c {tmp_path}/output, or start a training with it by Global.init_from={made}")
    os.replace(made, tmp_path / "imported")
    said = refusal(run, tmp_path, str(tmp_path / "imported" / "backbone.safetensors"))
    assert f"with -c {tmp_path}/imported, or start" in said


def test_a_manifest_of_another_program_changes_nothing(tmp_path, net):
    (tmp_path / "manifest.json").write_text('{"name": "app"}')
    assert read_weights(str(write(tmp_path / "a.pt", of_torch(net))))


def test_a_run_as_weights_is_sent_to_init_from(tmp_path):
    said = refusal(read_weights, str(tmp_path))
    assert said.endswith(f"begin with a plsc run by Global.init_from={tmp_path}")
