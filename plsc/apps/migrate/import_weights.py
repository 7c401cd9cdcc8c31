"""Import other programs' weights into a checkpoint folder, for `plsc predict`, `plsc export` and
Global.init_from.

It reads arcface_torch's backbone.pt (any state dict that torch.save wrote), .safetensors, and PLSC 2.4's
.pdparams. It runs no code from the file. The names in the file are mapped to the network's names. It is an
error if a tensor is missing, is not in the network, or has another shape. Try it:

    plsc import backbone.pt --model IResNet50 --output imported
    plsc predict -c imported/config.yaml photo.jpg
"""

import argparse
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from paddle import nn
from pydantic import ValidationError

from plsc.apps.migrate.torch_file import load_torch
from plsc.checkpoint import store
from plsc.checkpoint.tensorfile import DamagedError, TensorFile, tensor_differences
from plsc.config import Config, load
from plsc.data.images import CHANNELS
from plsc.errors import UserError, escape
from plsc.native.bfloat16 import float32_of
from plsc.utils.atomic_write import replace_file
from plsc.utils.files import open_regular
from plsc.utils.options import add_overrides
from plsc.utils.preprocessing import MEAN, SCALE, Preprocessing
from plsc.utils.safe_pickle import load_pickle, user_errors
from plsc.utils.section import first_problem
from plsc.utils.text import plural

_ACCEPTED = "a .pt of torch.save, .safetensors, or .pdparams of PLSC 2.4"
_MOST = 10  # most tensors that an error names
# The state dict's keys in files that contain more, such as arcface_torch's checkpoint_gpu_0.pt.
_INSIDE = ("state_dict_backbone", "state_dict")
_SKIPPED = {
    "num_batches_tracked": "torch counts batches there; nothing reads it",
    "StructuredToParameterName@@": "Paddle's own names of the tensors",
}


def _is_checkpoint(folder: Path) -> bool:
    """Return whether a folder is a checkpoint of plsc. Other programs have a manifest.json, too."""
    try:
        store.Checkpoint.open(folder)
    except (UserError, OSError):
        return False
    return True


def read_weights(path: str) -> dict[str, np.ndarray]:
    """Read the tensors in a .safetensors file, a .pdparams file or a torch.save file.

    Returns name -> array. bfloat16 becomes float32.

    Raises MissingFileError if there is no such file, and UserError if it is damaged, contains no tensors, or
    needs anything except tensors.
    """
    what = f"weights file ({_ACCEPTED})"
    if path.endswith(".onnx") and os.path.isfile(path):
        raise UserError(
            f"{escape(path)}: is an ONNX file, not a {what}; "
            f"a gallery can use it without import: plsc gallery build ... --network {escape(path)}"
        )
    above = Path(path).parent
    if _is_checkpoint(above):
        run = escape(above.parent.parent if above.parent.name == "checkpoints" else above)
        raise UserError(
            f"{escape(path)}: belongs to a checkpoint of plsc, which needs no import; use its network with "
            f"-c {run}, or start a training with it by Global.init_from={escape(above)}"
        )
    if os.path.isdir(path):
        raise UserError(
            f"{escape(path)}: is a folder; name a weights file, and begin with a plsc run by "
            f"Global.init_from={escape(path)}"
        )
    with user_errors(path, what), open_regular(path) as file:
        start = file.read(2)
    if path.endswith(".safetensors"):
        try:
            tensor_file = TensorFile(path)
        except DamagedError as error:
            raise UserError(f"{error}; fetch it again") from error
        tensors = {name: tensor_file.read(name) for name in tensor_file.arrays}
    else:
        tensors = load_torch(path) if start == b"PK" else load_pickle(path, what)
    for key in _INSIDE:
        if isinstance(tensors, dict) and isinstance(tensors.get(key), dict):
            tensors = tensors[key]
    if not isinstance(tensors, dict) or not any(isinstance(value, np.ndarray) for value in tensors.values()):
        old = "; torch's format before 1.6 is not read: load it and torch.save it again"
        raise UserError(f"{path}: contains no named tensors{'' if start == b'PK' else old}")
    return {str(name): float32_of(value) for name, value in tensors.items()}


def match(
    tensors: Mapping[str, object], backbone: nn.Layer, path: str
) -> tuple[dict[str, np.ndarray], Counter]:
    """Map a file's tensors to a network's names.

    torch's names (running_mean) and its linear weights [outputs, inputs] are converted to Paddle's. Linear
    weights are Paddle's [inputs, outputs] in a .pdparams file, and in a file with Paddle's names (_mean).

    Args:
        tensors: name -> tensor in the file.
        backbone: the network.
        path: the file's path, for messages.

    Returns the arrays by the network's names, float32, and how many tensors were skipped for each reason.

    Raises UserError with a line for each tensor that is missing, is not in the network, or has another shape.
    It lists the first _MOST.
    """
    wanted = backbone.state_dict()
    names = {name: name.removeprefix("module.") for name in tensors}
    of_paddle = path.endswith(".pdparams") or any(name.endswith(("._mean", "._variance")) for name in names)
    linear = {f"{name}.weight" for name, layer in backbone.named_sublayers() if isinstance(layer, nn.Linear)}
    arrays = {}
    skipped = Counter()
    left = []
    for name, plain in names.items():
        value, to = tensors[name], _ours(plain, wanted)
        if why := _why_skipped(plain, wanted):
            skipped[why] += 1
            continue
        if to is None or to in arrays or not isinstance(value, np.ndarray):
            left.append(name)
            continue
        if to in linear and not of_paddle:
            value = value.T
        elif _no_ones(value.shape) == _no_ones(wanted[to].shape):
            value = value.reshape(wanted[to].shape)
        arrays[to] = np.array(value, np.float32, order="C")
    _refuse_differences(arrays, wanted, left, path, type(backbone).__name__)
    return arrays, skipped


def _ours(name: str, wanted: Mapping) -> str | None:
    """Return the network's name for a name in the file. Return None if the network has no such tensor."""
    place, _, part = name.rpartition(".")
    part = {"running_mean": "_mean", "running_var": "_variance"}.get(part, part)
    name = f"{place}.{part}" if place else part
    slopes = f"{place}._{part}"  # Paddle's PReLU
    return name if name in wanted else slopes if slopes in wanted else None


def _why_skipped(name: str, wanted: Mapping) -> str:
    if name.startswith("head.") and name not in wanted:
        return "the class centres of PLSC 2.4; the head is not imported"
    if name == "mask_token" and name not in wanted:
        return "stands for hidden patches, which do not exist with Model.mask_ratio 0"
    return _SKIPPED.get(name.rpartition(".")[2], "")


def _no_ones(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]


def _refuse_differences(arrays: Mapping, wanted: Mapping, left: list[str], path: str, network: str) -> None:
    if not arrays:
        raise UserError(
            f"{path}: none of its {len(left)} tensors is one of {network}'s "
            f"(the first is {left[0] if left else 'none'}); name the model that they belong to"
        )
    lines = [f"{name} is not in {network}" for name in left]
    lines += tensor_differences(arrays, wanted, "the file", network)
    if lines:
        more = [f"and {len(lines) - _MOST} more tensors"] if len(lines) > _MOST else []
        raise UserError("\n".join(f"{path}: {line}" for line in [*lines[:_MOST], *more]))


def import_weights(path: str, config: Config, output: str | os.PathLike, preprocessing: Preprocessing) -> str:
    """Write a weights file as a checkpoint folder.

    The folder also gets config.yaml, which names the network.

    Args:
        path: the weights file.
        config: a config whose Model section describes the network.
        output: the folder, which must be new or empty.
        preprocessing: how images are prepared for these weights. Only the person who trained them knows it.

    Returns sentences about the skipped and the imported tensors.

    Raises UserError if the folder contains anything, or if the tensors do not fit the network.
    """
    from plsc.training.load_weights import build_backbone

    output = Path(os.path.abspath(output))
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output}: exists already; name a new folder for what is imported")
    backbone = build_backbone(config.Model, config.Global.seed, preprocessing.shape)
    arrays, skipped = match(read_weights(path), backbone, path)
    content = store.Content(
        step=0,
        epoch=0,
        states={"backbone": {"arrays": arrays}},
        rows={"centres": np.zeros((0, config.Model.embedding_size), np.float32)},
        num_classes=0,
        shard=(0, 0),
        config=config.plain(),
        preprocessing=preprocessing,
    )
    with store.new_folder(output) as beside:
        made = store.save(beside.with_name("checkpoints"), content)
        replace_file(made / "config.yaml", config.to_yaml().encode())
        os.replace(made, beside)
    lines = [f"skipped {plural(count, 'tensor')}: {why}" for why, count in skipped.items()]
    return "\n".join([*lines, f"done: {len(arrays):,} tensors in {escape(output)}"])


def main(argv: Sequence[str] | None = None) -> None:
    """Run `plsc import`. Raises UserError."""
    parser = argparse.ArgumentParser(
        "plsc import",
        description="Convert other programs' weights into a checkpoint folder.",
    )
    parser.add_argument(
        "weights", help="backbone.pt of arcface_torch, .safetensors, or .pdparams of PLSC 2.4"
    )
    parser.add_argument("--model", metavar="NAME", required=True, help="the network, as Model.name has it")
    add_overrides(parser, "a key of the network, such as Model.embedding_size=256 (default 512)")
    parser.add_argument("--output", metavar="FOLDER", required=True, help="a new folder")
    what = "the pictures' size; default: 112 112"
    parser.add_argument("--size", type=int, nargs=2, default=[112, 112], metavar=("H", "W"), help=what)
    what = "the channel order in training; default: RGB"
    parser.add_argument("--channels", choices=CHANNELS, default="RGB", help=what)
    parser.add_argument("--mean", type=float, default=MEAN, help="subtracted from the pixels; default: 127.5")
    parser.add_argument(
        "--scale", type=float, default=SCALE, help="factor on the difference; default: 1 / 127.5"
    )
    what = "the weights were trained on aligned faces, as InsightFace's were: galleries then align"
    parser.add_argument("--aligned", action="store_true", default=None, help=what)
    args = parser.parse_args(argv)
    config = load(None, [f"Model.name={args.model}", "Model.embedding_size=512", *args.override])
    image_shape = (CHANNELS[args.channels], *args.size)
    try:
        preprocessing = Preprocessing(image_shape, args.mean, args.scale, args.channels, args.aligned)
    except ValidationError as error:
        key, message = first_problem(error)
        option = ("size", "mean", "scale")[int(key[0])]
        raise UserError(f"--{option}: {message} (got {escape(getattr(args, option))})") from error
    print(import_weights(args.weights, config, args.output, preprocessing))
