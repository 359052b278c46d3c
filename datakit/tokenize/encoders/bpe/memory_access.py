"""Reads and writes memory by address, for kernels. An address is that of a numpy array, which must live as long as the
kernel runs; nothing checks that an index is inside it.

numba counts the references to an array whenever it passes the array to another function or takes it out of a tuple.
For a function that is called for each word of a text, counting took ten times as long as its own work (measured). An
address is only a number.

    byte(address, i), word32(address, i), word64(address, i)    the i-th number of 8, 32 or 64 bits, as uint64
    put8, put32, put64(address, i, value)                       replace a number
    text64(address, i)                                          the 8 bytes from byte i on, little-endian, as uint64
    replace16(address, i, place, value, other, other_value, third, third_value)
                                                                replace the numbers of 32 bits at three indices, of 16
                                                                from the i-th on, and return the lowest of the 16; an
                                                                index outside the 16 has no effect
    pairs64(address, i, first, second)                          a bit for each of the 64 bytes from byte i on, which is
                                                                set if this byte is `first` and the next is `second`
    fetch(address, i)                                           load the cache line of the i-th number of 64 bits, soon
    trailing_zeros(value)                                       the number of zeros at the end; 64 for 0
"""

# ruff: noqa: PLR0917 - numba passes the arguments of an intrinsic by position

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_WIDE, _NARROW = ir.IntType(64), ir.IntType(32)
_SIXTEEN = ir.VectorType(_NARROW, 16)


def address_of(array: np.ndarray) -> int:
    """Return the address of the first element of a contiguous array."""
    assert array.flags.c_contiguous
    return int(array.__array_interface__["data"][0])  # array.ctypes takes ten times as long


def _pointer(builder: Any, address: Any, index: Any, *, bits: int, step: int) -> Any:
    """Return a pointer to a number of `bits` bits. step: the bytes between the numbers that `index` counts."""
    place = builder.add(address, builder.mul(index, ir.Constant(_WIDE, step)))
    return builder.inttoptr(place, ir.IntType(bits).as_pointer())


def _reader(bits: int, step: int) -> Any:
    @intrinsic
    def read(context: Any, address: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = builder.load(_pointer(builder, arguments[0], arguments[1], bits=bits, step=step))
            value.align = step
            return value if bits == _WIDE.width else builder.zext(value, _WIDE)

        return types.uint64(types.uint64, types.uint64), generate

    return read


def _writer(bits: int) -> Any:
    @intrinsic
    def write(context: Any, address: Any, index: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address, index, value = arguments
            narrow = value if bits == _WIDE.width else builder.trunc(value, ir.IntType(bits))
            builder.store(narrow, _pointer(builder, address, index, bits=bits, step=bits // 8))
            return context.get_dummy_value()

        return types.void(types.uint64, types.uint64, types.uint64), generate

    return write


def _pointer16(builder: Any, address: Any, index: Any) -> Any:
    """Return a pointer to 16 numbers of 32 bits."""
    place = builder.add(address, builder.mul(index, ir.Constant(_WIDE, 4)))
    return builder.inttoptr(place, _SIXTEEN.as_pointer())


def _lowest_of(builder: Any, numbers: Any) -> Any:
    """Return the lowest of 16 numbers."""
    kind = ir.FunctionType(_NARROW, [_SIXTEEN])
    lowest = cgutils.get_or_insert_function(builder.module, kind, "llvm.vector.reduce.umin.v16i32")
    return builder.zext(builder.call(lowest, [numbers]), _WIDE)


def _sixteen_of(builder: Any, value: Any) -> Any:
    """Return 16 numbers, each of which is `value`."""
    undefined = ir.Constant(_SIXTEEN, ir.Undefined)
    one = builder.insert_element(undefined, builder.trunc(value, _NARROW), ir.Constant(_NARROW, 0))
    return builder.shuffle_vector(one, undefined, ir.Constant(_SIXTEEN, [0] * 16))


@intrinsic
def _replace16(
    context: Any, address: Any, index: Any, place: Any, value: Any, other: Any, other_value: Any, third: Any,
    third_value: Any,
) -> Any:  # fmt: skip
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, index, *changes = arguments
        pointer = _pointer16(builder, address, index)
        numbers = builder.load(pointer)
        numbers.align = 4
        lanes = builder.add(_sixteen_of(builder, index), ir.Constant(_SIXTEEN, list(range(16))))
        for changed, new in zip(changes[::2], changes[1::2], strict=True):
            here = builder.icmp_unsigned("==", lanes, _sixteen_of(builder, changed))
            numbers = builder.select(here, _sixteen_of(builder, new), numbers)
        builder.store(numbers, pointer).align = 4
        return _lowest_of(builder, numbers)

    return types.uint64(*[types.uint64] * 8), generate


@intrinsic
def _pairs64(context: Any, address: Any, index: Any, first: Any, second: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        octets = ir.VectorType(ir.IntType(8), 64)

        def equal(at: Any, wanted: Any) -> Any:
            loaded = builder.load(builder.inttoptr(at, octets.as_pointer()))
            loaded.align = 1
            one = builder.insert_element(
                ir.Constant(octets, ir.Undefined), builder.trunc(wanted, ir.IntType(8)), ir.Constant(ir.IntType(32), 0)
            )
            everywhere = ir.Constant(ir.VectorType(ir.IntType(32), 64), [0] * 64)
            return builder.icmp_unsigned(
                "==", loaded, builder.shuffle_vector(one, ir.Constant(octets, ir.Undefined), everywhere)
            )

        at = builder.add(arguments[0], arguments[1])
        both = builder.and_(equal(at, arguments[2]), equal(builder.add(at, ir.Constant(_WIDE, 1)), arguments[3]))
        return builder.bitcast(both, _WIDE)

    return types.uint64(types.uint64, types.uint64, types.uint64, types.uint64), generate


@intrinsic
def _fetch(context: Any, address: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        octets, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [octets, number, number, number])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        place = builder.bitcast(_pointer(builder, *arguments, bits=64, step=8), octets)
        read, near, data = (ir.Constant(number, flag) for flag in (0, 3, 1))
        builder.call(prefetch, [place, read, near, data])
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64), generate


@intrinsic
def _trailing_zeros(context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


# numba passes the first argument, the context.
byte, word32, word64, text64 = _reader(8, 1), _reader(32, 4), _reader(64, 8), _reader(64, 1)
put8, put32, put64 = _writer(8), _writer(32), _writer(64)
trailing_zeros: Any = _trailing_zeros
replace16: Any = _replace16
fetch: Any = _fetch
pairs64: Any = _pairs64
