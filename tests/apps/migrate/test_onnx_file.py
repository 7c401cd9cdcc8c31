"""plsc import of ONNX: norms inside of convolutions give the same embeddings, and nothing of another network
is taken."""

import sys

import numpy as np
import pytest

from plsc.apps.migrate.import_weights import match
from plsc.apps.migrate.onnx_file import read_onnx
from plsc.errors import UserError
from tests.apps.migrate.onnx_files import Small, embed, nodes_of, write_onnx
from tests.backbones.numpy_layers import scatter
from tests.helpers.bounds import assert_within, of_network

pytest.importorskip("onnx", reason="the extra export is not installed")
PIXELS = np.random.default_rng(0).integers(0, 256, (3, 3, 112, 112), np.uint8)


def small(bias=True):
    net = Small(bias=bias)
    scatter(net)
    return net


def found(path, net):
    """The network with the weights of the file."""
    arrays, _ = match(read_onnx(path, net), net, path)
    state = net.state_dict()
    assert arrays.keys() == state.keys()
    for name, array in arrays.items():
        state[name].set_value(array)
    return net


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("fold", [True, False])
def test_the_network_of_a_file_gives_the_embeddings_of_its_own(tmp_path, bias, fold):
    net = small(bias)
    path = write_onnx(tmp_path / "a.onnx", *nodes_of(net, fold))
    want, bound = of_network(net, (PIXELS.astype(np.float32) - 127.5) / 127.5)
    again = found(path, Small(bias=bias))
    assert_within(embed(again, PIXELS), want, bound, paths=2)
    kept = [
        name for name, layer in again.named_sublayers() if "_mean" in dir(layer) and layer._mean.numpy().any()
    ]
    assert kept == (["bn1", "features"] if fold else ["bn", "bn1", "bn2", "bn3", "features"])


def test_numbers_that_stand_behind_other_nodes(tmp_path):
    net = small()
    nodes, constants = nodes_of(net)
    constants["plain"] = constants.pop("slopes").reshape(4)
    constants["twice"] = constants.pop("fc.bias")
    nodes.insert(0, ["Unsqueeze", ["plain"], "slopes", {"axes": [1, 2]}])
    nodes.insert(0, ["Identity", ["twice"], "fc.bias", {}])
    again = found(write_onnx(tmp_path / "a.onnx", nodes, constants), Small())
    assert np.array_equal(again.prelu._weight.numpy(), net.prelu._weight.numpy())
    assert np.array_equal(again.fc.bias.numpy(), net.fc.bias.numpy())


def without(op):
    def change(nodes, constants):
        gone = next(node for node in nodes if node[0] == op)
        nodes.remove(gone)
        for node in nodes:
            node[1] = [gone[1][0] if name == gone[2] else name for name in node[1]]

    return change


def longer(op, *inputs):
    def change(nodes, constants):
        constants["more"] = np.ones((6, 6), np.float32)
        nodes.append([op, [nodes[-1][2], *inputs], "last", {}])

    return change


def shorter(nodes, constants):
    del nodes[-2:]


def strides(nodes, constants):
    nodes[0][3]["strides"] = [8, 8]


def default(nodes, constants):
    del nodes[0][3]["strides"]


def epsilon(nodes, constants):
    nodes[-1][3]["epsilon"] = 1e-3


def words(nodes, constants):
    constants["0"] = np.array(["a"], object)


def wide(nodes, constants):
    name = nodes[0][1][1]
    constants[name] = constants[name][:, :, :8]


def outside(nodes, constants):
    nodes[0][1][1] = "pixels"


@pytest.mark.parametrize(
    "change, said",
    [
        (
            without("PRelu"),
            "is no Small: where prelu belongs, the file has Conv Conv_2; give another --model",
        ),
        (longer("Sigmoid"), "is no Small: Sigmoid Sigmoid_9 is left over; give another --model"),
        (longer("Add", "more"), "is no Small: Add Add_9 is left over; give another --model"),
        (longer("MatMul", "more"), "is no Small: MatMul MatMul_9 is left over; give another --model"),
        (shorter, "where fc belongs, the file ends; give another --model"),
        (strides, "is no Small: conv has strides [8, 8]; give another --model"),
        (default, "is no Small: conv has strides [1, 1]; give another --model"),
        (words, "0 has no numbers; give another file"),
        (epsilon, "is no Small: features has epsilon 0.001"),
        (wide, "conv.weight is [4, 3, 8, 16] in the file, [4, 3, 16, 16] in Small"),
        (outside, "the values of pixels are not in the file"),
    ],
)
def test_another_network_is_refused_in_a_line(tmp_path, change, said):
    nodes, constants = nodes_of(small())
    change(nodes, constants)
    with pytest.raises(UserError) as raised:
        found(write_onnx(tmp_path / "a.onnx", nodes, constants), Small())
    line = str(raised.value)
    assert said in line and line.startswith(f"{tmp_path / 'a.onnx'}: ") and "\n" not in line


def test_files_that_are_none(tmp_path, monkeypatch):
    path = tmp_path / "a.onnx"
    path.write_bytes(b"no graph")
    with pytest.raises(UserError, match="a.onnx: is no ONNX file, or is damaged or cut off; fetch it again"):
        read_onnx(str(path), Small())
    write_onnx(path, *nodes_of(small()))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UserError, match="is no ONNX file, or is damaged"):
        read_onnx(str(path), Small())
    with pytest.raises(UserError, match="b.onnx: no such file"):
        read_onnx(str(tmp_path / "b.onnx"), Small())
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UserError, match='ONNX is read by onnx: pip install "plsc.export.'):
        read_onnx(str(path), Small())
