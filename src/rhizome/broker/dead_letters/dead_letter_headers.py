"""The headers that a message gets when it leaves a queue as a dead letter; CC and BCC.

As in RabbitMQ, the array x-death has one entry per (queue, reason), the latest death first. A
second death of the same kind moves the entry to the front and adds one to its count; time and
routing keys stay those of the first death. Entries of a client that are of the same kind become
one, as in RabbitMQ 3.10: it has the count of the first, or as many as they were. Three more headers
describe the very first death. The expiration property is removed, or the message would expire again
at once; the entry keeps it as original-expiration.

What a client writes into x-death is counted on and not believed: each of its entries gets the field
``claimed`` when it is published. Once the message dies like that, the entry says what the broker
saw.

Everything else in the content stays byte for byte: entries are spliced, not decoded and encoded.
The functions raise SyntaxErrorFault if the headers of the content are not a table. Publishing has
checked that they are, with cc_keys or check_table, so no queue holds a message that dead_letter
can't handle.
"""

from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from rhizome.amqp.field_table import (
    TYPE_ARRAY,
    TYPE_I64,
    TYPE_TABLE,
    TYPE_TEXT,
    Timestamp,
    encode_value,
    find_entry,
    name_end,
    put_value,
    skip_value,
    type_name,
    value_at,
)
from rhizome.amqp.frames import frame_end
from rhizome.amqp.primitives import put_longstr, put_shortstr, put_u16, put_u32, put_u64
from rhizome.amqp.properties import (
    FLAG_EXPIRATION,
    FLAG_HEADERS,
    FLAGS_OFFSET,
    PropertySpans,
    scan,
)
from rhizome.amqp.spec import BASIC, BASIC_PUBLISH, FRAME_END, FRAME_HEADER_SIZE
from rhizome.errors import PreconditionFailed, SyntaxErrorFault

REASON_REJECTED: Final = "rejected"
REASON_EXPIRED: Final = "expired"
REASON_MAXLEN: Final = "maxlen"
REASON_DELIVERY_LIMIT: Final = "delivery_limit"

KEY_BYTES_MAX: Final = 255
"""Of each key in CC and BCC, as of every routing key."""
CARBON_KEYS_MAX: Final = 256
"""Keys in CC and BCC together."""

_FLAGS_AT: Final = FRAME_HEADER_SIZE + FLAGS_OFFSET
# A larger count was made up by a client; counting starts again.
_COUNT_MAX: Final = 1 << 62
X_DEATH: Final = b"x-death"
CLAIMED: Final = b"claimed"
"""The field of an entry of x-death that a client has written: no queue has seen that death."""
_CC: Final = b"CC"
_BCC: Final = b"BCC"
_FIRST_DEATH: Final = (
    b"x-first-death-exchange",
    b"x-first-death-queue",
    b"x-first-death-reason",
)
_LAST_DEATH: Final = (
    b"x-last-death-exchange",
    b"x-last-death-queue",
    b"x-last-death-reason",
)


# --- dead letters


def dead_letter(
    content: bytes,
    exchange: str,
    keys: list[str],
    queue: str,
    reason: str,
    time_s: int,
    drop_cc: bool = False,
    tells_last: bool = False,
) -> bytes:
    """Return the content as it goes to the dead-letter exchange.

    exchange and keys are those that the message was published with; the keys in its CC header
    needn't be among them. drop_cc removes that header: pass True if the queue sets a dead-letter
    routing key. tells_last sets the headers x-last-death-* too, as RabbitMQ 4.x does.
    """
    spans = _scan(content)
    death = _Death(exchange, _all_keys(content, spans, keys), queue, reason, time_s)
    if spans.expiration_start:
        death.expiration = _text(content, spans.expiration_start, spans.expiration_end)
    edit = _HeaderEdit(content, spans)
    _record_death(edit, death)
    if tells_last:
        _tell(edit, _LAST_DEATH, death)
    if drop_cc:
        edit.remove(_CC)
    return _rewritten(content, spans, edit.body(), spans.flags & ~FLAG_EXPIRATION)


def claimed_deaths(content: bytes) -> bytes:
    """Return the content of a client whose x-death, if it has entries, is marked as its own."""
    spans = _scan(content)
    edit = _HeaderEdit(content, spans)
    changed = False
    for place, name in enumerate(edit.names):
        kept = edit.kept[place]
        at = 1 + len(name)
        if name == X_DEATH and kept[at] == TYPE_ARRAY:
            edit.kept[place] = kept[:at] + _sized(TYPE_ARRAY, _claimed(kept, at + 5, len(kept)))
            changed = True
    return _rewritten(content, spans, edit.body(), spans.flags) if changed else content


def _claimed(data: bytes, offset: i64, end: i64) -> bytes:
    """Return the values in data[offset:end]; each table among them has the mark, once."""
    values = BytesWriter()
    while offset < end:
        after = skip_value(data, offset, end)
        if data[offset] == TYPE_TABLE:
            body = BytesWriter()
            _put_field(body, CLAIMED.decode(), True)
            at: i64 = offset + 5
            while at < after:
                behind = skip_value(data, name_end(data, at, after), after)
                if data[at] != len(CLAIMED) or data[at + 1 : at + 1 + len(CLAIMED)] != CLAIMED:
                    body.write(data[at:behind])
                at = behind
            values.write(_sized(TYPE_TABLE, body.getvalue()))
        else:
            values.write(data[offset:after])
        offset = after
    return values.getvalue()


def with_header(content: bytes, name: bytes, value: object) -> bytes:
    """Return the content with a header set; everything else stays byte for byte as it was."""
    spans = _scan(content)
    edit = _HeaderEdit(content, spans)
    edit.set(name, encode_value(value))
    return _rewritten(content, spans, edit.body(), spans.flags)


def cycle_queues(content: bytes) -> set[str]:
    """Return the queues that a dead letter must not enter, because it would cycle.

    `content` is what dead_letter returned. There is a cycle if the message has died in a queue
    before and no death since then was a rejection by a consumer. This is computed once per dead
    letter, not once per queue that it leads to: clients can make x-death long.
    """
    found: set[str] = set()
    spans = _scan(content)
    start, end = find_entry(content, spans.headers_start, spans.headers_end, X_DEATH)
    if end == 0 or content[start] != TYPE_ARRAY:
        return found
    try:
        _collect_cycle(content, start + 5, end, found)
    except SyntaxErrorFault:
        pass  # only a client can have put that there, so it isn't automatic
    return found


def _collect_cycle(data: bytes, offset: i64, end: i64, found: set[str]) -> None:
    """Collect the queues in the entries data[offset:end] of x-death, up to the first rejection."""
    while offset < end:
        after = skip_value(data, offset, end)
        if data[offset] != TYPE_TABLE:
            return  # a client's, too
        if _field_is(data, offset, after, b"reason", REASON_REJECTED):
            return
        at, field_end = find_entry(data, offset + 5, after, b"queue")
        queue = value_at(data, at, field_end) if field_end != 0 else None
        if isinstance(queue, str):
            found.add(queue)
        offset = after


def is_cycle(content: bytes, queue: str) -> bool:
    """Tell whether a dead letter must not enter `queue`."""
    return queue in cycle_queues(content)


@final
class _Death:
    """One reason to write an entry."""

    exchange: str
    keys: list[object]
    queue: str
    reason: str
    time_s: int
    expiration: str | None

    def __init__(
        self, exchange: str, keys: list[object], queue: str, reason: str, time_s: int
    ) -> None:
        self.exchange = exchange
        self.keys = keys
        self.queue = queue
        self.reason = reason
        self.time_s = time_s
        self.expiration = None

    def entry(self, count: i64 = 1) -> bytes:
        """Return the table of the first death of its kind that is known for certain, with its type
        octet."""
        body = BytesWriter()
        _put_count(body, count)
        _put_field(body, "exchange", self.exchange)
        if self.expiration is not None:
            _put_field(body, "original-expiration", self.expiration)
        _put_field(body, "queue", self.queue)
        _put_field(body, "reason", self.reason)
        _put_field(body, "routing-keys", self.keys)
        _put_field(body, "time", Timestamp(self.time_s))
        return _sized(TYPE_TABLE, body.getvalue())


def _record_death(edit: "_HeaderEdit", death: _Death) -> None:
    start, end = edit.find(X_DEATH)
    if end == 0:
        _tell(edit, _FIRST_DEATH, death)
        edit.set(X_DEATH, _sized(TYPE_ARRAY, death.entry()))
        return
    try:
        array = _with_death(edit.content, start, end, death)
    except SyntaxErrorFault:
        # A client made it up. RabbitMQ starts afresh when x-death isn't an array; so do we.
        array = death.entry()
    edit.set(X_DEATH, _sized(TYPE_ARRAY, array))


def _tell(edit: "_HeaderEdit", names: tuple[bytes, bytes, bytes], death: _Death) -> None:
    edit.set(names[0], encode_value(death.exchange))
    edit.set(names[1], encode_value(death.queue))
    edit.set(names[2], encode_value(death.reason))


def _with_death(data: bytes, start: i64, end: i64, death: _Death) -> bytes:
    """Return the body of the x-death array in data[start:end] with a death added."""
    if data[start] != TYPE_ARRAY:
        return death.entry()
    entries: list[bytes] = []
    places: dict[tuple[str, str], int] = {}
    numbers: list[int] = []
    offset: i64 = start + 5
    while offset < end:
        after = skip_value(data, offset, end)
        kind = _kind_of_death(data, offset, after)
        place = places.get(kind, -1) if kind is not None else -1
        if place >= 0:
            numbers[place] += 1
        else:
            if kind is not None:
                places[kind] = len(entries)
            entries.append(data[offset:after])
            numbers.append(1)
        offset = after
    return _latest_first(entries, numbers, places.get((death.queue, death.reason), -1), death)


def _latest_first(entries: list[bytes], numbers: list[int], same: int, death: _Death) -> bytes:
    """Return all entries, of which each stands for as many as in ``numbers``; ``same`` is the place
    of the one that the death is added to, or -1."""
    others = BytesWriter()
    latest = b""
    for place, entry in enumerate(entries):
        if place == same:
            if find_entry(entry, 5, len(entry), CLAIMED)[1] != 0:
                latest = death.entry(_count_of(entry, 0, len(entry), numbers[place]) + 1)
            else:
                latest = _counted_up(entry, 0, len(entry), numbers[place])
        elif numbers[place] > 1:
            others.write(_counted(entry, numbers[place]))
        else:
            others.write(entry)
    return (latest or death.entry()) + others.getvalue()


def _kind_of_death(data: bytes, start: i64, end: i64) -> tuple[str, str] | None:
    """Return queue and reason of an entry; None if it has none."""
    if data[start] != TYPE_TABLE:
        return None
    queue_at, queue_end = find_entry(data, start + 5, end, b"queue")
    reason_at, reason_end = find_entry(data, start + 5, end, b"reason")
    if queue_end == 0 or reason_end == 0:
        return None
    queue = value_at(data, queue_at, queue_end)
    reason = value_at(data, reason_at, reason_end)
    if not isinstance(queue, str) or not isinstance(reason, str):
        return None
    return queue, reason


def _counted(entry: bytes, number: int) -> bytes:
    """Return an entry with a count, this one unless it has its own."""
    if find_entry(entry, 5, len(entry), b"count")[1] != 0:
        return entry
    body = BytesWriter()
    _put_count(body, number)
    body.write(entry[5:])
    return _sized(TYPE_TABLE, body.getvalue())


def _counted_up(data: bytes, start: i64, end: i64, uncounted: i64) -> bytes:
    """Return the entry in data[start:end] with one more in its count."""
    body = BytesWriter()
    at, after = find_entry(data, start + 5, end, b"count")
    number = _count_of(data, start, end, uncounted)
    if after == 0:
        _put_count(body, number + 1)
        body.write(data[start + 5 : end])
        return _sized(TYPE_TABLE, body.getvalue())
    body.write(data[start + 5 : at - len(b"count") - 1])
    _put_count(body, number + 1)
    body.write(data[after:end])
    return _sized(TYPE_TABLE, body.getvalue())


def _count_of(data: bytes, start: i64, end: i64, uncounted: i64) -> i64:
    """The count of the entry in data[start:end]. Without one it stands for ``uncounted`` deaths."""
    at, after = find_entry(data, start + 5, end, b"count")
    if after == 0:
        return uncounted
    count = value_at(data, at, after)
    if isinstance(count, int) and not isinstance(count, bool) and 0 < count < _COUNT_MAX:
        return count
    return 0


def _field_is(data: bytes, start: i64, end: i64, name: bytes, text: str) -> bool:
    """Tell whether the table value in data[start:end] has a field with this text."""
    at, after = find_entry(data, start + 5, end, name)
    return after != 0 and value_at(data, at, after) == text


def _put_count(body: BytesWriter, count: i64) -> None:
    put_shortstr(body, "count")
    body.append(TYPE_I64)
    put_u64(body, count)


def _put_field(body: BytesWriter, name: str, value: object) -> None:
    put_shortstr(body, name)
    put_value(body, value)


def _sized(kind: i64, body: bytes) -> bytes:
    """Return a table or an array with type octet and length."""
    writer = BytesWriter()
    writer.append(int(kind))
    put_longstr(writer, body)
    return writer.getvalue()


# --- CC and BCC


def cc_keys(content: bytes) -> list[str]:
    """Return the routing keys in the headers CC and BCC, in this order.

    Raises PreconditionFailed if one of them isn't an array, if there are more than CARBON_KEYS_MAX
    keys, or if one is longer than a routing key can be; what is no string doesn't count.
    """
    spans = _scan(content)
    if spans.headers_end == spans.headers_start:
        return []
    try:
        keys = _carbon_keys(content, spans.headers_start, spans.headers_end)
    except SyntaxErrorFault as fault:
        raise SyntaxErrorFault(fault.text, BASIC, BASIC_PUBLISH) from None
    if len(keys) > CARBON_KEYS_MAX:
        raise PreconditionFailed(
            f"invalid message: headers CC and BCC have {len(keys)} keys, the maximum is "
            f"{CARBON_KEYS_MAX}",
            BASIC,
            BASIC_PUBLISH,
        )
    for key in keys:
        size = len(key.encode("utf-8", "surrogateescape"))
        if size > KEY_BYTES_MAX:
            raise PreconditionFailed(
                f"invalid message: headers CC and BCC have a key of {size} bytes, the maximum is "
                f"{KEY_BYTES_MAX}",
                BASIC,
                BASIC_PUBLISH,
            )
    return keys


def stored_cc_keys(content: bytes) -> list[str]:
    """Return the keys of CC and BCC of a message that was accepted before.

    It may come from a release that had no limits. Keys beyond the limits don't count then, because
    there is no publisher left to tell.
    """
    spans = _scan(content)
    if spans.headers_end == spans.headers_start:
        return []
    try:
        keys = _carbon_keys(content, spans.headers_start, spans.headers_end)
    except PreconditionFailed:
        return []
    fitting = [key for key in keys if len(key.encode("utf-8", "surrogateescape")) <= KEY_BYTES_MAX]
    return fitting[:CARBON_KEYS_MAX]


def _carbon_keys(data: bytes, offset: i64, end: i64) -> list[str]:
    """Walk over all headers, even when both are found: see the module's docstring."""
    carbon: list[str] = []
    blind: list[str] = []
    while offset < end:
        start = name_end(data, offset, end)
        after = skip_value(data, start, end)
        if start - offset == 3 and data[offset + 1 : start] == _CC:
            carbon = _keys_in(data, start, after, "CC")
        elif start - offset == 4 and data[offset + 1 : start] == _BCC:
            blind = _keys_in(data, start, after, "BCC")
        offset = after
    return carbon + blind


def _keys_in(data: bytes, start: i64, end: i64, name: str) -> list[str]:
    value = value_at(data, start, end)
    if not isinstance(value, list):
        text = f'{{unacceptable_type_in_header,"{name}",{type_name(value)}}}'
        raise PreconditionFailed(f"invalid message: {text}", BASIC, BASIC_PUBLISH)
    return [key for key in value if isinstance(key, str)]


def strip_bcc(content: bytes) -> bytes:
    """Return the content as consumers may see it, without the header BCC."""
    spans = _scan(content)
    if find_entry(content, spans.headers_start, spans.headers_end, _BCC)[1] == 0:
        return content
    edit = _HeaderEdit(content, spans)
    edit.remove(_BCC)
    return _rewritten(content, spans, edit.body(), spans.flags)


def _all_keys(content: bytes, spans: PropertySpans, keys: list[str]) -> list[object]:
    """Return the keys that a message was published with, those of its CC header included."""
    every: list[object] = []
    every.extend(keys)
    start, end = find_entry(content, spans.headers_start, spans.headers_end, _CC)
    if end and content[start] == TYPE_ARRAY:
        every.extend([key for key in _keys_in(content, start, end, "CC") if key not in keys])
    return every


# --- rewriting a content


@final
class _HeaderEdit:
    """A headers table being edited. Entries that are not touched keep their bytes and their place.

    Invariant: kept[i] is a whole entry, and names[i] its name.
    """

    content: bytes
    start: i64
    end: i64
    kept: list[bytes]
    names: list[bytes]

    def __init__(self, content: bytes, spans: PropertySpans) -> None:
        self.content = content
        self.start = spans.headers_start
        self.end = spans.headers_end
        self.kept = []
        self.names = []
        offset = self.start
        while offset < self.end:
            type_at = name_end(content, offset, self.end)
            after = skip_value(content, type_at, self.end)
            self.names.append(content[offset + 1 : type_at])
            self.kept.append(content[offset:after])
            offset = after

    def find(self, name: bytes) -> tuple[i64, i64]:
        """Return where the value lies in the old content: (type octet, end); (0, 0) if absent."""
        return find_entry(self.content, self.start, self.end, name)

    def set(self, name: bytes, value: bytes) -> None:
        """Replace an entry where it stands, or add one at the end."""
        entry = bytes([len(name)]) + name + value
        if name in self.names:
            self.kept[self.names.index(name)] = entry
        else:
            self.names.append(name)
            self.kept.append(entry)

    def remove(self, name: bytes) -> None:
        """Leave out every entry of this name."""
        while name in self.names:
            place = self.names.index(name)
            del self.names[place]
            del self.kept[place]

    def body(self) -> bytes:
        """Return the new table, without its length."""
        return b"".join(self.kept)


def _scan(content: bytes) -> PropertySpans:
    return scan(content, _FLAGS_AT, frame_end(content, 0) - 1)


def _text(data: bytes, start: i64, end: i64) -> str:
    return data[start:end].decode("utf-8", "surrogateescape")


def _rewritten(content: bytes, spans: PropertySpans, headers: bytes, flags: i64) -> bytes:
    """Return the content with another headers table, and without expiration if flags lack it."""
    end = frame_end(content, 0)
    payload = BytesWriter()
    payload.write(content[FRAME_HEADER_SIZE:_FLAGS_AT])
    put_u16(payload, flags | FLAG_HEADERS)
    payload.write(content[_FLAGS_AT + 2 : spans.headers_at])
    put_longstr(payload, headers)
    rest = spans.headers_end if spans.headers_end else spans.headers_at
    if spans.expiration_start and not flags & FLAG_EXPIRATION:
        payload.write(content[rest : spans.expiration_start - 1])
        rest = spans.expiration_end
    payload.write(content[rest : end - 1])
    whole = BytesWriter()
    whole.write(content[:3])
    put_u32(whole, len(payload))
    whole.write(payload.getvalue())
    whole.append(FRAME_END)
    whole.write(content[end:])
    return whole.getvalue()


def with_first_header(content: bytes, name: bytes, value: bytes, packed: bool = False) -> bytes:
    """The content with one more header before all others: a string, or a ``packed`` value."""
    spans = _scan(content)
    typed = value if packed else bytes([TYPE_TEXT]) + len(value).to_bytes(4, "big") + value
    entry = bytes([len(name)]) + name + typed
    table = entry + content[spans.headers_start : spans.headers_end]
    return _rewritten(content, spans, table, spans.flags)


def without_headers(content: bytes, names: list[bytes]) -> bytes:
    """The content without some headers."""
    spans = _scan(content)
    edit = _HeaderEdit(content, spans)
    for name in names:
        edit.remove(name)
    return _rewritten(content, spans, edit.body(), spans.flags)
