"""Raw tensor files: what Paddle itself writes, what the format allows, and what is none."""

import struct

import numpy as np
import paddle
import pytest

from plsc.apps.migrate.paddle_file import load_tensor
from plsc.errors import MissingFileError, UserError
from tests.apps.migrate.paddle_files import tensor_bytes
from tests.apps.migrate.torch_files import numbers


def test_what_paddle_writes(tmp_path):
    paddle.enable_static()
    try:
        program, start = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(program, start):
            kinds = {
                "wide": ([300, 4], "float32"),
                "half": ([7], "float16"),
                "double": ([2, 1, 3], "float64"),
            }
            variables = [
                paddle.static.create_parameter(shape, kind, name=name)
                for name, (shape, kind) in kinds.items()
            ]
        run = paddle.static.Executor(paddle.CPUPlace())
        with paddle.static.scope_guard(paddle.static.Scope()):
            run.run(start)
            paddle.static.io.save_vars(run, str(tmp_path), program, vars=variables)
    finally:
        paddle.disable_static()
    for name, (shape, kind) in kinds.items():
        found = load_tensor(str(tmp_path / name))
        assert (list(found.shape), found.dtype) == (shape, kind) and found.any()
        assert (tmp_path / name).read_bytes() == tensor_bytes(found), "so the tests' writer is right"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("levels", [(), (b"12345678", b"")])
@pytest.mark.parametrize("shape", [(), (0, 3), (200, 3)])
def test_all_that_the_format_allows(tmp_path, packed, levels, shape):
    array = np.array(numbers(*shape))
    (tmp_path / "a").write_bytes(tensor_bytes(array, packed, levels))
    found = load_tensor(str(tmp_path / "a"))
    assert found.shape == shape and np.array_equal(found, array)


WHOLE = tensor_bytes(numbers(5, 3))
HEAD = struct.pack("<IQIi", 0, 0, 0, 6)


@pytest.mark.parametrize(
    "data, why",
    [
        (b"", "it is cut off"),
        (WHOLE[:10], "it is cut off"),
        (WHOLE[:18], "it is cut off"),
        (WHOLE[:23], "its header is cut off"),
        (WHOLE[:-1], "float32 [5, 3] has 60 bytes, there are 59"),
        (WHOLE + b"x", "float32 [5, 3] has 60 bytes, there are 61"),
        (b"\x80\x04" + WHOLE, "it does not begin as one"),
        (struct.pack("<IQ", 0, 1 << 60) + WHOLE, "it does not begin as one"),
        (struct.pack("<IQQ", 0, 1, 1 << 40) + WHOLE, "it is cut off"),
        (struct.pack("<IQQ", 0, 1, (1 << 64) - 1) + WHOLE, None),
        (struct.pack("<IQIi", 0, 0, 0, 1 << 30) + b"x", "its header has no end"),
        (struct.pack("<IQIi", 0, 0, 0, -1) + b"x", "its header has no end"),
        (HEAD + b"\x08\x63\x10\x05\x10\x03", "its header has no dtype that is known"),
        (HEAD + b"\x10\x05\x10\x03\x10\x03", "its header has no dtype that is known"),
        (HEAD + b"\x08\x05\x2a\x05\x10\x03", "its header has an unknown field 42"),
        (HEAD + b"\x08\x05\xff\xff\xff\xff", "its header is cut off"),
        (HEAD + b"\x08\x05\x12\x7f\x10\x03", "its header is cut off"),
    ],
)
def test_damage_is_one_line(tmp_path, data, why):
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(UserError) as raised:
        load_tensor(str(tmp_path / "a"))
    said = str(raised.value)
    assert said.startswith(f"{tmp_path}/a: ") and "\n" not in said
    assert why is None or said == (
        f"{tmp_path}/a: is no tensor file of Paddle, or is damaged or cut off ({why}); fetch it again"
    )


def test_no_file(tmp_path):
    with pytest.raises(MissingFileError, match="none: no such file"):
        load_tensor(str(tmp_path / "none"))
