import pytest

from plsc.utils.sharding import count_micro_batches, split


@pytest.mark.parametrize("total", [0, 1, 2, 3, 10, 1003])
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7, 16])
def test_split_is_contiguous_balanced_and_complete(total, parts):
    ranges = split(total, parts)
    sizes = [stop - start for start, stop in ranges]
    assert sum(sizes) == total and max(sizes) - min(sizes) <= 1 and len(ranges) == parts
    assert sizes == sorted(sizes, reverse=True)
    assert [start for start, _ in ranges] == [0, *[stop for _, stop in ranges][:-1]]


@pytest.mark.parametrize("num_classes,ranks", [(10, 4), (1003, 3), (2, 4), (1, 16), (12, 3)])
def test_row_3_1_the_split_is_the_documents_formula(num_classes, ranks):
    for rank, (start, stop) in enumerate(split(num_classes, ranks)):
        assert stop - start == num_classes // ranks + (rank < num_classes % ranks)
        assert start == num_classes // ranks * rank + min(rank, num_classes % ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("batch_size", [2, 3, 16])
def test_ranks_cut_alike_and_leave_no_sample_alone(batch_size, ranks):
    for samples in range(2 * ranks, 40 * ranks):
        sizes = [samples // ranks + (rank < samples % ranks) for rank in range(ranks)]
        count = count_micro_batches(sizes, batch_size)
        assert min(sizes) // count >= 2
        assert -(-max(sizes) // count) <= batch_size + 2
        if samples < (batch_size + 2) * ranks:
            assert count == 1, "as without accumulation, an epoch's last step of a few samples more included"
    assert count_micro_batches([8 * batch_size] * ranks, batch_size) == 8
