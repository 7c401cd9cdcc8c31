"""Convert weights to the layout and dtype that a oneDNN operation takes."""

from ctypes import c_void_p

from plsc.native import onednn

_LARGE = 1 << 18  # bytes. Larger weights have left the processor's cache before they are used again


class Weights:
    """Converts float32 weights between Paddle's layout and an operation's layout and dtype, if they differ.

    Args:
        plain: describes the weights as Paddle stores them.
        rounded: describes them in Paddle's layout and the operation's dtype. It is `plain` itself for
            float32.
        operation: the operation that takes or writes the weights.
        argument: the weights' number among the operation's arguments, DNNL_ARG_*.
    """

    def __init__(self, plain: c_void_p, rounded: c_void_p, operation: onednn.Operation, argument: int):
        other = operation.layout(argument)
        self._size = operation.size(argument)
        # Changing the layout jumps through memory. Weights outside the cache are therefore rounded first, in
        # order, which halves their bytes.
        first = self._size > _LARGE and not onednn.same(plain, rounded)
        start = rounded if first else plain
        self._round = _reorder(plain, rounded) if first else None
        self._to = None if onednn.same(start, other) else _reorder(start, other)
        self._back = None if onednn.same(plain, other) else _reorder(other, plain)

    def convert(self, address: int) -> int:
        """Convert the weights at `address` for the operation. Return the result's address."""
        if self._round is not None:
            rounded = onednn.buffer(self._size, "rounded weights")
            self._round(address, rounded)
            address = rounded
        if self._to is not None:
            turned = onednn.buffer(self._size, "weights")
            self._to(address, turned)
            address = turned
        return address

    def output_address(self, address: int) -> int:
        """Return the address that the operation writes to. Call `convert_back(address)` afterwards."""
        return address if self._back is None else onednn.buffer(self._size, "weights")

    def convert_back(self, address: int) -> None:
        """Convert the weights that the operation has written, and store them at `address`."""
        if self._back is not None:
            self._back(onednn.buffer(self._size, "weights"), address)


def _reorder(source: c_void_p, target: c_void_p) -> onednn.Operation:
    return onednn.Operation("reorder", [source, target], [onednn.SRC, onednn.DST])
