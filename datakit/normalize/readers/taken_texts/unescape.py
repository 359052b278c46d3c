"""Compiles the pass that unescapes strings of JSON. It looks at 32 bytes at a time: they are copied to the output as a
whole, and the first quote, backslash or control character among them ends the copy.

numba does not use vector instructions in a loop that ends at a byte that it has to find. `_copy` is therefore made of
LLVM's own instructions, which LLVM translates for every processor. Only escapes, and the last bytes of a chunk, are
examined byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from datakit.text.numba_cache import Decorator, cached_njit

WIDTH = 32  # bytes copied at a time; an output must have room for as many bytes more
UNREAD = -1
QUOTE, BACKSLASH = 34, 92
_VECTOR = ir.VectorType(ir.IntType(8), WIDTH)
_SIMPLE = np.zeros(256, np.uint8)  # for each byte that may follow a backslash, except u: the byte that both stand for
_SIMPLE[list(b'"\\/bfnrt')] = list(b'"\\/\b\f\n\r\t')
_HEX = np.full(256, 255, np.uint8)  # the values of hexadecimal digits
_HEX[list(b"0123456789abcdefABCDEF")] = [*range(16), *range(10, 16)]

kernel: Decorator = cached_njit()


@intrinsic
def _copy(_: Any, data: Any, i: Any, output: Any, t: Any) -> tuple[Any, Callable[..., Any]]:
    """Copy WIDTH bytes from data[i:] to output[t:]. Return how many of them precede the first quote, backslash or
    control character: WIDTH if there is none.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def place(array: int, index: int) -> Any:
            made = context.make_array(signature.args[array])(context, builder, arguments[array])
            return builder.bitcast(builder.gep(made.data, [arguments[index]]), _VECTOR.as_pointer())

        def every(octet: int) -> Any:
            return ir.Constant(_VECTOR, [octet] * WIDTH)

        found = builder.load(place(0, 1), align=1)
        builder.store(found, place(2, 3), align=1)
        marks = builder.icmp_unsigned("<", found, every(32))
        for octet in (QUOTE, BACKSLASH):
            marks = builder.or_(marks, builder.icmp_unsigned("==", found, every(octet)))
        bits = builder.zext(builder.bitcast(marks, ir.IntType(WIDTH)), ir.IntType(64))
        return builder.cttz(builder.or_(bits, ir.Constant(ir.IntType(64), 1 << WIDTH)), ir.Constant(ir.IntType(1), 1))

    return types.int64(data, types.int64, output, types.int64), build


@kernel
def _unit(data: np.ndarray, i: int) -> int:
    """Return the UTF-16 code unit of an escape, backslash u and four digits, that begins at `i`."""
    if i + 6 > len(data) or data[i] != BACKSLASH or data[i + 1] != 117:
        return UNREAD
    value = 0
    for k in range(i + 2, i + 6):
        digit = _HEX[data[k]]
        if digit > 15:
            return UNREAD
        value = value * 16 + int(digit)
    return value


@kernel
def _encode(code: int, output: np.ndarray, t: int) -> int:
    """Write a character as UTF-8 to output[t:]; return the position after it."""
    if code < 0x80:
        output[t] = code
        return t + 1
    if code < 0x800:
        output[t] = 0xC0 | code >> 6
    elif code < 0x10000:
        output[t], output[t + 1] = 0xE0 | code >> 12, 0x80 | code >> 6 & 63
        t += 1
    else:
        output[t], output[t + 1], output[t + 2] = 0xF0 | code >> 18, 0x80 | code >> 12 & 63, 0x80 | code >> 6 & 63
        t += 2
    output[t + 1] = 0x80 | code & 63
    return t + 2


@kernel
def unescape(data: np.ndarray, i: int, output: np.ndarray, t: int) -> tuple[int, int]:
    """Write the content of the string that begins at `i` to output[t:]; return the positions of the quote that ends the
    string and of the end of the output. The first is -1 if the string holds what is not read: a control character, an
    unknown escape, or an escape of NUL or of a lone surrogate.
    """
    while i < len(data):
        if i + WIDTH <= len(data):
            clean = _copy(data, i, output, t)  # pyright: ignore[reportCallIssue] - numba passes the first argument
            i += clean
            t += clean
            if clean == WIDTH:
                continue
        octet = data[i]
        if octet == QUOTE:
            return i, t
        if octet < 32:
            break
        if octet != BACKSLASH:  # near the end of the chunk
            output[t] = octet
            i += 1
            t += 1
            continue
        if i + 1 < len(data) and _SIMPLE[data[i + 1]] > 0:
            output[t] = _SIMPLE[data[i + 1]]
            i += 2
            t += 1
            continue
        code = _unit(data, i)
        i += 6
        if 0xD800 <= code < 0xDC00:
            second = _unit(data, i)
            code = ((code - 0xD800) << 10) + (second - 0xDC00) + 0x10000 if 0xDC00 <= second < 0xE000 else UNREAD
            i += 6
        if code <= 0 or 0xDC00 <= code < 0xE000:
            break
        t = _encode(code, output, t)
    return UNREAD, t
