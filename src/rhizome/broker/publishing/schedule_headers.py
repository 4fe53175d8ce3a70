"""Schedule headers: by which publishers take back or replace what they have scheduled.

``x-schedule-id`` names a message that is published to an x-delayed-message exchange: another one of
that id, exchange and user replaces it. ``x-schedule-cancel`` takes back the one that it names; the
message that says so goes nowhere. The broker that gets a message from its publisher writes down who
that is, in ``x-schedule-by``, before all other headers: of two entries of a name the first counts,
so nobody can be somebody else. Consumers don't get to see it.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rhizome.amqp.field_table import TYPE_I64, TYPE_TEXT, find_entry, value_at
from rhizome.amqp.frames import frame_end
from rhizome.amqp.properties import PropertySpans, scan
from rhizome.amqp.spec import BASIC, BASIC_PUBLISH, FRAME_HEADER_SIZE
from rhizome.broker.dead_letters.dead_letter_headers import with_first_header, without_headers
from rhizome.errors import PreconditionFailed

SCHEDULE_ID: Final = b"x-schedule-id"
SCHEDULE_CANCEL: Final = b"x-schedule-cancel"
SCHEDULE_BY: Final = b"x-schedule-by"
DELAY: Final = b"x-delay"
ID_BYTES_MAX: Final = 255
_FLAGS_AT: Final = FRAME_HEADER_SIZE + 12
DELAY_MS_MAX: Final = 0xFFFFFFFF


@final
class ScheduleName:
    """What a held message is known by. ``key`` has its exchange, user and id; ``cancels``: the
    message takes back another one."""

    user: bytes
    id: bytes
    cancels: bool
    key: bytes

    def __init__(self, exchange: str, user: bytes, schedule_id: bytes, cancels: bool) -> None:
        self.user = user
        self.id = schedule_id
        self.cancels = cancels
        self.key = schedule_key(exchange, user, schedule_id)


def schedule_key(exchange: str, user: bytes, schedule_id: bytes) -> bytes:
    name = exchange.encode("utf-8", "surrogateescape")
    lengths = bytes([len(name) & 0xFF, len(user) & 0xFF])
    return lengths + name + user + schedule_id


def hash_of(key: bytes) -> i64:
    """A number that differs between processes, so nobody can make keys that meet in one place."""
    return hash(key) & 0x7FFFFFFFFFFFFFFF


def is_schedule(content: bytes, start: i64, end: i64) -> bool:
    """Whether headers name a schedule. Raises PreconditionFailed for names that are none."""
    found = False
    for name in (SCHEDULE_ID, SCHEDULE_CANCEL):
        at, after = find_entry(content, start, end, name)
        if after == 0:
            continue
        if content[at] != TYPE_TEXT or not 0 < after - at - 5 <= ID_BYTES_MAX:
            raise PreconditionFailed(
                f"invalid header {name.decode()}: expected a string of 1 to {ID_BYTES_MAX} bytes",
                BASIC,
                BASIC_PUBLISH,
            )
        found = True
    return found


def signed(content: bytes, user: str) -> bytes:
    """The content with who has scheduled it."""
    name = user.encode("utf-8", "surrogateescape")
    return with_first_header(content, SCHEDULE_BY, name)


def unsigned(content: bytes) -> bytes:
    """The content as consumers may see it."""
    spans = _scan(content)
    at, _ = find_entry(content, spans.headers_start, spans.headers_end, SCHEDULE_BY)
    return without_headers(content, [SCHEDULE_BY]) if at > 0 else content


def schedule_name(exchange: str, content: bytes) -> ScheduleName | None:
    """What a message in a queue of held messages is known by; None if by nothing."""
    spans = _scan(content)
    start, end = spans.headers_start, spans.headers_end
    cancels = True
    at, after = find_entry(content, start, end, SCHEDULE_CANCEL)
    if after == 0:
        cancels = False
        at, after = find_entry(content, start, end, SCHEDULE_ID)
    if after == 0 or content[at] != TYPE_TEXT:
        return None
    by_at, by_end = find_entry(content, start, end, SCHEDULE_BY)
    if by_end == 0 or content[by_at] != TYPE_TEXT:
        # A broker of an older release has taken it, and has not said from whom.
        return None
    return ScheduleName(exchange, content[by_at + 5 : by_end], content[at + 5 : after], cancels)


def delay_in(content: bytes) -> i64:
    """For how long a content asks to be held."""
    spans = _scan(content)
    at, after = find_entry(content, spans.headers_start, spans.headers_end, DELAY)
    if after == 0:
        return 0
    delay = value_at(content, at, after)
    if isinstance(delay, bool) or not isinstance(delay, int):
        return 0
    return min(max(delay, 0), DELAY_MS_MAX)


def with_delay(content: bytes, delay_ms: i64) -> bytes:
    """The content with another delay; who has scheduled it stays."""
    value = bytes([TYPE_I64]) + int(delay_ms).to_bytes(8, "big")
    rest = without_headers(content, [DELAY])
    return with_first_header(rest, DELAY, value, True)


def _scan(content: bytes) -> PropertySpans:
    return scan(content, _FLAGS_AT, frame_end(content, 0) - 1)
