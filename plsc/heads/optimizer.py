"""Optimizers of the class centres: rules that update a bank's selected rows.

A rule names the arrays that it needs beside a value (`moments`), of the same shape and zero at first; they
are stored, checkpointed and resharded with it. One rule for all banks:

    Momentum(0.9, weight_decay=5e-4)
    AdamW(0.9, 0.999, epsilon=1e-8, weight_decay=0.1)
    LARS(0.9, weight_decay=5e-4, coefficient=0.001, epsilon=0.0)
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import paddle
from paddle import _C_ops

from plsc.native.heads import rows as row_kernels


class Update(NamedTuple):
    """The numbers of one update that all rows share.

    lr: learning rate. number: how many updates there have been with this one, from 1. norms: of the selected
    centres of all ranks together and of their gradient, numbers or scalars on the device; only for a rule
    that `needs_norms`.
    """

    lr: float
    number: int
    norms: tuple[float, float] | tuple[paddle.Tensor, paddle.Tensor] | None = None


class Rule(ABC):
    """Updates rows of a value "centres" or "bias" by their gradients; the bias is not decayed.

    Attributes:
        moments: names of the arrays beside a value. needs_norms: whether an `Update` must have norms.
    """

    moments: tuple[str, ...]
    needs_norms = False

    def __init__(self, weight_decay: float):
        self.weight_decay = weight_decay

    def _decay(self, name: str) -> float:
        return self.weight_decay if name == "centres" else 0.0

    @abstractmethod
    def update_host(
        self,
        name: str,
        value: np.ndarray | paddle.Tensor,
        moments: Sequence[np.ndarray | paddle.Tensor],
        index_K: np.ndarray | None,
        grad: np.ndarray | paddle.Tensor,
        update: Update,
    ) -> None:
        """Update rows `index_K` (None: all) of arrays in host memory in place, by kernels."""

    @abstractmethod
    def update_device(
        self,
        name: str,
        value: paddle.Tensor,
        moments: Sequence[paddle.Tensor],
        grad: paddle.Tensor,
        update: Update,
    ) -> None:
        """Update whole tensors in place."""


class Momentum(Rule):
    """Momentum SGD as Paddle's: v <- mu v + g + decay w;  w <- w - lr v.

    With nesterov w <- w - lr (g + decay w + mu v), as Sutskever et al. 2013, "On the importance of
    initialization and momentum in deep learning", in the variables of Paddle and PyTorch.
    """

    moments = ("momentum",)

    def __init__(self, mu: float = 0.9, weight_decay: float = 0.0, nesterov: bool = False):
        super().__init__(weight_decay)
        self.mu = mu
        self.nesterov = nesterov

    def update_host(self, name, value, moments, index_K, grad, update):
        numbers = update.lr, self.mu, self._decay(name), self.nesterov
        row_kernels.update("momentum", value, moments, index_K, grad, numbers)

    def update_device(self, name, value, moments, grad, update):
        decay = self._decay(name)
        rule = ("l2_decay", decay) if decay else ("", 0.0)
        rate = paddle.full([], update.lr)
        _C_ops.momentum_(value, grad, *moments, rate, None, self.mu, self.nesterov, *rule, False, 1.0)


class AdamW(Rule):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, "Decoupled weight decay
    regularization"), as Paddle's.

        m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2
        w <- w - lr decay w - lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon)

    t is the number of the update, the same for all rows, as in InsightFace's Partial FC: a row that is first
    selected late starts with a step of up to (1 - beta1) / sqrt(1 - beta2) lr, 3.2 lr with the usual betas.
    Rows that are not selected stay as they are: their moments, too, and they are not decayed. Stored as
    bfloat16, rounded at random, v stays >= 0, since rounding changes the magnitude and never the sign, and
    right on average, while one step changes it by less than bfloat16's step.
    """

    moments = ("moment1", "moment2")

    def __init__(self, beta1: float, beta2: float, epsilon: float, weight_decay: float):
        super().__init__(weight_decay)
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon

    def _numbers(self, name: str, update: Update) -> tuple[float, ...]:
        """Compute the numbers of an update, in the order of the kernel's arguments."""
        rate = update.lr / (1 - self.beta1**update.number)
        root = (1 - self.beta2**update.number) ** -0.5
        betas = self.beta1, 1 - self.beta1, self.beta2, 1 - self.beta2
        return (*betas, rate, root, self.epsilon, update.lr * self._decay(name))

    def update_host(self, name, value, moments, index_K, grad, update):
        row_kernels.update("adamw", value, moments, index_K, grad, self._numbers(name, update))

    def update_device(self, name, value, moments, grad, update):
        beta1, rest1, beta2, rest2, rate, root, epsilon, shrink = self._numbers(name, update)
        # Ops of its own: the arguments of Paddle's differ between its versions.
        moment1, moment2 = moments
        paddle.assign(beta1 * moment1 + rest1 * grad, output=moment1)
        paddle.assign(beta2 * moment2 + rest2 * (grad * grad), output=moment2)
        step = shrink * value + rate * moment1 / (root * moment2.sqrt() + epsilon)
        paddle.assign(value - step, output=value)


class LARS(Rule):
    """Momentum SGD whose rate follows the norms (You et al. 2017, "Large batch training of convolutional
    networks"), as Paddle's LarsMomentum.

        r = lr coefficient |w| / (|g| + decay |w| + epsilon);  v <- mu v + r (g + decay w);  w <- w - v

    |w| and |g| are of all selected centres of all ranks together: one r for the whole class matrix. As in
    Paddle r = lr where there is no decay, so for the bias, and where a norm is 0.
    """

    moments = ("velocity",)
    needs_norms = True

    def __init__(self, mu: float, weight_decay: float, coefficient: float, epsilon: float):
        super().__init__(weight_decay)
        self.mu = mu
        self.coefficient = coefficient
        self.epsilon = epsilon

    def _rate(self, name: str, update: Update) -> float | paddle.Tensor:
        weight, grad = update.norms
        decay = self._decay(name)
        if decay and paddle.is_tensor(weight):
            rate = update.lr * self.coefficient * weight / (grad + decay * weight + self.epsilon)
            return paddle.where((weight > 0) & (grad > 0), rate, paddle.full([], update.lr))
        if not (decay and weight and grad):
            return update.lr
        return update.lr * self.coefficient * weight / (grad + decay * weight + self.epsilon)

    def update_host(self, name, value, moments, index_K, grad, update):
        numbers = self._rate(name, update), self.mu, self._decay(name)
        row_kernels.update("lars", value, moments, index_K, grad, numbers)

    def update_device(self, name, value, moments, grad, update):
        (velocity,) = moments
        scaled = self._rate(name, update) * (grad + self._decay(name) * value)
        paddle.assign(self.mu * velocity + scaled, output=velocity)
        paddle.assign(value - velocity, output=value)
