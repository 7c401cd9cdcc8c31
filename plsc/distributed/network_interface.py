"""Find the network interface over which ranks on several machines reach each other.

Gloo takes the address that belongs to the machine's name. That address is 127.0.1.1 on Debian and Ubuntu, may
be unknown, or may belong to another machine. The launcher knows the right address from `--host`, which it
passes on as PADDLE_CURRENT_ENDPOINT. This module does not import Paddle.

    addresses()    # {"127.0.0.1": "lo", "10.77.0.11": "eth0"}
"""

import array
import fcntl
import ipaddress
import os
import socket
import struct

from plsc.distributed.environment import local_size_from_env, master_from_env, world_size_from_env
from plsc.errors import UserError

_SIOCGIFCONF = 0x8912  # linux/sockios.h, man 7 netdevice
_ENTRY = 40  # bytes per struct ifreq on 64-bit Linux
_MAX_ENTRIES = 1024


def addresses() -> dict[str, str]:
    """Map each IPv4 address on this machine to its interface's name."""
    buffer = array.array("B", bytes(_ENTRY * _MAX_ENTRIES))
    request = struct.pack("iP", len(buffer), buffer.buffer_info()[0])
    with socket.socket(type=socket.SOCK_DGRAM) as any_socket:
        used, _ = struct.unpack("iP", fcntl.ioctl(any_socket, _SIOCGIFCONF, request))
    entries = [buffer[at : at + _ENTRY].tobytes() for at in range(0, used, _ENTRY)]
    # Each entry is a 16-byte name and a struct sockaddr_in: family, port, address.
    return {
        socket.inet_ntoa(entry[20:24]): entry[:16].partition(b"\0")[0].decode().partition(":")[0]
        for entry in entries
    }


def for_gloo() -> str | None:
    """Choose the interface for Gloo. None if the user has chosen one (GLOO_SOCKET_IFNAME).

    Raises UserError if other machines cannot reach this one by the address that the launch gives it.
    """
    if chosen := os.environ.get("GLOO_SOCKET_IFNAME"):
        known = [name for _, name in socket.if_nameindex()]
        if chosen not in known:
            raise UserError(
                f"GLOO_SOCKET_IFNAME is {chosen}, and this machine has no such interface (there are "
                f"{', '.join(known)}); unset it"
            )
        return None
    if world_size_from_env() == local_size_from_env():
        return "lo"
    host = os.environ["PADDLE_CURRENT_ENDPOINT"].rpartition(":")[0]
    remedy = "give Paddle's launcher --host with the address by which the other machines reach this one"
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        raise UserError(
            f"the launch calls this machine {host}, which has no IPv4 address, and Paddle uses no other; "
            f"{remedy}"
        ) from error
    # If rank 0 listens on loopback, too, both machines are this one.
    if ipaddress.ip_address(address).is_loopback and master_from_env()[0] != host:
        also = "" if host == address else f", {address}"
        raise UserError(f"the launch calls this machine {host}{also}: others cannot reach it; {remedy}")
    known = addresses()
    if address not in known:
        own = ", ".join(f"{name} {ip}" for ip, name in known.items())
        raise UserError(
            f"the launch calls this machine {host}, and no interface has the address {address} (there are "
            f"{own}); {remedy}, or set GLOO_SOCKET_IFNAME to an interface"
        )
    return known[address]
