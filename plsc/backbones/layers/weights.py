"""Turn weights into the layout and the dtype in which an operation of oneDNN takes them."""

from __future__ import annotations

from ctypes import c_void_p

from plsc.native import onednn


class Weights:
    """Turns float32 weights between Paddle's layout and the one that an operation prefers, and into its dtype, if they differ."""

    def __init__(self, plain: c_void_p, operation: onednn.Operation, argument: int):
        other = operation.layout(argument)
        self._same = onednn.same(plain, other)
        self._size = operation.size(argument)
        if not self._same:
            arguments = [onednn.SRC, onednn.DST]
            self._to = onednn.Operation("reorder", [plain, other], arguments)
            self._back = onednn.Operation("reorder", [other, plain], arguments)

    def given(self, address: int) -> int:
        """Return the address of these weights as the operation takes them."""
        if self._same:
            return address
        turned = onednn.buffer(self._size, "weights")
        self._to(address, turned)
        return turned

    def place(self, address: int) -> int:
        """Return the address where the operation shall write weights that `taken` brings to `address`."""
        return address if self._same else onednn.buffer(self._size, "weights")

    def taken(self, address: int) -> None:
        if not self._same:
            self._back(onednn.buffer(self._size, "weights"), address)
