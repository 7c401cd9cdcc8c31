"""Run the backbone in a training step: compute the embeddings forward, and the gradients backward.

`forward` returns the embeddings as a leaf: a tensor that is detached from the backbone's graph and collects
a gradient. The head computes this gradient for all samples of the step at once. `backward` then propagates
the gradient through the backbone, and averages the backbone's gradients over the ranks.

If this rank has more than `batch_size` samples in a step, they are split into micro-batches. The forward pass
computes all embeddings without a graph. The backward pass runs the backbone again with a graph for each
micro-batch (Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", 2021). The
gradients are the same as without micro-batches, except that BatchNorm uses a micro-batch's statistics.

A backbone has statistics: BatchNorm's running statistics, and all other tensors without a gradient. When the
backward pass runs a layer again, the statistics stay as the forward pass left them.

Try it: train with DataLoader.Train.batch_size=32 and DataLoader.Train.global_batch=64 on one rank, which
takes two micro-batches per step.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle.profiler import RecordEvent

from plsc import distributed
from plsc.backbones.layers import Addresses
from plsc.distributed.device import on_device, takes_device_path, to_device
from plsc.distributed.paddle_internals import flatten
from plsc.errors import UserError
from plsc.training.amp import LossScale, autocast, nonfinite, unscale
from plsc.training.embed import check_output, to_input
from plsc.training.part import arrays_on_rank_0
from plsc.training.recompute import recomputing
from plsc.utils.preprocessing import Preprocessing
from plsc.utils.registry import did_you_mean
from plsc.utils.sharding import count_micro_batches, split


class MicroBatch(NamedTuple):
    """Samples that the backbone processes together.

    Attributes:
        step: number of the step, from 0.
        number: the micro-batch's number in its step, from 0.
        first: the first sample's number among all ranks' samples in the step.
        rows: where the samples are among this rank's samples.
        images: the samples' pixels [n, *shape].
    """

    step: int
    number: int
    first: int
    rows: slice
    images: np.ndarray | paddle.Tensor


class _Ahead(NamedTuple):
    """The next step's images, and micro-batches with copies on the device. The copies may still be queued."""

    images: np.ndarray
    parts: list[MicroBatch]


class Statistics:
    """A copy of a backbone's statistics. Making the copy starts one operation per dtype on the device.

    Attributes:
        copies: the copied numbers, one tensor per dtype.
    """

    @paddle.no_grad()
    def __init__(self, tensors: Sequence[paddle.Tensor]):
        groups: dict[object, list[paddle.Tensor]] = {}
        for tensor in tensors:
            groups.setdefault(tensor.dtype, []).append(tensor)
        self._groups = [*groups.values()]
        self.copies = [paddle.concat([flatten(tensor) for tensor in group]) for group in self._groups]

    def values(self) -> Iterator[tuple[paddle.Tensor, paddle.Tensor]]:
        """Yield each original tensor with its copy."""
        for group, copy in zip(self._groups, self.copies):
            parts = copy.split([tensor.size for tensor in group])
            for tensor, part in zip(group, parts):
                yield tensor, part.reshape(tensor.shape)

    @paddle.no_grad()
    def restore(self) -> None:
        """Write the copied numbers back into the original tensors."""
        for tensor, value in self.values():
            paddle.assign(value, output=tensor)


class ParallelBackbone:
    """Runs a backbone on this rank's samples. Every rank makes one.

    Args:
        backbone: the layer, without a data parallel wrapper.
        preprocessing: turns samples into the backbone's input.
        embedding_size: size D of the embeddings that the backbone must return.
        seed: seed for the random numbers in a forward pass.
        batch_size: largest number of samples in a micro-batch. A rank's samples are split into as few
            micro-batches as possible, with equal sizes: with batch_size 32, 48 samples become 24 and 24. One
            or two samples above a full micro-batch do not make a micro-batch of their own.
        shares: function that takes a step, and returns each rank's range of samples in the step.
        statistics: the backbone's statistics, see `statistics_of`.
        recomputed: layers that do not keep their activations. The backward pass runs them again.
        frozen_norms: layers that stay in evaluation mode during training.
        amp: 16-bit dtype to compute in (plsc/training/amp.py), or None to compute in float32. In both cases,
            the parameters, their gradients and the embeddings that `forward` returns are float32.
        loss_scale: scales the gradients in the backward pass with float16, otherwise None.
    """

    def __init__(
        self,
        backbone: paddle.nn.Layer,
        preprocessing: Preprocessing,
        embedding_size: int,
        *,
        seed: int,
        batch_size: int,
        shares: Callable[[int], list[tuple[int, int]]],
        statistics: Sequence[paddle.Tensor],
        recomputed: Sequence[paddle.nn.Layer] = (),
        frozen_norms: Sequence[paddle.nn.Layer] = (),
        amp: str | None = None,
        loss_scale: LossScale | None = None,
    ):
        self.backbone = backbone
        self._preprocessing = preprocessing
        self._embedding_size = embedding_size
        self._seed = seed
        self._batch_size = batch_size
        self._shares = shares
        self._recomputed = recomputed
        self._frozen_norms = frozen_norms
        self._amp = amp
        self.loss_scale = loss_scale
        self._addresses = Addresses(backbone, seed)
        self._statistics = statistics
        of_statistics = {id(tensor) for tensor in statistics}
        self._parameters = backbone.parameters()
        self._weights = [p for p in self._parameters if id(p) not in of_statistics and p.is_floating_point()]
        self._model = backbone  # after `start`, its backward pass may average the gradients over the ranks
        self._average: Callable[[], object] = lambda: None
        self._parts: list[MicroBatch] = []  # from the last forward pass
        self._ahead: _Ahead | None = None
        self._out: paddle.Tensor | None = None  # with its graph, if there was one micro-batch

    def start(self) -> None:
        """Copy rank 0's parameters and buffers to every rank. Every rank calls it before the first step."""
        self._model, self._average = distributed.data_parallel(self.backbone, bool(self._recomputed))

    def send_ahead(self, images: np.ndarray, step: int) -> None:
        """Queue a copy of the next step's images to the device while it computes this step. On CPUs, do
        nothing."""
        if takes_device_path():
            self._ahead = _Ahead(images, self._cut(images, step))

    def forward(self, images: np.ndarray, step: int) -> paddle.Tensor:
        """Compute this rank's embeddings.

        Args:
            images: samples [B, *shape].
            step: number of the step, from 0.

        Returns the embeddings, float32 [B, D], as a leaf. Pass their gradient to `backward`.
        """
        ahead, self._ahead = self._ahead, None
        self._parts = ahead.parts if ahead and ahead.images is images else self._cut(images, step)
        with RecordEvent("forward"):
            if len(self._parts) == 1:
                self._out = self._embed(self._model, self._parts[0])
                emb_BD = self._out.detach()
            else:
                with paddle.no_grad():
                    emb_BD = paddle.concat([self._embed(self.backbone, part) for part in self._parts])
        emb_BD.stop_gradient = False
        return emb_BD

    def backward(self, grad_BD: paddle.Tensor) -> None:
        """Compute the parameters' gradients and average them over the ranks. Every rank calls it.

        If the loss scale is too large, some gradients are inf or NaN.

        Args:
            grad_BD: gradient with respect to the embeddings that the last `forward` returned, [B, D].
        """
        out, self._out = self._out, None
        if self.loss_scale:
            grad_BD = grad_BD * self.loss_scale.scale
        runs_again = len(self._parts) > 1 or self._recomputed  # a second run changes the statistics again
        kept = self.copy_statistics() if runs_again else None
        with RecordEvent("backward"):
            # On devices, `_model` may wrap the backbone. The wrapper averages the accumulated gradients after
            # its own backward pass. Therefore only the last micro-batch uses the wrapper.
            for part in self._parts[:-1]:
                self._backward(self._embed(self.backbone, part), grad_BD, part)
            last = self._parts[-1]
            self._backward(self._embed(self._model, last) if out is None else out, grad_BD, last)
            self._average()
            if self.loss_scale:
                unscale(self.gradients(), self.loss_scale.scale)
            if kept:
                kept.restore()

    def copy_statistics(self) -> "Statistics":
        """Copy the backbone's statistics, which a forward pass may change."""
        return Statistics(self._statistics)

    def gradients(self) -> list[paddle.Tensor]:
        """List the parameters' gradients, except of parameters that have none."""
        return [p.grad for p in self._parameters if p.grad is not None]

    def weights(self, before: "Statistics") -> list[paddle.Tensor]:
        """List the parameters, and the statistics in `before`. Tensors with integers are not included."""
        return [*self._weights, *(copy for copy in before.copies if copy.is_floating_point())]

    def not_finite(self, before: "Statistics") -> str:
        """Return the name of a parameter, or of a statistic in `before`, that is not finite.

        Return "" if all are finite.
        """
        if not nonfinite(self.weights(before)).item():
            return ""
        tensors = {id(tensor): (name, tensor) for name, tensor in self.backbone.state_dict().items()}
        was = {id(tensor): value for tensor, value in before.values()}
        for key, (name, tensor) in tensors.items():
            if not paddle.isfinite(was.get(key, tensor)).all().item():
                return name
        return "a weight"

    def state_dict(self) -> dict[str, Any]:
        """Return the backbone's parameters and statistics."""
        return {"arrays": arrays_on_rank_0(self.backbone.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the arrays. Their names and shapes must be the same as in the backbone."""
        own = self.backbone.state_dict()
        for name, array in state["arrays"].items():
            own[name].set_value(array)

    def _cut(self, images: np.ndarray, step: int) -> list[MicroBatch]:
        shares = self._shares(step)
        count = count_micro_batches([stop - start for start, stop in shares], self._batch_size)
        first = shares[distributed.rank()][0]
        rows_of_parts = [slice(start, stop) for start, stop in split(len(images), count)]
        parts = [images[rows] for rows in rows_of_parts]
        sent = map(to_device, parts) if takes_device_path() else parts
        return [
            MicroBatch(step, number, first + rows.start, rows, part)
            for number, (rows, part) in enumerate(zip(rows_of_parts, sent))
        ]

    def _embed(self, model: paddle.nn.Layer, part: MicroBatch) -> paddle.Tensor:
        # A user's own layers may draw from Paddle's generator.
        paddle.seed(hash((self._seed, part.step, distributed.rank(), part.number)) & 0x7FFFFFFF)
        model.train()
        for layer in self._frozen_norms:
            layer.eval()
        addressed = self._addresses.use(part.step, part.first, len(part.images))
        with addressed, recomputing(self._recomputed), autocast(self._amp):
            out = model(to_input(part.images, self._preprocessing))
        if self._amp and isinstance(out, paddle.Tensor):
            out = out.astype("float32")
        check_output(out, len(part.images), self._embedding_size)
        if out.stop_gradient and paddle.is_grad_enabled():
            raise UserError(
                "the backbone's embeddings have no gradient, so it would not be trained; remove detach() "
                "and no_grad()"
            )
        return out

    def _backward(self, out: paddle.Tensor, grad_BD: paddle.Tensor, part: MicroBatch) -> None:
        addressed = self._addresses.use(part.step, part.first, len(part.images))
        with addressed, autocast(None if on_device() else self._amp):  # for layers that run again on a CPU
            out.backward(grad_BD[part.rows])


def layers_to_recompute(asked: bool | list[str], backbone: paddle.nn.Layer) -> list[paddle.nn.Layer]:
    """Find the layers whose activations are computed again in the backward pass. If a name belongs to a
    LayerList, all layers in the list are returned.

    Args:
        asked: the setting Model.recompute. True means the layers in the backbone's class attribute
            `recomputed`. A list contains layer names.
        backbone: the layer that contains these layers.

    Raises UserError if a name is not a layer, or if `asked` is True but the backbone has no `recomputed`.
    """
    kind = type(backbone).__name__
    children = ", ".join(child for child, _ in backbone.named_children())
    names = getattr(backbone, "recomputed", ()) if asked is True else asked or ()
    if asked is True and not names:
        raise UserError(f"{kind} does not say which layers; name some of [{children}]", "Model.recompute")
    known = dict(backbone.named_sublayers())
    layers = []
    for name in names:
        if name not in known:
            hint = did_you_mean(name, list(known))
            raise UserError(
                f"'{name}' is not a layer of {kind}, which has {children}{hint}", "Model.recompute"
            )
        layer = known[name]
        layers += list(layer) if isinstance(layer, paddle.nn.LayerList) else [layer]
    return layers
