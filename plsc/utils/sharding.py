"""Split classes and samples over the ranks, in integers only.

The split is balanced: sizes differ by at most one, and the first C mod W ranks hold one more. C < W is
allowed: the last ranks hold no class and still take part in every collective. A checkpoint stores the ranges
themselves, so it does not depend on this formula.
"""

from collections.abc import Sequence


def split(total: int, parts: int) -> list[tuple[int, int]]:
    """Cut range(total) into `parts` contiguous half-open ranges whose lengths differ by at most one."""
    size, remainder = divmod(total, parts)
    stops = [size * (part + 1) + min(part + 1, remainder) for part in range(parts)]
    return list(zip([0, *stops[:-1]], stops))


def count_micro_batches(sizes: Sequence[int], batch_size: int) -> int:
    """Return how many micro-batches each rank runs, whose samples number `sizes`: the same on every rank,
    since layers and data parallel call collectives.

    As few as go with `batch_size` samples each; one or two samples that are left over join the others.
    At least two samples each, which BatchNorm needs.
    """
    full, left = divmod(max(sizes), batch_size)
    return max(1, min(full + (left > 2), min(sizes) // 2))
