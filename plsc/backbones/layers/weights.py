"""Turn weights into the layout and the dtype in which an operation of oneDNN takes them."""

from ctypes import c_void_p

from plsc.native import onednn

_LARGE = 1 << 18  # bytes of weights that are no longer in the processor's cache when they are used again


class Weights:
    """Turns float32 weights between Paddle's layout and the one that an operation prefers, and into its
    dtype, if they differ.

    Args:
        plain: describes the weights as Paddle has them.
        rounded: the same in the dtype that the operation takes; `plain` itself if that is float32.
        argument: of `operation`, DNNL_ARG_*.
    """

    def __init__(self, plain: c_void_p, rounded: c_void_p, operation: onednn.Operation, argument: int):
        other = operation.layout(argument)
        self._size = operation.size(argument)
        # Turning jumps through memory: weights that are in no cache are first rounded in order, to half the
        # bytes.
        first = self._size > _LARGE and not onednn.same(plain, rounded)
        start = rounded if first else plain
        self._round = _reorder(plain, rounded) if first else None
        self._to = None if onednn.same(start, other) else _reorder(start, other)
        self._back = None if onednn.same(plain, other) else _reorder(other, plain)

    def given(self, address: int) -> int:
        """Return the address of these weights as the operation takes them."""
        if self._round is not None:
            rounded = onednn.buffer(self._size, "rounded weights")
            self._round(address, rounded)
            address = rounded
        if self._to is not None:
            turned = onednn.buffer(self._size, "weights")
            self._to(address, turned)
            address = turned
        return address

    def place(self, address: int) -> int:
        """Return the address where the operation shall write weights that `taken` brings to `address`."""
        return address if self._back is None else onednn.buffer(self._size, "weights")

    def taken(self, address: int) -> None:
        if self._back is not None:
            self._back(onednn.buffer(self._size, "weights"), address)


def _reorder(source: c_void_p, target: c_void_p) -> onednn.Operation:
    return onednn.Operation("reorder", [source, target], [onednn.SRC, onednn.DST])
