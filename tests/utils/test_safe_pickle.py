import collections
import os
import pickle
import struct

import numpy as np
import pytest

from plsc.errors import MissingFileError, UserError
from plsc.utils.safe_pickle import load_pickle
from tests.helpers.refusals import refusal


@pytest.fixture
def load(tmp_path):
    """Bytes -> what load_pickle makes from a file with them."""

    def load(data):
        (tmp_path / "x.bin").write_bytes(data)
        return load_pickle(str(tmp_path / "x.bin"), "pickle")

    return load


def refused(load, data):
    return refusal(load, data).partition("x.bin: ")[2]


@pytest.mark.parametrize("protocol", range(6))
def test_what_packs_and_parameters_hold_comes_back(load, protocol):
    rng = np.random.default_rng(0)
    value = (
        [b"\xff\xd8jpg", rng.integers(0, 256, (7, 1), np.uint8)],
        [True, False, np.bool_(True), np.float32(0.5), 3, 2.5, None, "ä"],
        collections.OrderedDict(
            weight=rng.standard_normal((3, 4)).astype(np.float32),
            fortran=np.asfortranarray(rng.standard_normal((3, 4))),
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
        assert parameters[name].dtype == array.dtype, name
        assert not (array.size and parameters[name].flags.writeable), name


def test_python_2_strings_and_arrays_come_back(load):
    # pickle.dumps((["\xff\xd8", "b"], [True, False]), 2) by Python 2.7, and a uint8 array [1, 255] by its
    # numpy
    text = b"\x80\x02]q\x00(U\x02\xff\xd8q\x01U\x01bq\x02e]q\x03(\x88\x89e\x86q\x04."
    images, flags = load(text)
    assert [image.encode("latin-1") for image in images] == [b"\xff\xd8", b"b"] and flags == [True, False]
    array = (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85U\x01b\x87Rq\x03"
        b"(K\x01K\x02\x85cnumpy\ndtype\nq\x04U\x02u1K\x00K\x01\x87Rq\x05(K\x03U\x01|NNNJ"
        b"\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x02\x01\xfftb."
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
    said = refused(load, pickle.dumps(([b"jpg"], Evil(os.mkdir, str(marker))), protocol))
    assert said == "refused: the file asks for posix.mkdir; none of it was run"
    assert not marker.exists()


def test_arrays_of_objects_or_records_and_other_codecs_are_refused(load):
    said = refused(load, pickle.dumps(np.array([1, "a"], object)))
    assert said.startswith("refused: the file asks for an array of numpy type 'O8', which is not a number")
    assert "'V8'" in refused(load, pickle.dumps(np.zeros(2, "i4,i4")))
    assert "the codec rot13" in refused(
        load, b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R."
    )
    assert "posix.mkdir" in refused(load, b"\x80\x04\x8c\x05posix\x8c\x05mkdir\x93.")


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
        b"Pabc\n.",
        b".",
    ):
        assert refused(load, data).startswith("is not a pickle, or is damaged or truncated (")
    short = pickle.dumps(np.arange(100), 2).replace(b"K\x64\x85", b"K\x65\x85")  # 101 numbers promised
    assert refused(load, short).startswith("is not a pickle, or is")
    with pytest.raises(MissingFileError, match=r"none.bin: no such file$"):
        load_pickle(str(tmp_path / "none.bin"), "pickle")
    with pytest.raises(UserError, match="cannot be read: Is a directory$"):
        load_pickle(str(tmp_path), "pickle")


def test_lengths_of_2_to_the_60_take_no_memory(load):
    huge = struct.pack("<Q", 2**60)
    for opcode in (b"\x8e", b"\x8d", b"\x95", b"\x96"):  # bytes, text, a frame, a bytearray
        assert refused(load, b"\x80\x05" + opcode + huge + b"abc.").startswith(
            "is not a pickle, or is damaged"
        )
    bomb = b"\x80\x02c__builtin__\nbytes\n\x8a\x06\0\0\0\0\0\x01\x85R."
    assert refused(load, bomb).startswith("is not a pickle, or is")
    assert load(b"\x80\x02]r\xff\xff\xff\x7f.") == []  # 16 GB of memo entries, were they a list


class Assembled:
    """Pickles by hand: operations that no pickler writes."""

    ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
    DTYPE = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR"

    @classmethod
    def state(cls, data: bytes, size: int) -> bytes:
        return b"(K\x01(J" + struct.pack("<i", size) + b"t" + cls.DTYPE + b"\x89" + data + b"t"


def _bytes(data: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(data)) + data


def test_the_memory_of_an_array_is_never_freed_under_a_view(load):
    array = Assembled.ARRAY + b"q\x01" + Assembled.state(_bytes(bytes(5000)), 5000) + b"b"
    again = Assembled.state(_bytes(b"\1"), 1) + b"b"
    for twice in (array + again, b"(" + array + b"h\x01" + again + b"t"):
        assert "a change of what is finished" in refused(load, b"\x80\x03" + twice + b".")


def test_a_buffer_that_a_file_can_change_is_copied(load):
    # A bytearray, an array of its numbers, and both given back.
    buffer = b"\x96" + struct.pack("<Q", 4) + b"abcd\x94"
    array = b"cnumpy._core.numeric\n_frombuffer\n(h\x00" + Assembled.DTYPE + b"(K\x04t\x8c\x01CtR"
    both, found = load(b"\x80\x05(" + buffer + array + b"t.")
    both[:] = b"zzzz"
    assert found.tobytes() == b"abcd"


def test_an_array_is_no_larger_than_its_bytes(load):
    for shape in (b"(J\xff\xff\xff\x7fK\x00t", b"(J\xff\xff\xff\x7ft", b"(J\xff\xff\xff\xfft", b"(Nt"):
        state = Assembled.state(_bytes(b"\1"), 1).replace(b"(J\1\0\0\0t", shape)
        assert refused(load, b"\x80\x03" + Assembled.ARRAY + state + b"b.").startswith("is not a pickle")
    # numpy.ndarray itself would allocate any shape, and take any buffer and any type.
    call = b"\x80\x03cnumpy\nndarray\n((J\xff\xff\xff\x7ftU\x01btR."
    assert "not callable" in refused(load, call)


def test_what_is_finished_cannot_be_changed_and_the_byte_order_is_this_machines(load):
    big = pickle.dumps(np.arange(5, dtype=">i4"), 2)
    assert "numbers of another byte order" in refused(load, big)
    assert "a change of what is finished" in refused(load, b"\x80\x02cnumpy\ndtype\n}X\x04\0\0\0codeK\x01sb.")


def test_a_refused_name_is_printable(load):
    said = refused(load, b"\x80\x04\x8c\x06\x1b[2J\r\n\x8c\x05mkdir\x93.")
    assert "the file asks for \\x1b[2J\\r\\n.mkdir;" in said
    assert len(refused(load, b"c" + b"a" * 10**6 + b"\nb\n.")) < 200
