"""What the machine has no memory for is refused before it is allocated."""

import pytest

from plsc.errors import UserError
from plsc.utils.memory import available_bytes, refuse_beyond_memory


def test_more_than_the_free_memory_is_refused():
    assert 2**20 < available_bytes() < 2**60
    refuse_beyond_memory(2**20, "it", "lower it")
    with pytest.raises(
        UserError, match=r"^it would take 1\.15e\+09 GB of memory, this machine has .* GB free; lower it$"
    ):
        refuse_beyond_memory(2**60, "it", "lower it")
