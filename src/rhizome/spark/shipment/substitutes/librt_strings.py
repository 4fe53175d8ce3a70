"""`librt.strings`: a writer of bytes, and numbers in bytes."""

from __future__ import annotations

import struct
from typing import Final

_I16_BE: Final = struct.Struct(">h")
_I32_BE: Final = struct.Struct(">i")
_I64_BE: Final = struct.Struct(">q")
_F32_BE: Final = struct.Struct(">f")
_F64_BE: Final = struct.Struct(">d")


class BytesWriter:
    """Bytes that grow at the end."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray()

    def append(self, x: int, /) -> None:
        self._data.append(x)

    def write(self, b: bytes | bytearray, /) -> None:
        self._data += b

    def getvalue(self) -> bytes:
        return bytes(self._data)

    def truncate(self, size: int, /) -> None:
        if not 0 <= size <= len(self._data):
            raise ValueError("size must be within what is written")
        del self._data[size:]

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, i: int, /) -> int:
        return self._data[i]

    def __setitem__(self, i: int, x: int, /) -> None:
        self._data[i] = x


def _read(kind: struct.Struct, b: bytes, index: int) -> int:
    if index < 0:
        raise ValueError("index must be non-negative")
    if index + kind.size > len(b):
        raise IndexError("index out of range")
    found: int = kind.unpack_from(b, index)[0]
    return found


def read_i16_be(b: bytes, index: int, /) -> int:
    return _read(_I16_BE, b, index)


def read_i32_be(b: bytes, index: int, /) -> int:
    return _read(_I32_BE, b, index)


def read_i64_be(b: bytes, index: int, /) -> int:
    return _read(_I64_BE, b, index)


def read_f32_be(b: bytes, index: int, /) -> float:
    return _read(_F32_BE, b, index)


def read_f64_be(b: bytes, index: int, /) -> float:
    return _read(_F64_BE, b, index)


def write_i16_be(b: BytesWriter, n: int, /) -> None:
    b.write(_I16_BE.pack(n))


def write_i32_be(b: BytesWriter, n: int, /) -> None:
    b.write(_I32_BE.pack(n))


def write_i64_be(b: BytesWriter, n: int, /) -> None:
    b.write(_I64_BE.pack(n))


def write_f64_be(b: BytesWriter, n: float, /) -> None:
    b.write(_F64_BE.pack(n))
