"""Field tables: the RabbitMQ dialect of the AMQP 0-9-1 types.

    octet  bytes            Python value      word in error texts
    t      1                bool              bool
    b B    1 signed / un-   int               signedint
    s u    2 signed / un-   int               signedint
    I i    4 signed / un-   int               signedint
    l L    8 signed, both   int               signedint, or long beyond 32 bits
    f d    4, 8             float             double
    D      1 + 4 signed     Decimal           decimal
    S      4 + n            str               longstr
    x      4 + n            bytes             binary
    T      8 unsigned       Timestamp         timestamp
    A F    4 + n            list, dict        array, table
    V      0                None              void

Text is UTF-8 with surrogateescape, so that any bytes survive. 's' is a 16-bit number here and not
a short string, as in RabbitMQ and all its clients; they also read the digits of a decimal as
signed, whatever the specification says. Of two entries with one name the first one counts.

Decoders raise SyntaxErrorFault, and nothing else, on bytes that are no table. Encoders raise
ValueError on values that have no type octet.
"""

from decimal import Decimal
from typing import Final, final

from librt.strings import (
    BytesWriter,
    read_f32_be,
    read_f64_be,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_f64_be,
)
from mypy_extensions import i64

from rhizome.amqp.primitives import put_longstr, put_shortstr, put_u32, put_u64, u16_at, u32_at
from rhizome.errors import SyntaxErrorFault

# Tables and arrays inside each other. Deeper ones are refused: the decoder recurses, and a frame of
# 128 KiB could otherwise nest 26,000 levels and end the process.
TABLE_DEPTH_MAX: Final = 128

_T_BOOL: Final = 0x74  # t
_T_I8: Final = 0x62  # b
_T_U8: Final = 0x42  # B
_T_I16: Final = 0x73  # s
_T_U16: Final = 0x75  # u
_T_I32: Final = 0x49  # I
_T_U32: Final = 0x69  # i
TYPE_I64: Final = 0x6C  # l
_T_I64_TOO: Final = 0x4C  # L
_T_F32: Final = 0x66  # f
_T_F64: Final = 0x64  # d
_T_DECIMAL: Final = 0x44  # D
TYPE_TEXT: Final = 0x53  # S
_T_BYTES: Final = 0x78  # x
_T_TIMESTAMP: Final = 0x54  # T
TYPE_ARRAY: Final = 0x41  # A
TYPE_TABLE: Final = 0x46  # F
_T_VOID: Final = 0x56  # V

_I32_MIN: Final = -(1 << 31)
_I32_MAX: Final = (1 << 31) - 1
_I64_MIN: Final = -(1 << 63)
_I64_MAX: Final = (1 << 63) - 1
_U64_SPAN: Final = 1 << 64
_DECIMAL_SCALE_MAX: Final = 255
_DECIMAL_DIGITS_MAX: Final = 10


@final
class Timestamp:
    """A field of type 'T': seconds since 1970, or whatever 64 bits the sender put there.

    Not a subclass of int, so that an argument check that wants an integer refuses it as RabbitMQ
    does.
    """

    seconds: int

    def __init__(self, seconds: int) -> None:
        if seconds < 0 or seconds >= _U64_SPAN:
            raise ValueError(f"timestamp {seconds} doesn't fit in 64 bits")
        self.seconds = seconds

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timestamp) and self.seconds == other.seconds

    def __hash__(self) -> int:
        return hash(self.seconds)

    def __repr__(self) -> str:
        return f"Timestamp({self.seconds})"


def unsigned_64(number: i64) -> int:
    """Return the unsigned number that has the bits of `number`."""
    wide: int = int(number)
    if wide < 0:
        wide += _U64_SPAN
    return wide


def signed_64(number: int) -> int:
    """Return the signed number that has the bits of an unsigned one."""
    return number - _U64_SPAN if number > _I64_MAX else number


# --- decoding


def read_table(data: bytes, offset: i64) -> tuple[dict[str, object], i64]:
    """Decode the table whose 32-bit length is at `offset`; return it and the offset after it."""
    start = _sized(data, offset, len(data))
    end = start + u32_at(data, offset)
    return decode_table(data, start, end), end


def decode_table(data: bytes, offset: i64, end: i64) -> dict[str, object]:
    """Decode the body of a table, without its length: the entries in data[offset:end]."""
    _check_range(data, offset, end)
    return _table(data, offset, end, 1)


def raw_entries(data: bytes, offset: i64, end: i64) -> list[tuple[str, int, int]]:
    """List a table body's entries without decoding the values: (name, start, end) of each.

    `start` is the offset of the type octet, so an entry begins 1 + len(name in bytes) before it.
    Values inside arrays and tables aren't looked at.
    """
    _check_range(data, offset, end)
    entries: list[tuple[str, int, int]] = []
    while offset < end:
        start = name_end(data, offset, end)
        after = skip_value(data, start, end)
        entries.append((_text(data, offset + 1, start), int(start), int(after)))
        offset = after
    return entries


def check_table(data: bytes, offset: i64, end: i64) -> None:
    """Make sure that data[offset:end] is the body of a table, all the way down.

    After that no decoder of this module refuses it. Makes no objects, so it is cheap enough for the
    headers of every message that is published.
    """
    _check_range(data, offset, end)
    _check_table(data, offset, end, 1)


def _check_table(data: bytes, offset: i64, end: i64, depth: i64) -> None:
    _check_depth(depth)
    while offset < end:
        start = name_end(data, offset, end)
        offset = _check_value(data, start, end, depth)


def _check_array(data: bytes, offset: i64, end: i64, depth: i64) -> None:
    _check_depth(depth)
    while offset < end:
        offset = _check_value(data, offset, end, depth)


def _check_value(data: bytes, start: i64, end: i64, depth: i64) -> i64:
    """Check one value; return the offset after it."""
    after = skip_value(data, start, end)
    kind: i64 = data[start]
    if kind == TYPE_TABLE:
        _check_table(data, start + 5, after, depth + 1)
    elif kind == TYPE_ARRAY:
        _check_array(data, start + 5, after, depth + 1)
    return after


def _check_depth(depth: i64) -> None:
    if depth > TABLE_DEPTH_MAX:
        raise SyntaxErrorFault(f"field table is nested deeper than {TABLE_DEPTH_MAX} levels")


def find_entry(data: bytes, offset: i64, end: i64, name: bytes) -> tuple[i64, i64]:
    """Find the value of one entry in a table body: (start of its type octet, its end).

    Returns (0, 0) if there is none. Of several the first is found, and nothing after it is looked
    at. Makes no objects, so it is the way to look into the headers of every message.
    """
    _check_range(data, offset, end)
    size: i64 = len(name)
    while offset < end:
        start = name_end(data, offset, end)
        after = skip_value(data, start, end)
        if start - offset - 1 == size and data[offset + 1 : start] == name:
            return start, after
        offset = after
    return 0, 0


def skip_value(data: bytes, offset: i64, end: i64) -> i64:
    """Return the offset after the value whose type octet is at `offset`."""
    if offset >= end:
        raise SyntaxErrorFault("field table ends in the middle of an entry")
    kind: i64 = data[offset]
    offset += 1
    width = _fixed_width(kind)
    if width >= 0:
        return _fixed(offset, width, end)
    if kind in (TYPE_TEXT, _T_BYTES, TYPE_ARRAY, TYPE_TABLE):
        return _sized(data, offset, end) + u32_at(data, offset)
    raise SyntaxErrorFault(f"field table has a value of unknown type {kind}")


def _fixed_width(kind: i64) -> i64:
    """Return how many bytes a value of this type takes after the type octet; -1 if that varies."""
    if kind in (_T_I32, _T_U32, _T_F32):
        return 4
    if kind in (_T_BOOL, _T_I8, _T_U8):
        return 1
    if kind in (TYPE_I64, _T_I64_TOO, _T_TIMESTAMP, _T_F64):
        return 8
    if kind in (_T_I16, _T_U16):
        return 2
    if kind == _T_DECIMAL:
        return 5
    if kind == _T_VOID:
        return 0
    return -1


def _check_range(data: bytes, offset: i64, end: i64) -> None:
    if offset < 0 or offset > end or end > len(data):
        raise SyntaxErrorFault("field table is longer than the bytes that hold it")


def _fixed(offset: i64, width: i64, end: i64) -> i64:
    """Return offset + width, if that is inside."""
    if width > end - offset:
        raise SyntaxErrorFault("field table ends in the middle of a value")
    return offset + width


def _sized(data: bytes, offset: i64, end: i64) -> i64:
    """Return the offset after the 32-bit length at `offset`, if what it counts is inside too."""
    if offset < 0 or end - offset < 4 or u32_at(data, offset) > end - offset - 4:
        raise SyntaxErrorFault("field table has a length that reaches beyond its end")
    return offset + 4


def name_end(data: bytes, offset: i64, end: i64) -> i64:
    """Return where the type octet of the entry at `offset` is, right after its name."""
    after: i64 = offset + 1 + i64(data[offset])
    if after >= end:
        raise SyntaxErrorFault("field table ends in the middle of an entry")
    return after


def _text(data: bytes, start: i64, end: i64) -> str:
    return data[start:end].decode("utf-8", "surrogateescape")


def _table(data: bytes, offset: i64, end: i64, depth: i64) -> dict[str, object]:
    _check_depth(depth)
    table: dict[str, object] = {}
    while offset < end:
        start = name_end(data, offset, end)
        after = skip_value(data, start, end)
        name = _text(data, offset + 1, start)
        if name not in table:
            table[name] = _value(data, start, after, depth)
        offset = after
    return table


def _array(data: bytes, offset: i64, end: i64, depth: i64) -> list[object]:
    _check_depth(depth)
    items: list[object] = []
    while offset < end:
        after = skip_value(data, offset, end)
        items.append(_value(data, offset, after, depth))
        offset = after
    return items


def value_at(data: bytes, start: i64, end: i64) -> object:
    """Decode one value: its type octet is at `start`, its last byte before `end`.

    skip_value or raw_entries have told where it ends.
    """
    return _value(data, start, end, 1)


def _value(data: bytes, start: i64, end: i64, depth: i64) -> object:
    """Decode the value in data[start:end]; skip_value has made sure that it fills it."""
    kind: i64 = data[start]
    at = start + 1
    if kind == TYPE_TEXT:
        return _text(data, at + 4, end)
    if kind == _T_BOOL:
        return data[at] != 0
    if kind == TYPE_TABLE:
        return _table(data, at + 4, end, depth + 1)
    if kind == TYPE_ARRAY:
        return _array(data, at + 4, end, depth + 1)
    if kind == _T_BYTES:
        return data[at + 4 : end]
    if kind == _T_VOID:
        return None
    if kind == _T_TIMESTAMP:
        return Timestamp(unsigned_64(read_i64_be(data, at)))
    return _number(data, at, kind)


def _number(data: bytes, at: i64, kind: i64) -> object:
    if kind == _T_I32:
        return int(read_i32_be(data, at))
    if kind in (TYPE_I64, _T_I64_TOO):
        return int(read_i64_be(data, at))
    if kind == _T_F64:
        return read_f64_be(data, at)
    if kind == _T_U8:
        return data[at]
    if kind == _T_I8:
        octet = data[at]
        return octet - 0x100 if octet > 0x7F else octet
    if kind == _T_I16:
        return int(read_i16_be(data, at))
    if kind == _T_U16:
        return int(u16_at(data, at))
    if kind == _T_U32:
        return int(u32_at(data, at))
    if kind == _T_F32:
        return read_f32_be(data, at)
    assert kind == _T_DECIMAL
    return _decimal(data[at], int(read_i32_be(data, at + 1)))


def _decimal(scale: int, digits: int) -> Decimal:
    # Built from a string: scaleb() would round to the precision of the thread's decimal context.
    return Decimal(f"{digits}E-{scale}")


# --- encoding


def encode_table(table: dict[str, object]) -> bytes:
    """Encode a table with its 32-bit length."""
    writer = BytesWriter()
    put_table(writer, table)
    return writer.getvalue()


def put_table(writer: BytesWriter, table: dict[str, object]) -> None:
    """Append a table with its 32-bit length."""
    _put_table(writer, table, 1)


def encode_value(value: object) -> bytes:
    """Encode one value with its type octet."""
    writer = BytesWriter()
    put_value(writer, value)
    return writer.getvalue()


def put_value(writer: BytesWriter, value: object) -> None:
    """Append one value with its type octet."""
    _put_value(writer, value, 1)


def _put_table(writer: BytesWriter, table: dict[str, object], depth: i64) -> None:
    if depth > TABLE_DEPTH_MAX:
        raise ValueError(f"a field table can't be nested deeper than {TABLE_DEPTH_MAX} levels")
    body = BytesWriter()
    for name, value in table.items():
        put_shortstr(body, name)
        _put_value(body, value, depth)
    put_longstr(writer, body.getvalue())


def _put_array(writer: BytesWriter, items: list[object], depth: i64) -> None:
    if depth > TABLE_DEPTH_MAX:
        raise ValueError(f"a field table can't be nested deeper than {TABLE_DEPTH_MAX} levels")
    body = BytesWriter()
    for item in items:
        _put_value(body, item, depth)
    put_longstr(writer, body.getvalue())


def _put_value(writer: BytesWriter, value: object, depth: i64) -> None:
    if isinstance(value, str):
        writer.append(TYPE_TEXT)
        put_longstr(writer, value.encode("utf-8", "surrogateescape"))
    elif isinstance(value, bool):  # before int: a bool is one
        writer.append(_T_BOOL)
        writer.append(1 if value else 0)
    elif isinstance(value, int):
        _put_int(writer, value)
    elif isinstance(value, dict):
        writer.append(TYPE_TABLE)
        _put_table(writer, value, depth + 1)
    elif isinstance(value, list):
        writer.append(TYPE_ARRAY)
        _put_array(writer, value, depth + 1)
    elif value is None:
        writer.append(_T_VOID)
    else:
        _put_rare(writer, value)


def _put_rare(writer: BytesWriter, value: object) -> None:
    if isinstance(value, bytes):
        writer.append(_T_BYTES)
        put_longstr(writer, value)
    elif isinstance(value, float):
        writer.append(_T_F64)
        write_f64_be(writer, value)
    elif isinstance(value, Timestamp):
        writer.append(_T_TIMESTAMP)
        put_u64(writer, signed_64(value.seconds))
    elif isinstance(value, Decimal):
        _put_decimal(writer, value)
    else:
        raise ValueError(f"a field table can't hold a {type(value).__name__}: {value!r}")


def _put_int(writer: BytesWriter, value: int) -> None:
    if _I32_MIN <= value <= _I32_MAX:
        writer.append(_T_I32)
        put_u32(writer, value & 0xFFFFFFFF)
    elif _I64_MIN <= value <= _I64_MAX:
        writer.append(TYPE_I64)
        put_u64(writer, value)
    else:
        raise ValueError(f"{value} doesn't fit in the 64 bits of a field table's integer")


def _put_decimal(writer: BytesWriter, value: Decimal) -> None:
    if not value.is_finite():
        raise ValueError(f"a field table can't hold the decimal {value}")
    exponent = int(value.as_tuple().exponent)
    scale = max(0, -exponent)
    if exponent > _DECIMAL_DIGITS_MAX:
        raise ValueError(f"the decimal {value} needs more than 32 bits")
    digits = _digits(value) * int(10 ** max(0, exponent))
    if scale > _DECIMAL_SCALE_MAX or not _I32_MIN <= digits <= _I32_MAX:
        raise ValueError(f"the decimal {value} needs more than 32 bits or 255 places")
    writer.append(_T_DECIMAL)
    writer.append(scale)
    put_u32(writer, digits & 0xFFFFFFFF)


def _digits(value: Decimal) -> int:
    """Return the decimal's digits as one number, with its sign."""
    sign, digits, _ = value.as_tuple()
    number = int("".join([str(digit) for digit in digits]) or "0")
    return -number if sign else number


# --- words


def type_name(value: object) -> str:
    """Return RabbitMQ's word for the type of a value, for error texts.

    The wire type of small integers isn't kept: they all count as the one that clients send.
    """
    if isinstance(value, str):
        return "longstr"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "signedint" if _I32_MIN <= value <= _I32_MAX else "long"
    if isinstance(value, dict):
        return "table"
    if isinstance(value, list):
        return "array"
    if value is None:
        return "void"
    if isinstance(value, float):
        return "double"
    if isinstance(value, bytes):
        return "binary"
    if isinstance(value, Timestamp):
        return "timestamp"
    return "decimal"
