"""Collect all calls to Paddle's private API.

Each docstring gives the reason, and the public call that would do, if there is one. Private names change
without notice. If a new version of Paddle fails, look here first. All calls work with Paddle 2.6 and 3.3.
"""

import contextlib
import io
import sys
from collections.abc import Iterator, Sequence

import paddle
import paddle.distributed as dist
from paddle import _C_ops
from paddle.distributed import collective

_CPU = paddle.CPUPlace()


def job_store():
    """Return this job's TCPStore, which rank 0 serves.

    Paddle's groups use the same store, on a port that the launcher has reserved. The call holds the GIL until
    all ranks have connected. Public: none. `paddle.distributed.gloo_barrier` needs a second server.
    """
    return paddle.base.core.create_or_get_global_tcp_store()


def set_threads(count: int) -> None:
    """Set the number of threads for this process's matrix products.

    Public: only the environment variable OMP_NUM_THREADS, which Paddle sets to 1 when it is imported.
    """
    paddle.base.core.set_num_threads(count)


def take_in_rows(x_NC: paddle.Tensor, index_N1: paddle.Tensor) -> paddle.Tensor:
    """Return one number of each row: x[n, index[n, 0]], shaped [N, 1].

    Public: `paddle.take_along_axis`. With broadcast=True it copies x. With broadcast=False Paddle 2.6 reads
    the indices on the host.
    """
    return _C_ops.take_along_axis(x_NC, index_N1, 1)


def gradient_buckets(parameters: Sequence[paddle.Tensor], last: int, most: int) -> list[list[int]]:
    """Group parameters as `paddle.DataParallel` does. Return the indices for each group.

    The sums over three or more ranks depend on a number's place in its buffer. Public: only DataParallel,
    which cannot be used on Gloo (see plsc.distributed.gradients).

    Args:
        parameters: parameters to group.
        last: size of the first group, in bytes. Its gradients come last.
        most: size of the other groups, in bytes.
    """
    return paddle.base.core.eager_assign_group_by_size(parameters, [False] * len(parameters), [last, most])


@contextlib.contextmanager
def one_group_of_all_ranks() -> Iterator[None]:
    """Inside the block, let `dist.new_group` return the default group if all ranks are asked for.

    fleet.init asks for several such groups. With three or more Gloo ranks, making another group often fails
    ("connect ... Connection refused") or hangs on Paddle 2.6 and 3.3, because a rank connects before its peer
    listens. Public: none. `dist.new_group` always makes a new group.
    """
    original = dist.new_group

    def new_group(ranks=None, *args, **kwargs):
        world = collective._get_default_group()
        if ranks is None or sorted(ranks) == sorted(world.ranks):
            return world
        return original(ranks, *args, **kwargs)

    dist.new_group = new_group
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output):  # a banner with the flags that Paddle has changed itself
            dist.init_parallel_env()
        yield
    finally:
        dist.new_group = original
        for line in output.getvalue().splitlines():
            if not line.startswith(("=====", "FLAGS(")):
                print(line, file=sys.stderr)


def current_place() -> object:
    """Return the place that Paddle computes on. Public: `paddle.get_device()` returns only its name, from
    which a plug-in's place cannot be made."""
    return paddle.framework._current_expected_place()


def copy_to(tensor: paddle.Tensor, place: object, wait: bool) -> paddle.Tensor:
    """Copy a tensor to a place. The copy is queued, unless `wait` is True.

    Public: `Tensor.to(place, blocking=...)`, which refuses a plug-in's place in Paddle 2.6, and
    `Tensor.cpu()`, which keeps the graph.
    """
    return tensor._copy_to(place, wait)


def count_cards(kind: str) -> int:
    """Count an XPU's or a plug-in's cards.

    Public: none in Paddle 2.6. In Paddle 3, `paddle.device.device_count()` counts the current device's cards.
    """
    if kind == "xpu":
        return paddle.base.core.get_xpu_device_count()
    return paddle.base.core.get_custom_device_count(kind)


def empty(shape: list[int], dtype: paddle.dtype = paddle.float32) -> paddle.Tensor:
    """Return an uninitialised tensor on the CPU. Public: `paddle.empty`, which takes ten times as long. A
    network's layers call it 300 times in a step."""
    return _C_ops.empty(shape, dtype, _CPU)


def view(tensor: paddle.Tensor) -> paddle.Tensor:
    """Return another tensor with the same memory and shape. Public: `Tensor.view`, which takes 10 us
    longer."""
    return _C_ops.view_shape(tensor, tensor.shape)


def flatten(tensor: paddle.Tensor) -> paddle.Tensor:
    """Return a tensor in one dimension. Public: `paddle.flatten`, which takes 10 us longer. A network calls
    it for a hundred statistics."""
    return _C_ops.flatten(tensor, 0, -1)


def rows_in_place(tensor: paddle.Tensor, start: int, stop: int) -> paddle.Tensor:
    """Return rows [start, stop) as a tensor that shares their memory. Public: `tensor[start:stop]`, which is
    a copy if FLAGS_use_stride_kernel is 0."""
    return tensor._slice(start, stop)


def normalise(x_nD: paddle.Tensor, smallest_square: float) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Divide each row by its length, sqrt(sum(squares) + smallest_square). Return the rows [n, D] and the
    lengths [n, 1].

    Public: `F.normalize`, which needs three passes and does not return the lengths.
    """
    return _C_ops.norm(x_nD, 1, smallest_square, False)


def normalise_gradient(
    x_nD: paddle.Tensor, length_n1: paddle.Tensor, grad_nD: paddle.Tensor, smallest_square: float
) -> paddle.Tensor:
    """Return the gradient with respect to `x_nD` from the gradient with respect to the rows that `normalise`
    returns. It is 0 where the given length is infinite.

    Public: autograd, which needs five passes for `F.normalize`.
    """
    if hasattr(_C_ops, "norm_grad"):
        return _C_ops.norm_grad(x_nD, length_n1, grad_nD, 1, smallest_square, False)
    # Paddle 2.6 offers it only through autograd.
    x_nD = x_nD.detach()
    x_nD.stop_gradient = False
    with paddle.enable_grad():
        values_nD, _ = _C_ops.norm(x_nD, 1, smallest_square, False)
    paddle.autograd.backward([values_nD], [grad_nD])
    return paddle.where(length_n1.isinf(), paddle.zeros_like(grad_nD), x_nD.grad)


def squared_norm(tensor: paddle.Tensor) -> paddle.Tensor:
    """Sum a tensor's squares in float32. Public: `tensor.square().sum()`, which needs the tensor's
    memory a second time."""
    return _C_ops.squared_l2_norm(tensor)


def momentum_(
    value: paddle.Tensor,
    grad: paddle.Tensor,
    velocity: paddle.Tensor,
    rate: paddle.Tensor,
    momentum: float,
    nesterov: bool,
    decay: float,
) -> None:
    """Update `value` and `velocity` in place by momentum SGD, in one launch.

    Public: `paddle.optimizer.Momentum`, which updates whole parameters. A head's step updates selected rows.

    Args:
        value: numbers to update.
        grad: their gradient.
        velocity: their velocity.
        rate: learning rate, a float32 scalar.
        momentum: share that the velocity keeps.
        nesterov: whether to use Nesterov's momentum.
        decay: weight decay.
    """
    rule = ("l2_decay", decay) if decay else ("", 0.0)
    _C_ops.momentum_(value, grad, velocity, rate, None, momentum, nesterov, *rule, False, 1.0)


def unscale(gradients: list[paddle.Tensor], scale: paddle.Tensor) -> paddle.Tensor:
    """Divide tensors with one dtype by a scale [1], in place and in one launch. Return a bool [1] on the
    device: whether a number is not finite.

    Public: `paddle.amp.GradScaler.unscale_`, which needs an optimizer, makes the host wait for the result,
    and keeps a separate scale on each rank.
    """
    return _C_ops.check_finite_and_unscale_(gradients, scale)[-1]


def merge_updates(optimizer: paddle.optimizer.Optimizer, merged: bool) -> None:
    """Let an optimizer's next step update all parameters in one launch, or each parameter separately.

    One launch pairs gradients with parameters by their order, so no gradient may be missing. Public:
    `use_multi_tensor`, which holds for all steps.
    """
    optimizer._use_multi_tensor = merged
