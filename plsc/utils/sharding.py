"""Split classes and samples over the ranks, in integers only.

The split is balanced: sizes differ by at most one, and the first C mod W ranks hold one class more. There may
be fewer classes than ranks. Ranks without a class still take part in every collective. A checkpoint stores
the ranges themselves, so it does not depend on this formula.
"""

from collections.abc import Sequence


def split(total: int, parts: int) -> list[tuple[int, int]]:
    """Cut range(total) into `parts` contiguous half-open ranges whose lengths differ by at most one."""
    size, remainder = divmod(total, parts)
    stops = [size * (part + 1) + min(part + 1, remainder) for part in range(parts)]
    return list(zip([0, *stops[:-1]], stops))


def count_micro_batches(sizes: Sequence[int], batch_size: int) -> int:
    """Return how many micro-batches each rank runs.

    It is the same on every rank, because layers and data parallelism call collectives. There are as few
    as `batch_size` samples per micro-batch allow. A rest of one or two samples joins the other
    micro-batches. Each has at least two samples, since BatchNorm needs them.

    Args:
        sizes: each rank's sample count.
        batch_size: samples in a full micro-batch.
    """
    full, left = divmod(max(sizes), batch_size)
    return max(1, min(full + (left > 2), min(sizes) // 2))
