"""`rhizome consume`: print the messages of a queue."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from enum import Enum
from typing import Annotated, Final

import typer

from rhizome.amqp.field_table import Timestamp
from rhizome.cli import coroutine_runner
from rhizome.cli.commands.resources.stream_command import time_ms
from rhizome.cli.output.printer import say
from rhizome.cli.shared_options import URI_DEFAULT, UriOption, UriVhostOption, uri_in_vhost
from rhizome.client import Channel, Consumer, Message, Properties, connect
from rhizome.printable_text import escaped_lines

app = typer.Typer()

PREFETCH: Final = 100
SILENCE_S: Final = 2.0
"""After so long without a message somebody at a terminal is told that it is being waited for."""
PROPERTY_NAMES: Final = (
    "content_type",
    "content_encoding",
    "headers",
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
)


class Format(Enum):
    """How a message is printed."""

    BODY = "body"
    JSON = "json"
    HEX = "hex"


@app.command()
def consume(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")],
    uri: UriOption = URI_DEFAULT,
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="Stop after so many; 0: never.")
    ] = 0,
    ack: Annotated[
        bool,
        typer.Option("--ack/--no-ack", help="Take the messages, or put them back at the end."),
    ] = True,
    form: Annotated[Format, typer.Option("--format", help="How to print them.")] = Format.BODY,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0, help="Stop after so many idle seconds; 0: never.")
    ] = 0,
    offset: Annotated[
        str,
        typer.Option(
            "--offset",
            help="Of a stream: first, last, next, a number, a time, or how long ago (1h).",
        ),
    ] = "",
    name: Annotated[
        str,
        typer.Option("--name", help="Of a stream: go on after what this consumer has done with."),
    ] = "",
    filter_value: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="VALUE",
            help="Of a stream: only messages with this filter value; may be repeated.",
        ),
    ] = None,
    vhost: UriVhostOption = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="The same as --format json: a line per message.")
    ] = False,
) -> None:
    """Print the messages of a queue as they come, until --count, --timeout or Ctrl-C."""
    arguments = stream_arguments(offset, name, filter_value or [])
    form = Format.JSON if as_json else form
    printed = coroutine_runner.run(
        _consume(uri_in_vhost(uri, vhost), queue, count, ack, form, timeout_s or None, arguments)
    )
    say(f"consumed {printed} message{'' if printed == 1 else 's'}", to_errors=True)


def stream_arguments(offset: str, name: str, filters: list[str]) -> dict[str, object]:
    """The consume arguments of a consumer of a stream."""
    arguments: dict[str, object] = {}
    if offset.isdecimal():
        arguments["x-stream-offset"] = int(offset)
    elif "T" in offset or "-" in offset:
        arguments["x-stream-offset"] = Timestamp(time_ms(offset) // 1000)
    elif offset:
        arguments["x-stream-offset"] = offset
    if name:
        arguments["x-stream-consumer-name"] = name
    if filters:
        arguments["x-stream-filter"] = filters
    return arguments


async def _consume(
    uri: str,
    queue: str,
    count: int,
    ack: bool,
    form: Format,
    timeout_s: float | None,
    arguments: dict[str, object],
) -> int:
    # Without acks nothing frees the window, so it must hold all that is to be printed.
    prefetch = min(count or PREFETCH, PREFETCH) if ack else count
    async with (
        connect(uri, name="rhizome consume") as connection,
        connection.channel(prefetch=prefetch) as channel,
    ):
        messages = channel.consume(queue, arguments=arguments)
        printer = _Printer(channel, messages, form, count - prefetch if count else None)
        return await printer.run(count, ack, timeout_s)


class _Printer:
    """Prints messages and acknowledges them.

    Each ack lets the broker deliver one more. With a count, the last acks are therefore held back
    until the consumer is cancelled: no message is ever taken that isn't printed.
    `acks_at_once_max` says how many are not held back, None that none is.
    """

    def __init__(
        self, channel: Channel, messages: Consumer, form: Format, acks_at_once_max: int | None
    ) -> None:
        self._channel = channel
        self._messages = messages
        self._form = form
        self._acks_at_once_max = acks_at_once_max
        self._printed = 0
        self._unacked: Message | None = None

    async def run(self, count: int, ack: bool, timeout_s: float | None) -> int:
        """Print until the count or the timeout is reached; returns how many."""
        notice = asyncio.get_running_loop().call_later(SILENCE_S, _tell_waiting)
        try:
            while not count or self._printed < count:
                async with asyncio.timeout(timeout_s):
                    message = await anext(self._messages)
                notice.cancel()
                write_message(message, self._form)
                self._printed += 1
                if ack:
                    await self._ack(message)
        except TimeoutError:
            pass
        finally:
            notice.cancel()
            await self._messages.cancel()
            if self._unacked is not None and self._channel.is_open:
                await self._unacked.ack(multiple=True)
        return self._printed

    async def _ack(self, message: Message) -> None:
        if self._acks_at_once_max is None or self._printed <= self._acks_at_once_max:
            await message.ack()
        else:
            self._unacked = message


def _tell_waiting() -> None:
    if sys.stderr.isatty():
        say("nothing is there yet; waiting, until Ctrl-C", to_errors=True)


def write_message(message: Message, form: Format) -> None:
    """Print one message; flushed, since a pipe would hold it back otherwise."""
    if form is Format.BODY:
        sys.stdout.buffer.write(_shown_body(message.body) + b"\n")
    elif form is Format.HEX:
        sys.stdout.buffer.write(message.body.hex().encode() + b"\n")
    else:
        line = json.dumps(message_document(message), ensure_ascii=True)
        sys.stdout.buffer.write(line.encode() + b"\n")
    sys.stdout.buffer.flush()


def _shown_body(body: bytes) -> bytes:
    """A body as it is, for files and pipes; for a terminal, control characters are escaped."""
    if not sys.stdout.isatty():
        return body
    return escaped_lines(body.decode("utf-8", "surrogateescape")).encode()


def message_document(message: Message) -> dict[str, object]:
    """The message as JSON, with the names that `browse --json` uses too."""
    payload, encoding = encode_payload(message.body)
    return {
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "redelivered": message.redelivered,
        "properties": properties_document(message.properties),
        "payload": payload,
        "payload_encoding": encoding,
        "size": len(message.body),
    }


def encode_payload(body: bytes) -> tuple[str, str]:
    """Text where it is UTF-8, base64 otherwise, and which of the two."""
    try:
        return body.decode("utf-8"), "string"
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), "base64"


def properties_document(properties: Properties) -> dict[str, object]:
    """The properties that are present, as JSON values."""
    present = {name: getattr(properties, name) for name in PROPERTY_NAMES}
    return {name: json_value(value) for name, value in present.items() if value is not None}


def json_value(value: object) -> object:
    """A field value as JSON. What JSON lacks (timestamps, decimals, bytes) becomes text."""
    if isinstance(value, dict):
        return {str(key): json_value(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [json_value(inner) for inner in value]
    if isinstance(value, Timestamp):
        return value.seconds
    if isinstance(value, bytes):
        return encode_payload(value)[0]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value)
