"""Message conditions: what the text of a search means, and whether a message meets it.

Conditions follow SQL's three values: a comparison with something that the message does not have is
unknown (None), and so is its negation. A message meets a condition that is true.

Cost: each term looks once at its field, and `like` passes over the text once, so a message costs
at most its looked-at bytes times the number of terms, which the parser limits.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final, TypeAlias

from rhizome.amqp.field_table import Timestamp
from rhizome.amqp.frames import frame_end, header_payload_of
from rhizome.amqp.properties import Properties, decode_properties
from rhizome.amqp.spec import FRAME_HEADER_SIZE
from rhizome.broker.dead_letters.dead_letter_headers import CLAIMED
from rhizome.errors import SyntaxErrorFault

BODY_BYTES_MAX: Final = 64 * 1024
"""Conditions look at so many bytes of a body, from its beginning."""

Value: TypeAlias = str | int | float | Decimal | bool

PROPERTIES: Final = frozenset(
    {
        "content_type",
        "content_encoding",
        "delivery_mode",
        "priority",
        "correlation_id",
        "reply_to",
        "expiration",
        "message_id",
        "timestamp",
        "type",
        "user_id",
        "app_id",
        "cluster_id",
    }
)
DEATH: Final = {
    "death.reason": "reason",
    "death.queue": "queue",
    "death.exchange": "exchange",
    "death.count": "count",
    "death.time": "time",
}
"""Fields of a dead letter's last death, and their names in x-death."""

FIELDS: Final = frozenset(
    {
        "exchange",
        "routing_key",
        "redelivered",
        "delivery_count",
        "arrived",
        "size",
        "body",
        "death.routing_key",
        *PROPERTIES,
        *DEATH,
    }
)
HEADERS: Final = "headers."


class SearchedMessage:
    """A message as conditions see it. Properties and body are decoded when a term asks first."""

    __slots__ = ("_body", "_properties", "content", "facts")

    def __init__(self, content: bytes, facts: dict[str, Value]) -> None:
        self.content = content
        self.facts = facts
        self._properties: Properties | None = None
        self._body: str | None = None

    @property
    def properties(self) -> Properties:
        if self._properties is None:
            try:
                self._properties = decode_properties(header_payload_of(self.content))
            except SyntaxErrorFault:
                # Garbled properties pass through the broker; conditions see none.
                self._properties = Properties()
        return self._properties

    def value(self, field: str) -> object:
        """The value of a field; None if the message has none."""
        if field.startswith(HEADERS):
            return (self.properties.headers or {}).get(field[len(HEADERS) :])
        if field in self.facts:
            return self.facts[field]
        if field == "body":
            return self._text()
        if field == "death.routing_key":
            keys = self.last_death().get("routing-keys")
            return keys[0] if isinstance(keys, list) and keys else None
        if field in DEATH:
            return self.last_death().get(DEATH[field])
        return getattr(self.properties, field)

    def last_death(self) -> dict[str, object]:
        """The latest entry of x-death; empty if there is none."""
        deaths = (self.properties.headers or {}).get("x-death")
        first = deaths[0] if isinstance(deaths, list) and deaths else None
        return first if isinstance(first, dict) else {}

    def is_claimed(self) -> bool:
        """Whether the latest death is one that the publisher has written down, and no queue has
        seen."""
        return CLAIMED.decode() in self.last_death()

    def _text(self) -> str:
        if self._body is None:
            self._body = _body_start(self.content).decode("utf-8", "surrogateescape")
        return self._body


def _body_start(content: bytes) -> bytes:
    """The beginning of a body, joined from as few of its frames as it takes."""
    offset = frame_end(content, 0)
    pieces: list[bytes] = []
    left = BODY_BYTES_MAX
    while offset < len(content) and left > 0:
        after = frame_end(content, offset)
        begin = offset + FRAME_HEADER_SIZE
        piece = content[begin : min(after - 1, begin + left)]
        pieces.append(piece)
        left -= len(piece)
        offset = after
    return b"".join(pieces)


def comparable(value: object) -> Value | None:
    """A value of a table as conditions compare it; None if it is no text, number or flag."""
    if isinstance(value, Timestamp):
        return value.seconds
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value if isinstance(value, (str, int, float, Decimal)) else None


def _is_kin(one: Value, other: Value) -> bool:
    """Whether two values are of one kind: text, number or flag."""
    if isinstance(one, bool) or isinstance(other, bool):
        return isinstance(one, bool) and isinstance(other, bool)
    return isinstance(one, str) == isinstance(other, str)


# ---- terms and what joins them ------------------------------------------------------------------


class Condition:
    """Part of a condition."""

    __slots__ = ()

    def holds(self, message: SearchedMessage) -> bool | None:
        """True, False, or None: unknown."""
        raise NotImplementedError


class Everything(Condition):
    """Any message meets it."""

    __slots__ = ()

    def holds(self, message: SearchedMessage) -> bool:
        return True


class Comparison(Condition):
    """Field, operator, value. Values of different kinds are unequal and have no order."""

    __slots__ = ("field", "operator", "wanted")

    def __init__(self, field: str, operator: str, wanted: Value) -> None:
        self.field = field
        self.operator = operator
        self.wanted = wanted

    def holds(self, message: SearchedMessage) -> bool | None:
        found = message.value(self.field)
        if found is None:
            return None
        value = comparable(found)
        if value is None or not _is_kin(value, self.wanted):
            return {"=": False, "!=": True}.get(self.operator)
        if self.operator == "=":
            return value == self.wanted
        if self.operator == "!=":
            return value != self.wanted
        return _is_ordered(value, self.operator, self.wanted)


def _is_ordered(value: Value, operator: str, wanted: Value) -> bool:
    if isinstance(value, str) or isinstance(wanted, str):
        order = (str(value) > str(wanted)) - (str(value) < str(wanted))
    else:
        order = (value > wanted) - (value < wanted)
    return {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[operator]


class OneOf(Condition):
    """Field in (values)."""

    __slots__ = ("_comparisons",)

    def __init__(self, field: str, wanted: list[Value]) -> None:
        self._comparisons = [Comparison(field, "=", value) for value in wanted]

    def holds(self, message: SearchedMessage) -> bool | None:
        found = [each.holds(message) for each in self._comparisons]
        return None if found[0] is None else True in found


class Like(Condition):
    """Field like pattern: its pieces follow each other in the text. Only % is special; \\% and \\\\
    stand for themselves.

    The first place that fits a piece is as good as any later one, so one pass is enough.
    """

    __slots__ = ("_pieces", "field")

    def __init__(self, field: str, pattern: str) -> None:
        self.field = field
        self._pieces = _pieces(pattern)

    def holds(self, message: SearchedMessage) -> bool | None:
        value = comparable(message.value(self.field))
        if value is None:
            return None
        if not isinstance(value, str):
            return False
        first, *others = self._pieces
        if not others:
            return value == first
        if not value.startswith(first):
            return False
        at = len(first)
        for piece in others[:-1]:
            found = value.find(piece, at)
            if found < 0:
                return False
            at = found + len(piece)
        last = others[-1]
        return len(value) - at >= len(last) and value.endswith(last)


def _pieces(pattern: str) -> list[str]:
    """What stands between the % of a pattern."""
    pieces = [""]
    at = 0
    while at < len(pattern):
        sign = pattern[at]
        if sign == "\\" and pattern[at + 1 : at + 2] in ("%", "\\"):
            at += 1
            pieces[-1] += pattern[at]
        elif sign == "%":
            pieces.append("")
        else:
            pieces[-1] += sign
        at += 1
    return pieces


class IsNull(Condition):
    """Whether the message has no such field."""

    __slots__ = ("field",)

    def __init__(self, field: str) -> None:
        self.field = field

    def holds(self, message: SearchedMessage) -> bool:
        return message.value(self.field) is None


class Not(Condition):
    __slots__ = ("inner",)

    def __init__(self, inner: Condition) -> None:
        self.inner = inner

    def holds(self, message: SearchedMessage) -> bool | None:
        found = self.inner.holds(message)
        return None if found is None else not found


class Joined(Condition):
    """Conditions joined by `and` (``decisive`` is False) or `or` (True): the first that is
    decisive decides."""

    __slots__ = ("decisive", "parts")

    def __init__(self, parts: list[Condition], decisive: bool) -> None:
        self.parts = parts
        self.decisive = decisive

    def holds(self, message: SearchedMessage) -> bool | None:
        unknown = False
        for part in self.parts:
            found = part.holds(message)
            if found is self.decisive:
                return self.decisive
            unknown = unknown or found is None
        return None if unknown else not self.decisive
