import collections
import os
import pickle
import struct

import numpy as np
import pytest

from plsc.errors import MissingFileError, UserError
from plsc.unpickle import load_pickle, save_pickle


@pytest.fixture
def load(tmp_path):
    """Bytes -> what load_pickle makes of a file of them."""

    def load(data):
        (tmp_path / "x.bin").write_bytes(data)
        return load_pickle(str(tmp_path / "x.bin"))

    return load


def refusal(load, data):
    with pytest.raises(UserError) as raised:
        load(data)
    said = str(raised.value)
    assert "\n" not in said
    return said.partition("x.bin: ")[2]


@pytest.mark.parametrize("protocol", range(6))
def test_what_packs_and_parameters_hold_comes_back(load, protocol):
    rng = np.random.default_rng(0)
    value = (
        [b"\xff\xd8jpg", rng.integers(0, 256, (7, 1), np.uint8)],
        [True, False, np.bool_(True), np.float32(0.5), 3, 2.5, None, "ä"],
        collections.OrderedDict(
            weight=rng.standard_normal((3, 4)).astype(np.float32),
            fortran=np.asfortranarray(rng.standard_normal((3, 4))),
            big=np.arange(5, dtype=">i4"),
            bools=np.array([True, False]),
            empty=np.zeros((0, 3), np.float16),
        ),
    )
    images, flags, parameters = load(pickle.dumps(value, protocol))
    assert images[0] == value[0][0] and np.array_equal(images[1], value[0][1])
    assert images[1].shape == (7, 1) and images[1].dtype == np.uint8
    assert flags == value[1] and [*map(type, flags)] == [*map(type, value[1])]
    assert type(parameters) is collections.OrderedDict and parameters.keys() == value[2].keys()
    for name, array in value[2].items():
        assert np.array_equal(parameters[name], array) and parameters[name].shape == array.shape
        assert parameters[name].dtype.newbyteorder("=") == array.dtype.newbyteorder("="), name


def test_python_2_strings_and_arrays_come_back(load):
    # pickle.dumps((["\xff\xd8", "b"], [True, False]), 2) by Python 2.7, and a uint8 array [1, 255] by its numpy
    text = b"\x80\x02]q\x00(U\x02\xff\xd8q\x01U\x01bq\x02e]q\x03(\x88\x89e\x86q\x04."
    images, flags = load(text)
    assert [image.encode("latin-1") for image in images] == [b"\xff\xd8", b"b"] and flags == [True, False]
    array = (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85U\x01b\x87Rq\x03(K\x01K\x02\x85"
        b"cnumpy\ndtype\nq\x04U\x02u1K\x00K\x01\x87Rq\x05(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x02\x01\xfftb."
    )
    found = load(array)
    assert found.tolist() == [1, 255] and found.dtype == np.uint8


class Evil:
    def __init__(self, function, *arguments):
        self.what = function, arguments

    def __reduce__(self):
        return self.what


@pytest.mark.parametrize("protocol", range(6))
def test_a_file_that_asks_for_a_function_is_refused_and_nothing_is_run(load, protocol, tmp_path):
    marker = tmp_path / "marker"
    said = refusal(load, pickle.dumps(([b"jpg"], Evil(os.mkdir, str(marker))), protocol))
    assert said == "refused: the file asks for posix.mkdir; nothing of it was run"
    assert not marker.exists()


@pytest.mark.parametrize(
    "function, arguments, named",
    [
        (eval, ("1",), "eval"),  # Paddle's own static-graph files ask for this one
        (getattr, (1, "real"), "getattr"),
        (np.load, ("x",), "numpy"),
        (np.frombuffer, (b"1",), "numpy"),
        (os.system, ("true",), "posix.system"),
    ],
)
def test_functions_that_sound_harmless_are_refused_too(load, function, arguments, named):
    said = refusal(load, pickle.dumps(Evil(function, *arguments), 2))
    assert said.startswith("refused: the file asks for ") and named in said


def test_arrays_of_objects_or_records_and_other_codecs_are_refused(load):
    said = refusal(load, pickle.dumps(np.array([1, "a"], object)))
    assert said.startswith("refused: the file asks for an array of numpy type 'O8', which is no number")
    assert "'V8'" in refusal(load, pickle.dumps(np.zeros(2, "i4,i4")))
    assert "the codec rot13" in refusal(
        load, b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R."
    )
    assert "a persistent object" in refusal(load, b"Pabc\n.")
    assert "posix.mkdir" in refusal(load, b"\x80\x04\x8c\x05posix\x8c\x05mkdir\x93.")


def test_flags_that_a_file_gives_a_number_type_are_ignored(load):
    plain = pickle.dumps(np.arange(3, dtype="<i4"), 2)
    state = b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t"
    assert plain.count(state) == 1
    found = load(
        plain.replace(state, state.replace(b"K\x00t", b"K\x3ft"))
    )  # 0x3f: "its items are Python objects"
    assert found.tolist() == [0, 1, 2] and found.dtype.flags == 0


def test_damaged_files_are_named(load, tmp_path):
    whole = pickle.dumps(([b"x" * 1000] * 5, [True]), 4)
    for data in (
        b"",
        b"garbage",
        whole[:500],
        whole[:-1],
        b"\x80\x09.",
        b"\x89PNG\r\n\x1a\n" + bytes(99),
        b".",
    ):
        assert refusal(load, data).startswith("is no pickle, or is damaged or cut off (")
    short = pickle.dumps(np.arange(100), 2).replace(b"K\x64\x85", b"K\x65\x85")  # 101 numbers promised
    assert refusal(load, short).startswith("is no pickle, or is damaged")
    with pytest.raises(MissingFileError, match=r"none.bin: no such file$"):
        load_pickle(str(tmp_path / "none.bin"))
    with pytest.raises(UserError, match="cannot be read: Is a directory$"):
        load_pickle(str(tmp_path))


def test_lengths_of_2_to_the_60_take_no_memory(load):
    huge = struct.pack("<Q", 2**60)
    for opcode in (b"\x8e", b"\x8d", b"\x95", b"\x96"):  # bytes, text, a frame, a bytearray
        assert refusal(load, b"\x80\x05" + opcode + huge + b"abc.").startswith("is no pickle, or is damaged")
    bomb = b"\x80\x02c__builtin__\nbytes\n\x8a\x06\0\0\0\0\0\x01\x85R."
    assert refusal(load, bomb).startswith("is no pickle, or is damaged")
    said = refusal(load, b"\x80\x02]r\xff\xff\xff\x7f.")  # 16 GB of memo entries
    assert said.startswith("refused: the file asks for memo entry 2147483647")


def test_what_is_saved_is_loaded(tmp_path):
    save_pickle(str(tmp_path / "a.bin"), ([b"1", np.arange(3)], [True]))
    images, flags = load_pickle(str(tmp_path / "a.bin"))
    assert images[0] == b"1" and images[1].tolist() == [0, 1, 2] and flags == [True]
    assert os.listdir(tmp_path) == ["a.bin"]


class _Expression:
    def __init__(self, *args):
        self.args = args

    def __reduce__(self):
        return eval, self.args


def test_paddles_eval_of_a_tensor_is_a_look_up_and_nothing_else(tmp_path):
    path = tmp_path / "a.pdparam"
    path.write_bytes(pickle.dumps(_Expression("data", {"data": np.arange(3.0)}), 2))
    assert load_pickle(str(path)).tolist() == [0, 1, 2]
    for args in (
        ("1 + 1", {}),
        ("data", {"data": 1, "x": 2}),
        ("data", []),
        ("__import__('os')", {"data": 1}),
    ):
        path.write_bytes(pickle.dumps(_Expression(*args), 2))
        with pytest.raises(
            UserError, match=r"refused: the file asks for builtins\.eval; nothing of it was run"
        ):
            load_pickle(str(path))
