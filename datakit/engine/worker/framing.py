"""Length-prefixed messages on a socket."""

from __future__ import annotations

import socket
import struct

HEADER = struct.Struct("<Q")


def send_frame(connection: socket.socket, data: bytes) -> None:
    """Write one message."""
    connection.sendall(HEADER.pack(len(data)) + data)


def receive_frame(connection: socket.socket) -> bytes:
    """Read one message. Raises EOFError where the other end closed before it was whole."""
    (length,) = HEADER.unpack(_exactly(connection, HEADER.size))
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    pieces, missing = [], count
    while missing:
        piece = connection.recv(min(missing, 1 << 20))
        if not piece:
            raise EOFError(f"the other end closed with {missing} of {count} bytes to come")
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)
