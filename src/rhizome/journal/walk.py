"""Where the records of a journal begin, many at once. Compiled.

For readers that look at the records of a window all together: the only thing about them that has to
be done one after the other is finding and checking them.
"""

from __future__ import annotations

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64

from rhizome.journal.records import check_record


def walk(data: bytes, start: i64) -> tuple[bytes, i64]:
    """Offsets of the valid records from `start` on, as big-endian numbers of 8 bytes, and where the
    first other thing is. Every record's checksum is verified.
    """
    found = BytesWriter()
    offset: i64 = start
    size: i64 = check_record(data, offset)
    while size > 0:
        write_i64_be(found, offset)
        offset += size
        size = check_record(data, offset)
    return found.getvalue(), offset
