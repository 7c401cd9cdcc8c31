"""Compute the softmax head slowly and obviously, dense in float64 numpy, for every sharded number to be
compared with.

    DenseHead(centres [C, D], margin=(arcface, 0.5), scale=64).loss_and_gradients(x [N, D], label [N])
"""

from __future__ import annotations

import numpy as np


def unit(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    length = np.sqrt((x * x).sum(1, keepdims=True))
    inverse = np.divide(1.0, length, out=np.zeros_like(length), where=length > 0)
    return x * inverse, inverse


def through_unit(grad: np.ndarray, x: np.ndarray) -> np.ndarray:
    u, inverse = unit(x)
    return (grad - (grad * u).sum(1, keepdims=True) * u) * inverse


def arcface(cos: np.ndarray, m: float) -> tuple[np.ndarray, np.ndarray]:
    theta = np.arccos(np.clip(cos, -1, 1))
    slope = np.divide(np.sin(theta + m), np.sin(theta), out=np.ones_like(cos), where=np.sin(theta) > 0)
    past = theta + m >= np.pi
    return np.where(past, cos - m * np.sin(m), np.cos(theta + m)), np.where(past, 1.0, slope)


def cosface(cos: np.ndarray, m: float) -> tuple[np.ndarray, np.ndarray]:
    return cos - m, np.ones_like(cos)


class DenseMomentum:
    def __init__(self, mu=0.9, decay=0.0, nesterov=False):
        self.mu = mu
        self.decay = decay
        self.nesterov = nesterov

    def step(self, w, g, v, lr, t, decay):
        g = g + decay * w
        v = self.mu * v + g
        return w - lr * (g + self.mu * v if self.nesterov else v), v


class DenseAdamW:
    def __init__(self, beta1, beta2, epsilon, decay):
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.decay = decay

    def step(self, w, g, m, v, lr, t, decay):
        m = self.beta1 * m + (1 - self.beta1) * g
        v = self.beta2 * v + (1 - self.beta2) * g**2
        m_hat = m / (1 - self.beta1**t)
        v_hat = v / (1 - self.beta2**t)
        return (1 - lr * decay) * w - lr * m_hat / (np.sqrt(v_hat) + self.epsilon), m, v


class DenseLARS:
    def __init__(self, mu, decay, coefficient, epsilon):
        self.mu = mu
        self.decay = decay
        self.coefficient = coefficient
        self.epsilon = epsilon

    def step(self, w, g, v, lr, t, decay):
        weight = np.linalg.norm(w)
        grad = np.linalg.norm(g)
        if decay and weight and grad:
            lr = lr * self.coefficient * weight / (grad + decay * weight + self.epsilon)
        v = self.mu * v + lr * (g + decay * w)
        return w - v, v


class DenseHead:
    """Holds C classes. The loss is the mean over N samples.

    margin: None, or (function, m).
    optimizer: one of those above.
    moments: the names of its arrays in the bank's `state()`.

    `taken` are the classes that take part (Partial FC), ascending. At first, all do. Gradients have a row for
    each.
    """

    def __init__(self, centres, bias=None, margin=None, scale=1.0, optimizer=None, moments=("momentum",)):
        self.w = centres.astype(np.float64)
        self.b = None if bias is None else bias.astype(np.float64)
        self.margin = margin
        self.scale = scale
        self.optimizer = optimizer or DenseMomentum()
        self.of_w = {name: np.zeros_like(self.w) for name in moments}
        self.of_b = {} if bias is None else {name: np.zeros_like(self.b) for name in moments}
        self.updates = 0
        self.taken = np.arange(len(self.w))

    def logits(self, x, label):
        """Compute the logits with margin and scale, the target logit's slope by the plain cosine (or
        product), and the plain logits."""
        rows = np.arange(len(x))
        target = np.searchsorted(self.taken, label)
        w = self.w[self.taken]
        plain = unit(x)[0] @ unit(w)[0].T if self.margin else x @ w.T
        if self.b is not None:
            plain = plain + self.b[self.taken]
        logits, slope = plain.copy(), np.ones(len(x))
        if self.margin:
            function, m = self.margin
            logits[rows, target], slope = function(plain[rows, target], m)
        return logits * self.scale, slope, plain

    def log_sum(self, logits):
        """Compute the logarithm of each sample's summed exponentials, [N, 1]."""
        top = logits.max(1, keepdims=True)
        return top + np.log(np.exp(logits - top).sum(1, keepdims=True))

    def loss_and_gradients(self, x, label):
        """Compute losses [N], and gradients of their mean by x, centres and bias."""
        x = x.astype(np.float64)
        rows = np.arange(len(x))
        target = np.searchsorted(self.taken, label)
        w = self.w[self.taken]
        logits, slope, _ = self.logits(x, label)
        lse = self.log_sum(logits)
        losses = lse[:, 0] - logits[rows, target]
        d = np.exp(logits - lse)
        d[rows, target] = (d[rows, target] - 1.0) * slope
        d *= self.scale / len(x)
        if not self.margin:
            return losses, d @ w, d.T @ x, d.sum(0)
        dx = through_unit(d @ unit(w)[0], x)
        return losses, dx, through_unit(d.T @ unit(x)[0], w), d.sum(0)

    def correct(self, x, label):
        plain = self.logits(x.astype(np.float64), label)[2]
        is_largest = plain == plain.max(1, keepdims=True)
        return (self.taken[plain.argmax(1)] == label) & (is_largest.sum(1) == 1)

    def step(self, dw, db, lr):
        t = self.taken
        self.updates += 1
        parts = [(self.w, dw, self.of_w, self.optimizer.decay)]
        if self.b is not None:
            parts.append((self.b, db, self.of_b, 0.0))
        for value, grad, moments, decay in parts:
            before = [each[t] for each in moments.values()]
            after = self.optimizer.step(value[t], grad, *before, lr, self.updates, decay)
            for each, rows in zip((value, *moments.values()), after):
                each[t] = rows

    def state(self) -> dict[str, np.ndarray]:
        """Return values and moments by the names of the bank's `state()`."""
        state = {"centres": self.w, **self.of_w}
        if self.b is not None:
            state |= {"bias": self.b, **{f"bias_{name}": rows for name, rows in self.of_b.items()}}
        return state
