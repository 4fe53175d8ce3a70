"""The arguments of declare and consume, and a message's expiration: parsing and checks.

Every check raises PreconditionFailed with the words of RabbitMQ 3.10, because clients and their
test suites read them. Unknown arguments are accepted, as there. class_id and method_id go into the
close method, so that clients can name the method that failed. Arguments of one exchange type only
(x-match, hash-header, x-delayed-type) are checked by that type.
"""

from typing import Final, final

from mypy_extensions import i64

from rhizome.amqp.field_table import Timestamp, type_name
from rhizome.broker.erlang_term_text import (
    erlang_string,
    erlang_term,
    exchange_resource,
    queue_resource,
)
from rhizome.broker.metadata.argument_reader import EXPIRY_MS_MAX, TYPE_MODULES, ArgumentReader
from rhizome.errors import PreconditionFailed, ResourceLocked

OVERFLOW_DROP_HEAD: Final = "drop-head"
OVERFLOW_REJECT: Final = "reject-publish"
OVERFLOW_REJECT_DLX: Final = "reject-publish-dlx"

PRIORITY_MAX: Final = 255
QUORUM_PRIORITY_MAX: Final = 31
"""Of quorum queues, which have priorities without being asked; as in RabbitMQ 4.3."""
COPIES_MAX: Final = 15
"""As many as a cluster may have primaries."""

_OVERFLOW_MODES: Final = (OVERFLOW_DROP_HEAD, OVERFLOW_REJECT, OVERFLOW_REJECT_DLX)
_QUEUE_MODES: Final = ("default", "lazy")
_QUEUE_TYPES: Final = ("classic", "quorum", "stream")
_QUEUE_VERSIONS: Final = (1, 2)
_DEAD_LETTER_STRATEGIES: Final = ("at-most-once", "at-least-once")
_LEADER_LOCATORS: Final = ("client-local", "balanced", "random", "least-leaders")
_REPLICATE: Final = ("none", "configuration", "messages", "all")
_DEDUP: Final = ("message-id", "none")
GROUP_KEY: Final = "x-group-key"
GROUP_FAIR: Final = "x-group-fair"
QPID_GROUP_KEY: Final = "qpid.group_header_key"
QPID_SHARED_GROUP: Final = "qpid.shared_msg_group"
_NAME_CODEC: Final = ("utf-8", "surrogateescape")
_AGE_UNITS_MS: Final[dict[str, int]] = {
    "Y": 365 * 86_400_000,
    "M": 30 * 86_400_000,
    "D": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1_000,
}
_I64_MAX: Final = (1 << 63) - 1

# Arguments that RabbitMQ knows but refuses for a type of queue.
_REFUSED: Final[dict[str, tuple[str, ...]]] = {
    "classic": (
        "x-dead-letter-strategy",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-quorum-initial-group-size",
        "x-max-age",
        "x-stream-max-segment-size-bytes",
        "x-initial-cluster-size",
        "x-delivery-limit",
    ),
    "quorum": (
        "x-queue-mode",
        "x-queue-version",
        "x-queue-master-locator",
        "x-max-age",
        "x-stream-max-segment-size-bytes",
        "x-initial-cluster-size",
    ),
    "stream": (
        "x-expires",
        "x-message-ttl",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-dead-letter-strategy",
        "x-max-length",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-max-priority",
        "x-overflow",
        "x-queue-mode",
        "x-queue-version",
        "x-queue-master-locator",
        "x-single-active-consumer",
        "x-delivery-limit",
        "x-quorum-initial-group-size",
        "x-last-value-key",
    ),
}
# What a policy may say to a stream.
_STREAM_SETTINGS: Final = (
    "max-length-bytes",
    "max-age",
    "stream-max-segment-size-bytes",
    "replicate",
    "copies",
    "min-copies",
    "group",
    "consumer-timeout",
)
RETRY_TYPES: Final = ("disabled", "all", "failed", "returned")
RETRY_DELAY_MS_MAX: Final = 0xFFFFFFFF
SEGMENT_BYTES_MAX: Final = 3_000_000_000
_REFUSED_FOR_CONSUMERS: Final[dict[str, tuple[str, ...]]] = {
    "classic": ("x-stream-offset", "x-stream-filter", "x-stream-match-unfiltered"),
    "quorum": (
        "x-cancel-on-ha-failover",
        "x-stream-offset",
        "x-stream-filter",
        "x-stream-match-unfiltered",
    ),
    "stream": ("x-cancel-on-ha-failover", "x-priority"),
}


@final
class QueueArguments:
    """The settings that a queue's arguments, and perhaps a policy, ask for. -1 means no limit."""

    message_ttl_ms: i64
    expires_ms: i64
    length_max: i64
    bytes_max: i64
    overflow: str
    overflow_given: bool
    dead_letter_exchange: str | None
    dead_letter_key: str | None
    priority_max: i64  # 0: not a priority queue
    single_active_consumer: bool
    delivery_limit: i64
    delivery_limit_given: bool  # also if there shall be none
    queue_type: str
    last_value_key: str | None
    group_key: str | None  # of a keyed queue: a header, or ROUTING_KEY
    group_fair: bool
    dedup: str | None
    dedup_window_entries: i64
    dedup_window_ms: i64
    consumer_timeout_ms: i64
    disconnected_timeout_ms: i64  # -1: as the broker has it
    retry_type: str  # one of RETRY_TYPES, or empty
    retry_min_ms: i64
    retry_max_ms: i64
    retry_multiplier: i64
    replicate: str | None
    group: str | None
    copies: i64  # of each message, its home's included; -1: as the cluster does
    min_copies: i64  # below it confirms wait
    lazy: bool
    lazy_given: bool
    age_max_ms: i64  # of a stream
    segment_bytes_max: i64  # of a stream
    retained_bytes_max: i64  # of a stream, which bytes_max doesn't bound

    def __init__(self) -> None:
        self.message_ttl_ms = -1
        self.expires_ms = -1
        self.length_max = -1
        self.bytes_max = -1
        self.overflow = OVERFLOW_DROP_HEAD
        self.overflow_given = False
        self.dead_letter_exchange = None
        self.dead_letter_key = None
        self.priority_max = 0
        self.single_active_consumer = False
        self.delivery_limit = -1
        self.delivery_limit_given = False
        self.queue_type = "classic"
        self.last_value_key = None
        self.group_key = None
        self.group_fair = False
        self.dedup = None
        self.dedup_window_entries = 0
        self.dedup_window_ms = -1
        self.consumer_timeout_ms = -1
        self.disconnected_timeout_ms = -1
        self.retry_type = ""
        self.retry_min_ms = -1
        self.retry_max_ms = -1
        self.retry_multiplier = -1
        self.replicate = None
        self.group = None
        self.copies = -1
        self.min_copies = -1
        self.lazy = False
        self.lazy_given = False
        self.age_max_ms = -1
        self.segment_bytes_max = -1
        self.retained_bytes_max = -1

    def of_held_messages(self) -> "QueueArguments":
        """What counts of these for a queue whose messages wait for their time: only where and how
        it is kept. A policy for all queues must not drop what nobody could consume yet."""
        kept = QueueArguments()
        kept.replicate = self.replicate
        kept.group = self.group
        kept.copies = self.copies
        kept.min_copies = self.min_copies
        return kept

    def merged(self, policy: dict[str, object]) -> "QueueArguments":
        """Return these arguments with a policy applied.

        Of two numeric limits the lower one counts, as in RabbitMQ; of anything else the argument.
        """
        both = QueueArguments()
        if self.queue_type == "stream":
            policy = {key: value for key, value in policy.items() if key in _STREAM_SETTINGS}
        both.message_ttl_ms = _lower(self.message_ttl_ms, policy, "message-ttl")
        both.expires_ms = _lower(self.expires_ms, policy, "expires")
        both.length_max = _lower(self.length_max, policy, "max-length")
        both.bytes_max = _lower(self.bytes_max, policy, "max-length-bytes")
        both.delivery_limit = _lower(self.delivery_limit, policy, "delivery-limit")
        both.delivery_limit_given = self.delivery_limit_given or "delivery-limit" in policy
        both.consumer_timeout_ms = _lower(self.consumer_timeout_ms, policy, "consumer-timeout")
        both.age_max_ms = _lower_age(self.age_max_ms, policy)
        both.segment_bytes_max = _lower(
            self.segment_bytes_max, policy, "stream-max-segment-size-bytes"
        )
        both.overflow_given = self.overflow_given
        both.overflow = self.overflow
        if not self.overflow_given:
            both.overflow = _word(policy, "overflow", _OVERFLOW_MODES) or self.overflow
        both.dead_letter_exchange = _first(
            self.dead_letter_exchange, policy, "dead-letter-exchange"
        )
        both.dead_letter_key = _first(self.dead_letter_key, policy, "dead-letter-routing-key")
        both.lazy_given = self.lazy_given
        both.lazy = self.lazy
        if not self.lazy_given:
            both.lazy = policy.get("queue-mode") == "lazy"
        replicate = _replicate(_word(policy, "replicate", _REPLICATE))
        if self.queue_type == "stream" and replicate == "configuration":
            replicate = None  # a stream without its messages would start its offsets again
        both.replicate = self.replicate or replicate
        both.group = _first(self.group, policy, "group")
        both.copies = self.copies if self.copies > 0 else _count(policy, "copies")
        both.min_copies = _count(policy, "min-copies")
        both.disconnected_timeout_ms = _own(
            self.disconnected_timeout_ms, policy, "consumer-disconnected-timeout"
        )
        self._merge_retries(both, policy)
        self._copy_to(both)
        both.turn_into_stream(policy)
        return both

    def _merge_retries(self, both: "QueueArguments", policy: dict[str, object]) -> None:
        both.retry_type = self.retry_type or _word(policy, "delayed-retry-type", RETRY_TYPES) or ""
        both.retry_min_ms = _own(self.retry_min_ms, policy, "delayed-retry-min")
        both.retry_max_ms = _own(self.retry_max_ms, policy, "delayed-retry-max")
        both.retry_multiplier = _own(self.retry_multiplier, policy, "delayed-retry-multiplier")

    def delays_retries(self) -> bool:
        """Whether what is given back to the queue waits before it is delivered again. RabbitMQ asks
        for it by type, LavinMQ with a multiplier."""
        if self.retry_min_ms <= 0 or self.queue_type == "stream":
            return False
        if self.retry_type == "":
            return self.retry_multiplier > 0
        return self.retry_type != "disabled"

    def retry_delay_ms(self, count: i64) -> i64:
        """How long a message waits that was given back for the ``count``-th time.

        Without a multiplier the delay grows by the minimum each time, and without a maximum it
        doesn't grow, as in RabbitMQ; with one it is multiplied, as in LavinMQ.
        """
        most: i64 = RETRY_DELAY_MS_MAX
        if self.retry_max_ms >= 0:
            most = min(self.retry_max_ms, most)
        elif self.retry_multiplier <= 0:
            most = min(self.retry_min_ms, most)
        delay = min(self.retry_min_ms, most)
        if delay <= 0:
            return 0
        if self.retry_multiplier <= 0:
            return most if count > most // delay else delay * count
        while count > 1 and delay < most and self.retry_multiplier > 1:
            delay = most if self.retry_multiplier > most // delay else delay * self.retry_multiplier
            count -= 1
        return delay

    def _copy_to(self, other: "QueueArguments") -> None:
        """Copy what policies have no say in."""
        other.priority_max = self.priority_max
        other.single_active_consumer = self.single_active_consumer
        other.queue_type = self.queue_type
        other.last_value_key = self.last_value_key
        other.group_key = self.group_key
        other.group_fair = self.group_fair
        other.dedup = self.dedup
        other.dedup_window_entries = self.dedup_window_entries
        other.dedup_window_ms = self.dedup_window_ms
        other.retained_bytes_max = self.retained_bytes_max

    def turn_into_stream(self, policy: dict[str, object]) -> None:
        """A stream's bytes are bounded by retention, a segment at a time."""
        if self.queue_type == "stream":
            bytes_max = _lower(self.bytes_max, policy, "max-length-bytes")
            if self.retained_bytes_max < 0 or 0 <= bytes_max < self.retained_bytes_max:
                self.retained_bytes_max = bytes_max
            self.bytes_max = -1


def _lower(own: i64, policy: dict[str, object], key: str) -> i64:
    """Return the lower of an argument (-1: none) and a policy's limit."""
    value = policy.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _I64_MAX:
        return own
    limit: i64 = value
    return limit if own < 0 or limit < own else own


def _own(own: i64, policy: dict[str, object], key: str) -> i64:
    """Return an argument, or if it is absent (-1) what a policy says."""
    return own if own >= 0 else _lower(own, policy, key)


def _lower_age(own: i64, policy: dict[str, object]) -> i64:
    value = policy.get("max-age")
    age_ms: i64 = parse_age_ms(value) if isinstance(value, str) else -1
    if age_ms < 0:
        return own
    return age_ms if own < 0 or age_ms < own else own


def _count(policy: dict[str, object], key: str) -> i64:
    """Return a policy's number of copies; -1 if it says none."""
    value = policy.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        return -1
    return min(value, COPIES_MAX)


def _first(own: str | None, policy: dict[str, object], key: str) -> str | None:
    """Return the argument if it is given, else what the policy says."""
    if own is not None:
        return own
    value = policy.get(key)
    return value if isinstance(value, str) else None


def _word(policy: dict[str, object], key: str, words: tuple[str, ...]) -> str | None:
    """Return a policy's word, if it is one of those that are known."""
    value = policy.get(key)
    return value if isinstance(value, str) and value in words else None


def _replicate(word: str | None) -> str | None:
    return "messages" if word == "all" else word  # qpid's word for it


# --- queues


def check_queue_arguments(
    vhost: str,
    name: str,
    arguments: dict[str, object],
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
    class_id: int = 50,
    method_id: int = 10,
) -> QueueArguments:
    """Read the arguments of queue.declare; raises PreconditionFailed if one is wrong.

    The order is RabbitMQ's: the type, the values of arguments that this type knows, then arguments
    that only other types know, and finally the properties of the queue.
    """
    resource = queue_resource(vhost, name)
    exchange = arguments.get("x-dead-letter-exchange", "")
    if not isinstance(exchange, str):
        # RabbitMQ checks this one before the others, with another error text.
        text = (
            f"invalid type '{type_name(exchange)}' for arg 'x-dead-letter-exchange' in {resource}"
        )
        raise PreconditionFailed(text, class_id, method_id)
    reader = ArgumentReader(arguments, resource, class_id, method_id)
    checked = QueueArguments()
    kind = reader.word("x-queue-type", _QUEUE_TYPES, "\"unsupported queue type '*'\"")
    checked.queue_type = kind or "classic"
    refused = reader.drop_refused(_REFUSED[checked.queue_type])
    _read_limits(reader, checked)
    _read_modes(reader, checked)
    _read_retries(reader, checked)
    _read_own(reader, checked)
    if refused:
        raise reader.refuse_for(refused[0], checked.queue_type)
    if checked.queue_type != "classic":
        _check_traits(reader, durable, exclusive, auto_delete)
    if checked.queue_type == "stream" and checked.replicate == "configuration":
        key = "x-replicate" if "x-replicate" in arguments else "qpid.replicate"
        raise reader.refuse(key, '"a stream is copied with its messages or not at all"')
    if checked.segment_bytes_max > SEGMENT_BYTES_MAX:
        text = "Exceeded max value for x-stream-max-segment-size-bytes"
        raise PreconditionFailed(text, class_id, method_id)
    checked.turn_into_stream({})
    return checked


def _read_limits(reader: ArgumentReader, checked: QueueArguments) -> None:
    reader.positive("x-expires")
    checked.expires_ms = reader.expiry_ms("x-expires")
    checked.message_ttl_ms = reader.expiry_ms("x-message-ttl")
    checked.dead_letter_exchange = reader.text("x-dead-letter-exchange")
    checked.dead_letter_key = reader.text("x-dead-letter-routing-key")
    if checked.dead_letter_key is not None and checked.dead_letter_exchange is None:
        raise reader.refuse("x-dead-letter-routing-key", "routing_key_but_no_dlx_defined")
    reader.word("x-dead-letter-strategy", _DEAD_LETTER_STRATEGIES, "invalid_dlx_strategy")
    checked.length_max = _clamped(reader.integer("x-max-length"))
    checked.bytes_max = _clamped(reader.integer("x-max-length-bytes"))
    reader.integer("x-max-in-memory-length")
    reader.integer("x-max-in-memory-bytes")
    priority_max = reader.integer("x-max-priority")
    if priority_max > PRIORITY_MAX:
        raise reader.refuse("x-max-priority", f"{{max_value_exceeded,{priority_max}}}")
    checked.priority_max = max(0, priority_max)
    if checked.queue_type == "quorum":
        top = QUORUM_PRIORITY_MAX
        checked.priority_max = top if priority_max < 0 else min(priority_max, top)


def _clamped(number: int) -> i64:
    # Numbers from JSON have no limit; one that doesn't fit in 64 bits means for ever anyway.
    return min(number, _I64_MAX)


def _read_modes(reader: ArgumentReader, checked: QueueArguments) -> None:
    overflow = reader.word("x-overflow", _OVERFLOW_MODES, "invalid_overflow")
    checked.overflow_given = overflow is not None
    checked.overflow = overflow or OVERFLOW_DROP_HEAD
    mode = reader.word("x-queue-mode", _QUEUE_MODES, "\"unsupported queue mode '*'\"")
    checked.lazy_given = mode is not None
    checked.lazy = mode == "lazy"
    version = reader.integer("x-queue-version")
    if version >= 0 and version not in _QUEUE_VERSIONS:
        raise reader.refuse("x-queue-version", f"\"unsupported queue version '{version}'\"")
    checked.single_active_consumer = reader.flag("x-single-active-consumer")
    # Quorum queues and streams each have their own word for it, and refuse the other's.
    asked = reader.positive("x-quorum-initial-group-size")
    streams = reader.positive("x-initial-cluster-size")
    checked.copies = min(_clamped(max(asked, streams)), COPIES_MAX)
    age = reader.text("x-max-age")
    if age is not None:
        checked.age_max_ms = parse_age_ms(age)
        if checked.age_max_ms < 0:
            raise reader.refuse("x-max-age", "invalid_max_age")
    checked.segment_bytes_max = _clamped(reader.integer("x-stream-max-segment-size-bytes"))
    reader.word("x-queue-leader-locator", _LEADER_LOCATORS, "invalid_queue_locator_arg")
    checked.delivery_limit = _clamped(reader.unchecked("x-delivery-limit"))
    checked.delivery_limit_given = isinstance(reader.arguments.get("x-delivery-limit"), int)
    checked.consumer_timeout_ms = _clamped(reader.unchecked("x-consumer-timeout"))
    checked.disconnected_timeout_ms = _clamped(reader.unchecked("x-consumer-disconnected-timeout"))


def _read_retries(reader: ArgumentReader, checked: QueueArguments) -> None:
    """Read how messages are retried. Wrong values count as absent here, and are refused where a
    declaration is proposed."""
    word = reader.arguments.get("x-delayed-retry-type")
    checked.retry_type = word if isinstance(word, str) and word in RETRY_TYPES else ""
    checked.retry_min_ms = _clamped(reader.unchecked("x-delayed-retry-min"))
    checked.retry_max_ms = _clamped(reader.unchecked("x-delayed-retry-max"))
    checked.retry_multiplier = _clamped(reader.unchecked("x-delayed-retry-multiplier"))


def _read_own(reader: ArgumentReader, checked: QueueArguments) -> None:
    """Read the arguments that only this broker knows."""
    checked.last_value_key = reader.text("x-last-value-key")
    _read_group_key(reader, checked)
    dedup = reader.word("x-dedup", _DEDUP, "\"expected message-id or none, got '*'\"")
    checked.dedup = None if dedup == "none" else dedup
    _read_dedup_window(reader, checked)
    key = "x-replicate" if "x-replicate" in reader.arguments else "qpid.replicate"
    replicate = reader.word(
        key, _REPLICATE, "\"expected none, configuration or messages, got '*'\""
    )
    checked.replicate = _replicate(replicate)
    checked.group = reader.text("x-group")


def _read_group_key(reader: ArgumentReader, checked: QueueArguments) -> None:
    """Read what makes a keyed queue. A declaration that asks for something else beside it that
    can't be is refused where it is proposed; one that an earlier release took is no keyed queue."""
    name = group_key_in(reader.arguments)
    if name is None or checked.queue_type == "stream" or checked.last_value_key is not None:
        return
    if "x-max-priority" in reader.arguments and checked.priority_max > 0:
        return
    checked.group_key = name
    checked.group_fair = reader.arguments.get(GROUP_FAIR) is True
    checked.priority_max = 0  # also of a quorum queue, which else has priorities unasked


def group_key_in(arguments: dict[str, object]) -> str | None:
    """The name of the key of a keyed queue in its arguments, in our words or in Qpid's; None: there
    is none."""
    name = arguments.get(GROUP_KEY)
    if name is None and arguments.get(QPID_SHARED_GROUP) in (True, 1, "1", "true"):
        name = arguments.get(QPID_GROUP_KEY)
    return name if isinstance(name, str) and 0 < len(name.encode(*_NAME_CODEC)) <= 255 else None


def _read_dedup_window(reader: ArgumentReader, checked: QueueArguments) -> None:
    """Read x-dedup-window: a number of messages, or a time as in x-max-age ("90s", "1h")."""
    key = "x-dedup-window"
    if isinstance(reader.arguments.get(key), str):
        checked.dedup_window_ms = parse_age_ms(reader.text(key) or "")
        if checked.dedup_window_ms < 0:
            reason = '"expected a number of messages or a time like 90s, 10m or 1h"'
            raise reader.refuse(key, reason)
    else:
        checked.dedup_window_entries = max(0, _clamped(reader.positive(key)))


def parse_age_ms(text: str) -> i64:
    """Return the milliseconds of a time like 7D, 12h, 30s; -1 if it isn't one."""
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdigit()) or unit not in _AGE_UNITS_MS or len(number) > 15:
        return -1
    age_ms = int(number) * _AGE_UNITS_MS[unit]
    return min(age_ms, _I64_MAX) if age_ms > 0 else -1


def _check_traits(
    reader: ArgumentReader, durable: bool, exclusive: bool, auto_delete: bool
) -> None:
    """Refuse what quorum queues and streams can't be."""
    trait = ""
    if auto_delete:
        trait = "auto-delete"
    elif exclusive:
        trait = "exclusive-owner"
    elif not durable:
        trait = "non-durable"
    if trait:
        text = f"invalid property '{trait}' for {reader.resource}"
        raise PreconditionFailed(text, reader.class_id, reader.method_id)


def check_server_named(
    arguments: dict[str, object], class_id: int = 50, method_id: int = 10
) -> None:
    """Refuse to generate a name for a quorum queue or a stream: it would outlive its only user."""
    kind = arguments.get("x-queue-type")
    if kind == "quorum" or kind == "stream":
        text = f"Cannot declare a server-named queue for type {TYPE_MODULES[str(kind)]}"
        raise PreconditionFailed(text, class_id, method_id)


def queue_locked(vhost: str, name: str, class_id: int, method_id: int) -> ResourceLocked:
    """Return the refusal of a queue that another connection owns, or that isn't exclusive."""
    text = (
        f"cannot obtain exclusive access to locked {queue_resource(vhost, name)}. It could be "
        "originally declared on another connection or the exclusive property value does not match "
        "that of the original declaration."
    )
    return ResourceLocked(text, class_id, method_id)


# --- exchanges, consumers, messages


def check_exchange_arguments(
    vhost: str,
    name: str,
    arguments: dict[str, object],
    class_id: int = 40,
    method_id: int = 10,
) -> str | None:
    """Check the arguments that every exchange type has; return the alternate exchange."""
    if "alternate-exchange" not in arguments:
        return None
    alternate = arguments["alternate-exchange"]
    if not isinstance(alternate, str):
        kind = type_name(alternate)
        resource = exchange_resource(vhost, name)
        text = f"invalid type '{kind}' for arg 'alternate-exchange' in {resource}"
        raise PreconditionFailed(text, class_id, method_id)
    return alternate


@final
class ConsumeArguments:
    """What a consumer's arguments ask for."""

    priority: i64
    cancel_on_failover: bool
    stream_offset: object  # "first", "last", "next", a time back like "1h", an int, a Timestamp
    timeout_ms: i64  # -1: as its queue has it

    def __init__(
        self, priority: i64, cancel_on_failover: bool, stream_offset: object, timeout_ms: i64
    ) -> None:
        self.priority = priority
        self.cancel_on_failover = cancel_on_failover
        self.stream_offset = stream_offset
        self.timeout_ms = timeout_ms


def check_consume_arguments(
    vhost: str,
    queue: str,
    arguments: dict[str, object],
    queue_type: str = "classic",
    class_id: int = 60,
    method_id: int = 20,
) -> ConsumeArguments:
    """Read the arguments of basic.consume; raises PreconditionFailed if one is wrong."""
    reader = ArgumentReader(arguments, queue_resource(vhost, queue), class_id, method_id)
    refused = reader.drop_refused(_REFUSED_FOR_CONSUMERS[queue_type])
    priority = 0
    if "x-priority" in reader.arguments:
        priority = max(-_I64_MAX, min(reader.any_integer("x-priority"), _I64_MAX))
    cancel_on_failover = reader.flag("x-cancel-on-ha-failover")
    timeout_ms = _clamped(reader.integer("x-consumer-timeout"))
    offset = reader.arguments.get("x-stream-offset", "next")
    if not _is_stream_offset(offset):
        term = f"{{{type_name(offset)},{erlang_term(offset)}}}"
        raise reader.refuse("x-stream-offset", f"{{invalid_stream_offset_arg,{term}}}")
    if refused:
        raise reader.refuse_for(refused[0], queue_type)
    return ConsumeArguments(priority, cancel_on_failover, offset, timeout_ms)


def _is_stream_offset(value: object) -> bool:
    if isinstance(value, str):
        return value in ("first", "last", "next") or parse_age_ms(value) >= 0
    if isinstance(value, bool):
        return False
    return isinstance(value, (int, Timestamp))


def parse_expiration(text: str, class_id: int = 60, method_id: int = 40) -> i64:
    """Return the milliseconds that a message's expiration property says."""
    digits = 1 if text[:1] in ("+", "-") else 0
    end = digits
    while end < len(text) and "0" <= text[end] <= "9":
        end += 1
    reason = ""
    if end == digits:
        reason = "no_integer"
    elif end < len(text):
        reason = f"{{leftover_string,{erlang_string(text[end:])}}}"
    elif text[0] == "-" and text.strip("-0"):
        reason = f"{{value_negative,{int(text)}}}"
    elif int(text) > EXPIRY_MS_MAX:
        reason = f"{{value_too_large,{int(text)}}}"
    if reason:
        raise PreconditionFailed(f"invalid expiration '{text}': {reason}", class_id, method_id)
    return int(text)
