"""The operations that streams refuse, in the words of RabbitMQ: clients and people know them."""

from __future__ import annotations

from rhizome.broker.erlang_term_text import queue_resource
from rhizome.broker.metadata.declare_and_consume_arguments import QueueArguments
from rhizome.broker.streams.chunk_delivery import CHUNKS_ARGUMENT
from rhizome.broker.streams.stream_arguments import (
    FILTER_ARGUMENT,
    NAME_ARGUMENT,
    READER_ARGUMENT,
    READER_KEEP_ARGUMENT,
    READER_NEXT_ARGUMENT,
    UNFILTERED_ARGUMENT,
)
from rhizome.broker.streams.stream_filters import FILTER_VALUES_MAX, is_filter
from rhizome.errors import NotImplementedFault, PreconditionFailed

NAME_CHARS_MAX = 255


def is_stream(options: QueueArguments) -> bool:
    return options.queue_type == "stream"


def unsupported(
    what: str, vhost: str, name: str, class_id: int, method_id: int
) -> NotImplementedFault:
    """The refusal of something that other queues can do; it closes the connection, as in
    RabbitMQ."""
    text = f"{what} not supported by stream queues {queue_resource(vhost, name)}"
    return NotImplementedFault(text, class_id, method_id)


def check_consumer(
    vhost: str, name: str, no_ack: bool, prefetch: int, arguments: dict[str, object]
) -> None:
    """Refuse a consumer that would have no credit, or endless credit."""
    resource = queue_resource(vhost, name)
    if no_ack:
        raise unsupported("automatic acknowledgement", vhost, name, 60, 20)
    if prefetch == 0:
        raise PreconditionFailed(f"consumer prefetch count is not set for '{resource}'", 60, 20)
    _check_name(NAME_ARGUMENT, resource, arguments)
    _check_name(READER_ARGUMENT, resource, arguments)
    after = arguments.get(READER_NEXT_ARGUMENT, 0)
    if isinstance(after, bool) or not isinstance(after, int) or after < 0:
        raise _invalid(READER_NEXT_ARGUMENT, resource, "expected an offset, 0 or more")
    if not isinstance(arguments.get(READER_KEEP_ARGUMENT, False), bool):
        raise _invalid(READER_KEEP_ARGUMENT, resource, "expected true or false")
    if FILTER_ARGUMENT in arguments and not is_filter(arguments[FILTER_ARGUMENT]):
        text = f"expected a string, or a list of 1 to {FILTER_VALUES_MAX}"
        raise _invalid(FILTER_ARGUMENT, resource, text)
    if not isinstance(arguments.get(UNFILTERED_ARGUMENT, False), bool):
        raise _invalid(UNFILTERED_ARGUMENT, resource, "expected true or false")
    chunked = arguments.get(CHUNKS_ARGUMENT, False)
    if not isinstance(chunked, bool) or (chunked and NAME_ARGUMENT in arguments):
        text = f"expected true or false, and no '{NAME_ARGUMENT}' beside it"
        raise _invalid(CHUNKS_ARGUMENT, resource, text)


def _check_name(argument: str, resource: str, arguments: dict[str, object]) -> None:
    given = arguments.get(argument, "-")
    if not isinstance(given, str) or not 0 < len(given) <= NAME_CHARS_MAX:
        raise _invalid(argument, resource, f"expected a name of 1 to {NAME_CHARS_MAX} characters")


def _invalid(argument: str, resource: str, reason: str) -> PreconditionFailed:
    return PreconditionFailed(f"invalid arg '{argument}' for {resource}: \"{reason}\"", 60, 20)
