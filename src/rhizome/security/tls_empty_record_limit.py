"""MeteredTls: the TLS of one accepted connection, which may send few records without data.

OpenSSL handles every record that it finds while it looks for data. In TLS 1.3 a client may announce
a new key as often as it likes: 27 bytes that cost 20 us. Without a limit some hundred kilobytes of
them would hold the event loop, and with it everybody else, before the client has logged in.

Invariant: OpenSSL is given at most ``UNIT_RECORDS_MAX`` records before they are counted against
what came of them, and a connection whose records without data are too many ends.
"""

from __future__ import annotations

import ssl
from typing import Any, Final, Self

HANDSHAKE_RECORDS_MAX: Final = 1_000
"""Of one handshake. A chain of certificates in the smallest records that can be agreed on takes two
hundred."""

BARREN_RECORDS_MAX: Final = 100
"""Records without data of one connection, after its handshake. Clients change their key after
millions of records, and most never do."""

FORGIVING_RECORDS: Final = 1_000
"""So many records with data make up for one without."""

UNIT_RECORDS_MAX: Final = 64
UNIT_BYTES_MAX: Final = 32 * 1024
"""So much is looked at at a time: the largest record fits."""

HEAD_BYTES: Final = 5
"""Of a record: type, version, size of the rest."""

_CREDIT_MAX: Final = BARREN_RECORDS_MAX * FORGIVING_RECORDS


class MeteredTls(ssl.SSLObject):
    """Made by ``SSLContext.wrap_bio`` of a context that has it as ``sslobject_class``.

    ``_arrived`` is where the event loop puts what comes, ``_given`` what OpenSSL reads from, and
    ``_waiting`` what is on its way from one to the other. ``_within``: so many bytes at its
    beginning belong to a record whose head was given. ``_credit``: what records may still be given
    for; one takes ``FORGIVING_RECORDS``, and data bring a little more than that back.
    """

    _arrived: ssl.MemoryBIO
    _given: ssl.MemoryBIO
    _waiting: bytes
    _within: int
    _credit: int
    _read: Any

    @classmethod
    def _create(cls, incoming: ssl.MemoryBIO, *arguments: Any, **options: Any) -> Self:
        given = ssl.MemoryBIO()
        made: Self = super()._create(given, *arguments, **options)  # type: ignore[misc]
        made._arrived = incoming
        made._given = given
        made._waiting = b""
        made._within = 0
        made._credit = HANDSHAKE_RECORDS_MAX * FORGIVING_RECORDS
        made._read = made._sslobj.read  # type: ignore[attr-defined]
        return made

    def do_handshake(self) -> None:
        while True:
            try:
                super().do_handshake()
            except ssl.SSLWantReadError:
                if not self._give():
                    raise
            else:
                self._credit = _CREDIT_MAX
                return

    def read(self, len: int = 1024, buffer: Any = None) -> Any:  # noqa: A002 - its name there
        if not self._given.pending:
            self._give()
        while True:
            try:
                found = self._read(len) if buffer is None else self._read(len, buffer)
            except ssl.SSLWantReadError:
                if not self._give():
                    raise
                continue
            if found and self._credit < _CREDIT_MAX:
                self._credit += FORGIVING_RECORDS + 1
            return found

    def pending(self) -> int:
        """The event loop reads on while this, or what it has put in, is more than nothing."""
        return super().pending() + self._given.pending + len(self._waiting)

    def unwrap(self) -> None:
        while True:
            try:
                super().unwrap()
            except ssl.SSLWantReadError:
                if not self._give():
                    raise
            else:
                return

    def _give(self) -> bool:
        """Give OpenSSL the next unit; answers whether there was one. Raises SSLError if too many
        records before it have brought nothing."""
        if self._credit < 0:
            raise ssl.SSLError(ssl.SSL_ERROR_SSL, "too many TLS records without data")
        waiting = self._waiting + self._arrived.read(UNIT_BYTES_MAX)
        end = self._take_unit(waiting)
        if end == len(waiting):
            self._waiting = b""
            self._given.write(waiting)
        else:
            self._waiting = waiting[end:]
            self._given.write(memoryview(waiting)[:end])
        if end:
            return True
        if not self._arrived.eof or self._given.eof:
            return False
        self._given.write_eof()
        return True

    def _take_unit(self, waiting: bytes) -> int:
        """Where the next unit ends; its records are paid for."""
        size = len(waiting)
        after = self._within
        records = 0
        while after + HEAD_BYTES <= size and records < UNIT_RECORDS_MAX:
            after += HEAD_BYTES + (waiting[after + 3] << 8 | waiting[after + 4])
            records += 1
        end = min(after, size)
        self._within = after - end
        self._credit -= records * FORGIVING_RECORDS
        return end
