"""`rhizome consume`: print the messages of a queue."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from enum import Enum
from typing import Annotated, Final

import typer

from rhizome.amqp.values import Timestamp
from rhizome.cli import loops
from rhizome.cli.options import URI_DEFAULT, UriOption
from rhizome.client import Channel, Message, Properties, connect

app = typer.Typer()

PREFETCH: Final = 100
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
) -> None:
    """Print the messages of a queue as they come, until --count, --timeout or Ctrl-C."""
    printed = loops.run(_consume(uri, queue, count, ack, form, timeout_s or None))
    print(f"consumed {printed} message{'' if printed == 1 else 's'}", file=sys.stderr)


async def _consume(
    uri: str, queue: str, count: int, ack: bool, form: Format, timeout_s: float | None
) -> int:
    # With a count, never more is taken than is printed; without acks, nothing limits it.
    prefetch = min(count, PREFETCH) if ack and count else PREFETCH if ack else count
    async with (
        connect(uri, name="rhizome consume") as connection,
        connection.channel(prefetch=prefetch) as channel,
    ):
        return await _print_messages(channel, queue, count, ack, form, timeout_s)


async def _print_messages(
    channel: Channel, queue: str, count: int, ack: bool, form: Format, timeout_s: float | None
) -> int:
    printed = 0
    async with channel.consume(queue) as messages:
        while not count or printed < count:
            try:
                async with asyncio.timeout(timeout_s):
                    message = await anext(messages)
            except TimeoutError:
                break
            write_message(message, form)
            printed += 1
            if ack:
                await message.ack()
    return printed


def write_message(message: Message, form: Format) -> None:
    """Print one message; flushed, since a pipe would hold it back otherwise."""
    if form is Format.BODY:
        sys.stdout.buffer.write(message.body + b"\n")
    elif form is Format.HEX:
        sys.stdout.buffer.write(message.body.hex().encode() + b"\n")
    else:
        line = json.dumps(message_document(message), ensure_ascii=True)
        sys.stdout.buffer.write(line.encode() + b"\n")
    sys.stdout.buffer.flush()


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
