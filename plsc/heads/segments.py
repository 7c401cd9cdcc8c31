"""Sum the rows whose samples have the same class. The work grows with N D, and every device
adds in the same order.

A device's scatter-add adds in any order. A product with the [N, N] matrix of equal classes is quadratic
in the global batch. Here, pairs of rows are added until each class has one row left. This takes two gathers
and a sum each time the largest class's sample count doubles.

    ClassSums(np.array([3, 5, 5, 9])).of(paddle.ones([4, 2]))  # [[1, 1], [2, 2], [1, 1]], of 3, 5 and 9
"""

import numpy as np
import paddle

from plsc.distributed.device import to_device


class ClassSums:
    """Plans the sums from the samples' classes, which are in host memory.

    Args:
        class_P: each sample's class, int64 [P], ascending, with P >= 1.

    Attributes:
        class_U: distinct classes, int64 [U], on the device.
    """

    def __init__(self, class_P: np.ndarray):
        classes, start_U, count_U = np.unique(class_P, return_index=True, return_counts=True)
        self.class_U = to_device(classes)
        self._rounds: list[tuple[paddle.Tensor, paddle.Tensor]] = []  # left and right row indices
        zero = len(class_P)  # index of an appended zero row, for rows without a partner
        while count_U.max() > 1:
            pairs_U = (count_U + 1) // 2
            first_U = np.cumsum(pairs_U) - pairs_U
            pair = np.arange(pairs_U.sum()) - np.repeat(first_U, pairs_U)
            left = np.repeat(start_U, pairs_U) + 2 * pair
            right = np.where(2 * pair + 1 < np.repeat(count_U, pairs_U), left + 1, zero)
            if pairs_U.max() > 1:
                left, right = np.append(left, zero), np.append(right, zero)
            self._rounds.append((to_device(left), to_device(right)))
            start_U, count_U, zero = first_U, pairs_U, pairs_U.sum()

    def of(self, rows_PD: paddle.Tensor) -> paddle.Tensor:
        """Sum each class's rows [P, D]. The result is [U, D]."""
        if self._rounds:
            rows_PD = paddle.concat([rows_PD, paddle.zeros([1, rows_PD.shape[1]])])
        for left, right in self._rounds:
            rows_PD = paddle.gather(rows_PD, left) + paddle.gather(rows_PD, right)
        return rows_PD
