"""The connection to the key-value store."""

import socket

from plsc.distributed.key_value_store import _send_at_once


def test_connections_to_the_store_and_no_others_send_at_once():
    def is_set(connection):
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0

    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        connections = [socket.create_connection(server.getsockname()) for server in (one, other)]
        pair = socket.socketpair()
        try:
            assert not any(map(is_set, connections))
            _send_at_once(one.getsockname()[1])
            assert [is_set(connection) for connection in connections] == [True, False]
            connections[0].sendall(b"still open")
        finally:
            for connection in (*connections, *pair):
                connection.close()
