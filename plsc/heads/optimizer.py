"""Update the selected rows of a bank by a rule, the optimizer of the class centres.

A rule names the arrays that it needs beside a value (`moments`), of the same shape and zero at first; they
are stored, checkpointed and resharded with it. One rule for all banks; to write your own, see docs/extend.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import paddle

from plsc.distributed.paddle_internals import momentum_
from plsc.errors import UserError


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
    """Updates rows of a value "centres" or "bias" by their gradients.

    Attributes:
        moments: names of the arrays beside a value. needs_norms: whether an `Update` must have norms.
        weight_decay: of the centres; the bias is not decayed.
        kernel: of plsc/native/heads/rows.py, which does the same to arrays in host memory and takes the
            numbers that kernel_numbers(name, update) returns. None: rows are copied to tensors and back.
    """

    moments: tuple[str, ...] = ()
    needs_norms = False
    weight_decay = 0.0
    kernel: str | None = None

    def __init_subclass__(cls):
        if "update_rows" in vars(cls) and "kernel" not in vars(cls):
            cls.kernel = None  # a base's does something else

    def decay(self, name: str) -> float:
        """Return the weight decay of a value."""
        return self.weight_decay if name == "centres" else 0.0

    @abstractmethod
    def update_rows(
        self,
        name: str,
        value: paddle.Tensor,
        moments: Sequence[paddle.Tensor],
        grad: paddle.Tensor,
        update: Update,
    ) -> None:
        """Update the selected rows of a value and its moments in place, [k, width] or [k]. They come some
        thousand at a time, so a row's new numbers must not depend on other rows."""


def check_rule(rule: Rule) -> None:
    """Refuse by UserError a rule that leaves the rows that it is given as they are."""
    value, grad = paddle.ones([2, 3]), paddle.ones([2, 3])
    rule.update_rows(
        "centres", value, [paddle.zeros([2, 3]) for _ in rule.moments], grad, Update(0.1, 1, (1.0, 1.0))
    )
    if (value == 1.0).all():
        raise UserError(
            f"{type(rule).__name__} changes no row; write into `value`, as by "
            "`value.subtract_(update.lr * grad)`",
            key="Optimizer.head.name",
        )


class Momentum(Rule):
    """Momentum SGD as Paddle's: v <- mu v + g + decay w;  w <- w - lr v.

    With nesterov w <- w - lr (g + decay w + mu v), as Sutskever et al. 2013, "On the importance of
    initialization and momentum in deep learning", in the variables of Paddle and PyTorch.
    """

    moments = ("momentum",)
    kernel = "momentum"

    def __init__(self, momentum: float = 0.9, weight_decay: float = 0.0, nesterov: bool = False):
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.nesterov = nesterov

    def kernel_numbers(self, name, update):
        return update.lr, self.momentum, self.decay(name), self.nesterov

    def update_rows(self, name, value, moments, grad, update):
        decay = self.decay(name)
        rate = paddle.full([], update.lr)
        momentum_(value, grad, *moments, rate, self.momentum, self.nesterov, decay)


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
    kernel = "adamw"

    def __init__(self, beta1: float, beta2: float, epsilon: float, weight_decay: float):
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.weight_decay = weight_decay

    def kernel_numbers(self, name, update):
        rate = update.lr / (1 - self.beta1**update.number)
        root = (1 - self.beta2**update.number) ** -0.5
        betas = self.beta1, 1 - self.beta1, self.beta2, 1 - self.beta2
        return (*betas, rate, root, self.epsilon, update.lr * self.decay(name))

    def update_rows(self, name, value, moments, grad, update):
        beta1, rest1, beta2, rest2, rate, root, epsilon, shrink = self.kernel_numbers(name, update)
        # Not Paddle's op, whose arguments differ between its versions.
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
    kernel = "lars"

    def __init__(self, momentum: float, weight_decay: float, coefficient: float, epsilon: float):
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.coefficient = coefficient
        self.epsilon = epsilon

    def _rate(self, name: str, update: Update) -> float | paddle.Tensor:
        weight, grad = update.norms
        decay = self.decay(name)
        on_device = paddle.is_tensor(weight)
        if not decay or not (on_device or (weight and grad)):
            return update.lr
        rate = update.lr * self.coefficient * weight / (grad + decay * weight + self.epsilon)
        if on_device:
            rate = paddle.where((weight > 0) & (grad > 0), rate, paddle.full([], update.lr))
        return rate

    def kernel_numbers(self, name, update):
        return self._rate(name, update), self.momentum, self.decay(name)

    def update_rows(self, name, value, moments, grad, update):
        (velocity,) = moments
        scaled = self._rate(name, update) * (grad + self.decay(name) * value)
        paddle.assign(self.momentum * velocity + scaled, output=velocity)
        paddle.assign(value - velocity, output=value)
