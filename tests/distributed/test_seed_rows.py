"""Rows of docs/labbook.md about ranks, on 1, 2 and 4 ranks."""

from pathlib import Path

import pytest

from tests.distributed import run_seed_rows
from tests.helpers.launch import launch


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def said(request, tmp_path_factory):
    """What the ranks print, in a launch that all the rows share."""
    script = Path(run_seed_rows.__file__)
    return request.param, launch(script, request.param, tmp_path_factory.mktemp("rows"), check=False).stdout


@pytest.mark.parametrize("row", list(run_seed_rows.ROWS))
def test_row_on_ranks(row, said):
    ranks, text = said
    assert text.count(f"row {row} ok") == ranks, text[-3000:]


@pytest.mark.parametrize("row", list(run_seed_rows.ROWS))
def test_row_on_one_process(row):
    run_seed_rows.ROWS[row]()
