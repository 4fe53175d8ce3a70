"""Reads the fields of a method one after the other."""

from typing import final

from librt.strings import read_i64_be
from mypy_extensions import i64

from rhizome.amqp.field_table import read_table
from rhizome.amqp.primitives import u16_at, u32_at
from rhizome.errors import SyntaxErrorFault


@final
class FieldReader:
    """A cursor over a method's payload.

    Invariant: offset <= len(data). Every read checks the end first and raises SyntaxErrorFault
    when the payload is too short; what follows the last field is never looked at.
    """

    data: bytes
    offset: i64

    def __init__(self, data: bytes, offset: i64) -> None:
        self.data = data
        self.offset = offset

    def _take(self, width: i64) -> i64:
        """Move over `width` bytes; return where they start."""
        start = self.offset
        if width > len(self.data) - start:
            raise SyntaxErrorFault("method ends in the middle of its fields")
        self.offset = start + width
        return start

    def octet(self) -> i64:
        """Read an unsigned 8-bit number, or eight packed bits."""
        return self.data[self._take(1)]

    def short(self) -> i64:
        """Read an unsigned 16-bit number."""
        return u16_at(self.data, self._take(2))

    def long(self) -> i64:
        """Read an unsigned 32-bit number."""
        return u32_at(self.data, self._take(4))

    def longlong(self) -> i64:
        """Read a 64-bit number; 2**63 and above come out negative, with the same bits."""
        return read_i64_be(self.data, self._take(8))

    def shortstr(self) -> str:
        """Read a short string."""
        size = self.octet()
        start = self._take(size)
        return self.data[start : start + size].decode("utf-8", "surrogateescape")

    def longstr(self) -> bytes:
        """Read a long string."""
        size = self.long()
        start = self._take(size)
        return self.data[start : start + size]

    def table(self) -> dict[str, object]:
        """Read a field table."""
        table, self.offset = read_table(self.data, self.offset)
        return table
