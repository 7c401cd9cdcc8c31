"""Update a bank's selected rows by a rule, the class centres' optimizer.

A rule names the additional arrays that it needs for each value (`moments`). They are shaped like the value
and start at zero. They are stored, checkpointed and resharded with the value. A rule works with every bank.
docs/extend.md shows how to write your own.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import paddle

from plsc.distributed.paddle_internals import momentum_
from plsc.errors import UserError


class Update(NamedTuple):
    """The numbers of one update that all rows share.

    Attributes:
        lr: learning rate.
        number: this update, counted from 1.
        norms: the selected centres' norm over all ranks, and their gradient's norm. Both are floats or
            scalars on the device. They are set only for a rule that `needs_norms`.
    """

    lr: float
    number: int
    norms: tuple[float, float] | tuple[paddle.Tensor, paddle.Tensor] | None = None


class Rule(ABC):
    """Updates rows in the values "centres" and "bias" by their gradients.

    Attributes:
        moments: the additional arrays' names for each value.
        needs_norms: whether an `Update` must have norms.
        weight_decay: the centres' weight decay. The bias has none.
        kernel: a kernel's name in plsc/native/heads/rows.py that does the same to arrays in host memory. It
            takes the numbers that kernel_numbers(name, update) returns. If None, rows are copied to tensors
            and back.
    """

    moments: tuple[str, ...] = ()
    needs_norms = False
    weight_decay = 0.0
    kernel: str | None = None

    def __init_subclass__(cls):
        if "update_rows" in vars(cls) and "kernel" not in vars(cls):
            cls.kernel = None  # the base class's kernel does something else

    def decay(self, name: str) -> float:
        """Return a value's weight decay."""
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
        """Update the selected rows in a value and its moments in place. A call gets some thousand rows at
        a time. A row's new numbers must therefore not depend on other rows.

        Args:
            name: "centres" or "bias".
            value: the value's rows, float32 [k, width], or [k] for the bias.
            moments: each moment's rows, shaped like `value`.
            grad: gradient with respect to `value`, with its shape.
            update: numbers that all rows share.
        """


def check_rule(rule: Rule) -> None:
    """Raise UserError if a rule does not change the rows that it gets."""
    value, grad = paddle.ones([2, 3]), paddle.ones([2, 3])
    rule.update_rows(
        "centres", value, [paddle.zeros([2, 3]) for _ in rule.moments], grad, Update(0.1, 1, (1.0, 1.0))
    )
    if (value == 1.0).all():
        raise UserError(
            f"{type(rule).__name__} changes no row; write into `value`, for example with "
            "`value.subtract_(update.lr * grad)`",
            key="Optimizer.head.name",
        )


class Momentum(Rule):
    """Momentum SGD, the same as Paddle's: v <- mu v + g + decay w;  w <- w - lr v.

    With nesterov, w <- w - lr (g + decay w + mu v). This is the method of Sutskever et al. 2013, "On the
    importance of initialization and momentum in deep learning", in Paddle's and PyTorch's variables.
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
    regularization"), the same as Paddle's.

        m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2
        w <- w - lr decay w - lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon)

    t is the update's number. It is the same for all rows, as in InsightFace's Partial FC. A row that is
    first selected late therefore starts with a step of up to (1 - beta1) / sqrt(1 - beta2) lr, which is
    3.2 lr with the usual betas. A row that is not selected stays unchanged, and so do its moments. It has no
    weight decay in that step.

    If v is stored as bfloat16, it is rounded stochastically, because one step changes it by less than
    bfloat16's rounding step. It stays right on average. It also stays >= 0, because rounding changes the
    magnitude and never the sign.
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
    networks"), the same as Paddle's LarsMomentum.

        r = lr coefficient |w| / (|g| + decay |w| + epsilon);  v <- mu v + r (g + decay w);  w <- w - v

    |w| and |g| are norms over all ranks' selected centres, so the whole class matrix has one r. As in
    Paddle, r = lr if the weight decay is 0 or if a norm is 0. The bias has no weight decay, so its r is lr.
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
