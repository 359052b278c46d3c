"""Sends and receives length-prefixed messages on a socket."""

from __future__ import annotations

import socket
import struct

HEADER = struct.Struct("<Q")


def send_frame(connection: socket.socket, data: bytes) -> None:
    """Send one message."""
    connection.sendall(HEADER.pack(len(data)) + data)


def receive_frame(connection: socket.socket) -> bytes:
    """Receive one message. Raises EOFError if the other end closes the connection before the message is complete."""
    (length,) = HEADER.unpack(_receive_exactly(connection, HEADER.size))
    return _receive_exactly(connection, length)


def _receive_exactly(connection: socket.socket, count: int) -> bytes:
    pieces, missing = [], count
    while missing:
        piece = connection.recv(min(missing, 1 << 20))
        if not piece:
            raise EOFError(f"the other end closed the connection with {missing} of {count} bytes missing")
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)
