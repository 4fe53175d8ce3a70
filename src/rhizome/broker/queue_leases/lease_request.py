"""Lease request: the arguments of a consumer with ``x-lease``. Compiled.

Such a consumer gets no messages of its queue. It settles, takes, reads or ends a lease, in this
order, as its arguments say, and is told the outcome in its first delivery (lease_delivery.py):

    x-lease          the name of the lease
    x-lease-settle   everything below this position is settled
    x-lease-take     have this many messages from position x-lease-from on, if there are as many;
                     x-lease-bytes bounds their size
    x-lease-read     read from this position up to x-lease-until, which must be given
    x-lease-end      true: give everything back
    x-lease-keep-ms  how long the lease outlives the last sign of life, from now on

Any of them is a sign of life; so is ``x-lease`` alone. All may be repeated without harm: what is
settled stays settled, and a repeated take returns what it has taken before.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rhizome.broker.metadata.declare_and_consume_arguments import QueueArguments
from rhizome.broker.queue.queue_consumer import LEASE_ARGUMENT
from rhizome.broker.queue_leases.lease import NAME_BYTES_MAX
from rhizome.broker.streams.stream_restrictions import is_stream
from rhizome.errors import PreconditionFailed

SETTLE_ARGUMENT: Final = "x-lease-settle"
TAKE_ARGUMENT: Final = "x-lease-take"
FROM_ARGUMENT: Final = "x-lease-from"
BYTES_ARGUMENT: Final = "x-lease-bytes"
READ_ARGUMENT: Final = "x-lease-read"
UNTIL_ARGUMENT: Final = "x-lease-until"
END_ARGUMENT: Final = "x-lease-end"
KEEP_ARGUMENT: Final = "x-lease-keep-ms"

KEEP_MS_DEFAULT: Final = 300_000
KEEP_MS_MIN: Final = 1000
KEEP_MS_MAX: Final = 7 * 24 * 3600 * 1000
NUMBER_MAX: Final = 1 << 62


@final
class LeaseRequest:
    """Invariant: -1 in ``settle``, ``take``, ``read`` and ``keep_ms`` says that it isn't asked
    for."""

    name: str
    settle: i64
    take: i64
    start: i64
    bytes_max: i64
    read: i64
    until: i64
    end: bool
    keep_ms: i64

    def __init__(self, arguments: dict[str, object]) -> None:
        """``arguments`` have been checked."""
        self.name = str(arguments[LEASE_ARGUMENT])
        self.settle = _number(arguments, SETTLE_ARGUMENT, -1)
        self.take = _number(arguments, TAKE_ARGUMENT, -1)
        self.start = _number(arguments, FROM_ARGUMENT, 0)
        self.bytes_max = _number(arguments, BYTES_ARGUMENT, NUMBER_MAX)
        self.read = _number(arguments, READ_ARGUMENT, -1)
        self.until = _number(arguments, UNTIL_ARGUMENT, 0)
        self.end = arguments.get(END_ARGUMENT) is True
        self.keep_ms = _number(arguments, KEEP_ARGUMENT, -1)


def check_lease(
    resource: str,
    options: QueueArguments,
    is_private: bool,
    no_ack: bool,
    exclusive: bool,
    arguments: dict[str, object],
) -> None:
    """Raise PreconditionFailed if a queue can't be leased, or not with these arguments."""
    if is_stream(options):
        raise _refused(f"{resource} is a stream: it is read by offsets, and needs no lease")
    if is_private:
        raise _refused(f"{resource} is private: it goes with its connection, and has no leases")
    if options.single_active_consumer:
        raise _refused(f"{resource} has a single active consumer, which a lease would pass by")
    if options.group_key is not None:
        raise _refused(f"{resource} is keyed: a lease would hold messages of all of its keys")
    if not no_ack or exclusive:
        raise _refused(f"a lease of {resource} is read with no-ack, and not exclusively")
    if not _is_name(arguments[LEASE_ARGUMENT]):
        raise _invalid(LEASE_ARGUMENT, resource, f"a name of 1 to {NAME_BYTES_MAX} bytes of UTF-8")
    for key in (
        SETTLE_ARGUMENT,
        TAKE_ARGUMENT,
        FROM_ARGUMENT,
        BYTES_ARGUMENT,
        READ_ARGUMENT,
        UNTIL_ARGUMENT,
    ):
        if not _is_within(arguments.get(key, 0), 0, NUMBER_MAX):
            raise _invalid(key, resource, "a whole number, 0 or more")
    if not _is_within(arguments.get(KEEP_ARGUMENT, KEEP_MS_DEFAULT), KEEP_MS_MIN, KEEP_MS_MAX):
        raise _invalid(KEEP_ARGUMENT, resource, f"{KEEP_MS_MIN} to {KEEP_MS_MAX} milliseconds")
    if READ_ARGUMENT in arguments and UNTIL_ARGUMENT not in arguments:
        raise _invalid(READ_ARGUMENT, resource, f"'{UNTIL_ARGUMENT}' beside it")
    if not isinstance(arguments.get(END_ARGUMENT, False), bool):
        raise _invalid(END_ARGUMENT, resource, "true or false")


def _is_name(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return 0 < len(value.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        # Bytes that are not UTF-8 come from the wire as surrogates, which can't be encoded.
        return False


def _is_within(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _number(arguments: dict[str, object], name: str, default: i64) -> i64:
    value = arguments.get(name)
    return i64(value) if isinstance(value, int) else default


def _refused(text: str) -> PreconditionFailed:
    return PreconditionFailed(text, 60, 20)


def _invalid(name: str, resource: str, expected: str) -> PreconditionFailed:
    return PreconditionFailed(f"invalid arg '{name}' for {resource}: expected {expected}", 60, 20)
