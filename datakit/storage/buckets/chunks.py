"""Reads an asynchronous body in chunks of up to a MiB, so that few of them cross from the client's thread to ours."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable, Iterator

CHUNK_BYTES = 1 << 20
Read = Callable[[int], Awaitable[bytes]]


def chunks_of(loop: AbstractEventLoop, read: Read) -> Iterator[bytes]:
    """Yield the bytes of a body. loop: the event loop of the client. If the connection breaks, the bytes that were read
    before are yielded first; those that wait in the client's buffers, up to 2 MiB, are lost.
    """
    from fsspec.asyn import sync

    while data := sync(loop, _gathered, read):
        yield data


async def _gathered(read: Read) -> bytes:
    parts, size = list[bytes](), 0
    while size < CHUNK_BYTES:
        try:
            data = await read(CHUNK_BYTES - size)
        except Exception:
            if not parts:
                raise
            break  # the next call fails in the same way
        if not data:
            break
        parts.append(data)
        size += len(data)
    return b"".join(parts)
