"""Optimizers of the class centres: rules that update a bank's selected rows.

A rule names the arrays that it needs beside a value (`moments`), of the same shape and zero at first; they
are stored, checkpointed and resharded with it. One rule for all banks:

    Momentum(0.9, weight_decay=5e-4)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import paddle
from paddle import _C_ops

from plsc.heads.kernels import rows as row_kernels


class Momentum:
    """Momentum SGD as Paddle's: v <- mu v + g + decay w;  w <- w - lr v. The bias, where there is one, is not
    decayed."""

    moments = ("momentum",)

    def __init__(self, mu: float, weight_decay: float):
        self.mu = mu
        self.weight_decay = weight_decay

    def _decay(self, name: str) -> float:
        return self.weight_decay if name == "centres" else 0.0

    def update_host(
        self,
        name: str,
        value: np.ndarray | paddle.Tensor,
        moments: Sequence[np.ndarray | paddle.Tensor],
        index_K: np.ndarray | None,
        grad: np.ndarray | paddle.Tensor,
        lr: float,
    ) -> None:
        """Update rows `index_K` (None: all) of arrays in host memory in place; where there are kernels, of
        CPU tensors too."""
        row_kernels.momentum(value, *moments, index_K, grad, lr, self.mu, self._decay(name))

    def update_device(
        self,
        name: str,
        value: paddle.Tensor,
        moments: Sequence[paddle.Tensor],
        grad: paddle.Tensor,
        lr: float,
    ) -> None:
        """Update whole tensors in place."""
        decay = self._decay(name)
        rule = ("l2_decay", decay) if decay else ("", 0.0)
        rate = paddle.full([], lr)
        _C_ops.momentum_(value, grad, *moments, rate, None, self.mu, False, *rule, False, 1.0)


def moment_name(name: str, moment: str) -> str:
    """Name a moment's array: "momentum" belongs to "centres", "bias_momentum" to "bias"."""
    return moment if name == "centres" else f"{name}_{moment}"
