"""Choose the address and the network interface by which this machine reaches the others.

Paddle's launcher takes the address of the host name, which /etc/hosts often gives as 127.0.1.1; Gloo takes it
too.
"""

from __future__ import annotations

import fcntl
import socket
import struct

from plsc.errors import UserError

_SIOCGIFADDR = 0x8915


def own_address(host: str, port: int) -> tuple[str, str | None]:
    """Return this machine's IPv4 address on the way to host:port, and its interface (None: not known).

    On the machine that `host` names it is the address of `host`. Raises UserError for a name that has no
    address.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))  # sends nothing
            address = probe.getsockname()[0]
    except OSError as error:
        raise UserError(
            f"--master: {host} cannot be reached from this machine ({error.strerror or error}); name machine 0 by an address "
            "that all machines reach"
        ) from error
    return address, interface_of(address)


def listening_address(host: str) -> str:
    """Return the address of --master if this machine has it; else "", all interfaces.

    A name that /etc/hosts gives as a loopback address is another one for the other machines, which have to
    reach this one to be told.
    """
    try:
        address = socket.gethostbyname(host)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:  # not known here, or not this machine's own, such as a forwarded one
        return ""
    return "" if address.startswith("127.") and host not in (address, "localhost") else address


def interface_of(address: str) -> str | None:
    """Return the network interface that has an IPv4 address; None if none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
            except OSError:  # has no IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as any_socket:
        any_socket.bind(("", 0))
        return any_socket.getsockname()[1]
