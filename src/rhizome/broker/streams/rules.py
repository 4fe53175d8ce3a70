"""What can't be done with a stream, in the words of RabbitMQ: clients and people know them."""

from __future__ import annotations

from rhizome.broker.arguments import QueueArguments
from rhizome.broker.streams.chunks import CHUNKS_ARGUMENT
from rhizome.broker.streams.reader import NAME_ARGUMENT
from rhizome.broker.words import queue_resource
from rhizome.errors import NotImplementedFault, PreconditionFailed

NAME_CHARS_MAX = 255


def is_stream(options: QueueArguments) -> bool:
    return options.queue_type == "stream"


def unsupported(
    what: str, vhost: str, name: str, class_id: int, method_id: int
) -> NotImplementedFault:
    """The refusal of something that other queues can do; it closes the connection, as there."""
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
    given = arguments.get(NAME_ARGUMENT, "-")
    if not isinstance(given, str) or not 0 < len(given) <= NAME_CHARS_MAX:
        raise PreconditionFailed(
            f"invalid arg '{NAME_ARGUMENT}' for {resource}: "
            f'"expected a name of 1 to {NAME_CHARS_MAX} characters"',
            60,
            20,
        )
    chunked = arguments.get(CHUNKS_ARGUMENT, False)
    if not isinstance(chunked, bool) or (chunked and NAME_ARGUMENT in arguments):
        raise PreconditionFailed(
            f"invalid arg '{CHUNKS_ARGUMENT}' for {resource}: "
            f"\"expected true or false, and no '{NAME_ARGUMENT}' beside it\"",
            60,
            20,
        )
