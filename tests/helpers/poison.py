"""A network whose gradients, embeddings or centre gradients are not finite at chosen steps of chosen
ranks."""

import numpy as np
import paddle
from paddle.autograd import PyLayer

from plsc import distributed
from plsc.training.trainer import Trainer
from tests.helpers.tiny_runs import IMAGE_SHAPE, Linear, make_trainer


class _Times(PyLayer):
    """Identity, whose gradient is multiplied by a number."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor


class Poisoned(Linear):
    """Flatten, Linear, BatchNorm, Dropout. `factors()` says what is not finite in a step."""

    def __init__(self, embedding_size: int = 8, image_shape: tuple[int, int, int] = IMAGE_SHAPE):
        super().__init__(embedding_size, image_shape)
        self.norm, self.dropout = paddle.nn.BatchNorm1D(embedding_size), paddle.nn.Dropout(0.2)
        self.factors = lambda: (
            1.0,
            1.0,
        )  # on the embedding of the first sample, and on the Linear's gradient

    def forward(self, images):
        of_value, of_gradient = self.factors()
        x = self.dropout(self.norm(_Times.apply(self.linear(self.flat(images)), of_gradient)))
        if of_value != 1.0:
            x = paddle.concat([x[:1] * of_value, x[1:]])
        return x


def poisoned(output, bad: dict[int, str], *overrides: str, rank: int = 0, value="nan", **parts) -> Trainer:
    """A trainer that meets, at these steps (from 1) of this rank, a bad "embedding", "gradient" or "centres"
    (their gradient)."""
    paddle.seed(0)
    net = Poisoned()
    trainer = make_trainer(output, *overrides, backbone=net, **parts)
    amount = float(value)

    def factor(step: int, what: str) -> float:
        return amount if bad.get(step + 1) == what and distributed.rank() == rank else 1.0

    def now(what: str) -> float:
        return (
            factor(trainer.network._parts[0].step, what) if net.training else 1.0
        )  # it may be run again later

    net.factors = lambda: (now("embedding"), now("gradient"))
    select = trainer.head.bank.select

    def selected(index_K):
        selection = select(index_K)
        gradients = selection.gradients
        selection.gradients = lambda: {
            name: grad.multiply_(paddle.to_tensor(factor(trainer.step, "centres")))
            for name, grad in gradients().items()
        }
        return selection

    trainer.head.bank.select = selected
    return trainer


def everything(trainer: Trainer) -> dict[str, bytes]:
    """What a skipped step must not change, on this rank."""
    found = {name: tensor.numpy() for name, tensor in trainer.backbone.state_dict().items()}
    found.update(
        {f"optimizer {name}": array for name, array in trainer.optimizer.state_dict()["arrays"].items()}
    )
    found.update({f"head {name}": np.array(array[:]) for name, array in trainer.head.bank.state().items()})
    margin = trainer.head.margin.state_dict() if trainer.head.margin else {}
    return {**{name: array.tobytes() for name, array in found.items()}, "margin": repr(margin).encode()}


def states_before_steps(trainer: Trainer) -> list[dict[str, bytes]]:
    """Return a list that gets `everything` before each step of the training to come."""
    states, step = [], trainer.train_step

    def watched(batch):
        states.append(everything(trainer))
        return step(batch)

    trainer.train_step = watched
    return states


def leave_out(trainer: Trainer, number: int) -> None:
    """Let the following training count a step that it does not take. Its row repeats the previous one."""
    step, results = trainer.train_step, []

    def train_step(batch):
        if trainer.step == number - 1:
            trainer.step += 1
        else:
            results.append(step(batch))
        return results[-1]

    trainer.train_step = train_step
