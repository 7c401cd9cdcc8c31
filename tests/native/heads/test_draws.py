"""Any rows of normal numbers: the bits that numpy draws in order."""

import numpy as np
import pytest

from plsc.native.bfloat16 import nearest
from plsc.native.heads.draws import NormalRows

FACTOR = 0x2360ED051FC65DA44385DF649FCCF645  # of PCG64's step


def drawn_in_order(seed, blocks, block, width, std):
    streams = (np.random.Generator(np.random.PCG64([seed, number])) for number in range(blocks))
    return np.concatenate([each.standard_normal((block, width), np.float32) for each in streams]) * std


@pytest.mark.parametrize(("block", "width"), [(4096, 64), (4096, 7), (4, 5), (12, 1), (64, 3000)])
@pytest.mark.parametrize("start", [0, 3])
def test_rows_in_any_order_are_those_that_numpy_draws(block, width, start):
    std = np.float32(0.01)
    want = drawn_in_order(7, 4, block, width, std)[start:]
    rows = NormalRows(7, start, 4 * block, width, std, block)
    rng = np.random.default_rng(0)
    count = len(want)
    for wanted in (
        np.sort(rng.choice(count, min(count, 200), replace=False)),
        rng.integers(0, count, 50),
        np.arange(count),
        np.array([count - 1, 0, 0], np.int64),
        np.array([], np.int64),
        np.arange(block - 2, min(count, block + 3)),
        np.array([block - start - 1, block - start + 1]),
    ):
        assert rows(wanted).tobytes() == want[wanted].tobytes()


def test_rows_are_rounded_to_bfloat16_as_numpy_rounds_them():
    numbers = 3, 0, 64, 7, 0.01, 16
    drawn, rounded = NormalRows(*numbers), NormalRows(*numbers, "uint16")
    for rows in (np.arange(5, 50), np.array([60, 2, 2])):
        assert rounded(rows).tobytes() == nearest(drawn(rows)).tobytes()


def test_a_later_range_of_rows_begins_in_its_own_block():
    want = drawn_in_order(1, 5, 8, 6, np.float32(1))
    for start in (8, 19, 32):
        rows = NormalRows(1, start, 40, 6, 1.0, 8)
        assert rows(np.arange(40 - start)).tobytes() == want[start:].tobytes()
        with pytest.raises(AssertionError):
            rows(np.array([40 - start]))


def beginning_with(word):
    """Return a generator of numpy whose first 32 bits are `word`."""
    generator = np.random.PCG64(0)
    state = generator.state
    state["state"]["state"] = (word - state["state"]["inc"]) * pow(FACTOR, -1, 2**128) % 2**128
    generator.state = state
    return generator


def takes_one_word(layer, bits):
    generator = beginning_with(layer | bits << 9)
    np.random.Generator(generator).standard_normal(dtype=np.float32)
    state = generator.state
    return state["has_uint32"] == 1 and state["state"]["state"] == layer | bits << 9


def test_each_layer_of_the_ziggurat_ends_where_numpys_does():
    for layer in range(256):
        low, high = 0, 1 << 23  # the least of 23 bits with which a number takes more words
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if takes_one_word(layer, middle) else (low, middle)
        for word in (layer | bits << 9 | sign for bits in (max(low - 1, 0), low) for sign in (0, 256)):
            generator = beginning_with(word)
            rows = NormalRows(0, 0, 1, 4, 1.0, 1)
            numbers = generator.state["state"]["state"], generator.state["state"]["inc"]
            rows._states[:] = [number >> shift & 2**64 - 1 for number in numbers for shift in (0, 64)]
            want = np.random.Generator(generator).standard_normal((1, 4), np.float32)
            assert rows(np.array([0])).tobytes() == want.tobytes(), (layer, low)
