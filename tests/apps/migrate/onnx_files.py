"""Write networks as ONNX files in the way of torch's exporter: batch norms that follow a convolution are
inside of it."""

import numpy as np
import paddle
from paddle import nn


class Small(nn.Layer):
    """A convolution, its norm, slopes, and a residual of a norm and two convolutions; a linear layer and its
    norm."""

    def __init__(
        self, embedding_size: int = 6, image_shape: tuple[int, int, int] = (3, 112, 112), bias: bool = True
    ):
        super().__init__()
        channels, height, width = image_shape
        self.conv = nn.Conv2D(channels, 4, 16, 16, bias_attr=False)
        self.bn = nn.BatchNorm2D(4)
        self.prelu = nn.PReLU(4)
        self.bn1 = nn.BatchNorm2D(4)
        self.conv1 = nn.Conv2D(4, 8, 3, padding=1, bias_attr=False)
        self.bn2 = nn.BatchNorm2D(8)
        self.conv2 = nn.Conv2D(8, 4, 3, padding=1, groups=2, bias_attr=False)
        self.bn3 = nn.BatchNorm2D(4)
        self.fc = nn.Linear(
            4 * (height // 16) * (width // 16), embedding_size, bias_attr=None if bias else False
        )
        self.features = nn.BatchNorm1D(embedding_size)

    def forward(self, images):
        x = self.prelu(self.bn(self.conv(images)))
        x = x + self.bn3(self.conv2(self.bn2(self.conv1(self.bn1(x)))))
        return self.features(self.fc(x.flatten(1)))


def nodes_of(net, fold=True):
    """List the nodes of a Small as [op, inputs, output, attributes], and its constants by name. fold: put
    norms into convolutions."""
    state = {name: tensor.numpy().astype(np.float64) for name, tensor in net.state_dict().items()}
    nodes, constants = [], {}

    def constant(name, value):
        constants[name] = np.float32(value)
        return name

    def norm(name, x):
        parts = [
            constant(f"{name}.{part}", state[f"{name}.{part}"])
            for part in ("weight", "bias", "_mean", "_variance")
        ]
        nodes.append(["BatchNormalization", [x, *parts], f"after {name}", {"epsilon": 1e-5}])
        return f"after {name}"

    def conv(name, of_norm, x):
        layer = getattr(net, name)
        weight = state[f"{name}.weight"]
        padding = [layer._padding] * 4
        about = {"pads": padding, "strides": list(layer._stride), "dilations": [1, 1], "group": layer._groups}
        inputs = [x]
        if fold:
            gain = state[f"{of_norm}.weight"] / np.sqrt(state[f"{of_norm}._variance"] + 1e-5)
            bias = state[f"{of_norm}.bias"] - gain * state[f"{of_norm}._mean"]
            numbers = [constant(f"{len(constants)}", gain[:, None, None, None] * weight)]
            nodes.append(
                ["Conv", [*inputs, *numbers, constant(f"{len(constants)}", bias)], f"after {name}", about]
            )
            return f"after {name}"
        nodes.append(["Conv", [*inputs, constant(f"{name}.weight", weight)], f"after {name}", about])
        return norm(of_norm, f"after {name}")

    x = conv("conv", "bn", "pixels")
    nodes.append(["PRelu", [x, constant("slopes", state["prelu._weight"][:, None, None])], "skip", {}])
    x = conv("conv1", "bn2", norm("bn1", "skip"))
    x = conv("conv2", "bn3", x)
    nodes.append(["Add", [x, "skip"], "sum", {}])
    nodes.append(["Flatten", ["sum"], "flat", {"axis": 1}])
    weight = state["fc.weight"]
    if net.fc.bias is None:
        nodes.append(["MatMul", ["flat", constant("m", weight)], "after fc", {}])
    else:
        inputs = ["flat", constant("fc.weight", weight.T), constant("fc.bias", state["fc.bias"])]
        nodes.append(["Gemm", inputs, "after fc", {"alpha": 1.0, "beta": 1.0, "transB": 1}])
    norm("features", "after fc")
    return nodes, constants


def write_onnx(path, nodes, constants, shape=(3, 112, 112), size=6):
    """Write the file; returns its path as text."""
    from onnx import TensorProto, helper, numpy_helper, save

    pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, [None, *shape])
    output = helper.make_tensor_value_info(nodes[-1][2], TensorProto.FLOAT, [None, size])
    graph = helper.make_graph(
        [
            helper.make_node(op, inputs, [output], name=f"{op}_{number}", **about)
            for number, (op, inputs, output, about) in enumerate(nodes)
        ],
        "network",
        [pixels],
        [output],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6), str(path))
    return str(path)


def embed(net, pixels):
    """Return the embeddings of uint8 pixels in evaluation mode."""
    net.eval()
    return net(paddle.to_tensor((pixels.astype(np.float32) - 127.5) / 127.5)).numpy()
