"""`rhizome publish`: send messages from the command line."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer

from rhizome.cli import coroutine_runner
from rhizome.cli.errors import CliError, UsageError
from rhizome.cli.output.printer import WARNING, print_json, say
from rhizome.cli.shared_options import (
    URI_DEFAULT,
    JsonOption,
    UriOption,
    UriVhostOption,
    parse_pairs,
    uri_in_vhost,
)
from rhizome.client import Channel, Level, MessageReturned, Properties, connect

app = typer.Typer()

UNCONFIRMED_MAX: Final = 1000
PRIORITY_MAX: Final = 255
PROPERTIES: Final = (
    "priority",
    "expiration",
    "message_id",
    "correlation_id",
    "reply_to",
    "type",
    "app_id",
    "user_id",
    "content_encoding",
)
"""What --property sets; of the others the common ones have options of their own."""
READ_BYTES_MAX: Final = 64 * 1024
CHUNKS_WAITING_MAX: Final = 4


@app.command()
def publish(
    queue: Annotated[
        str, typer.Argument(metavar="[QUEUE]", help="Queue that gets it; or use --exchange, --key.")
    ] = "",
    text: Annotated[
        str | None, typer.Argument(metavar="[BODY]", help="The message; or use --body, --file.")
    ] = None,
    uri: UriOption = URI_DEFAULT,
    exchange: Annotated[
        str, typer.Option("--exchange", "-e", help="Exchange; empty means the default one.")
    ] = "",
    key: Annotated[
        str, typer.Option("--key", "-k", help="Routing key; the queue, on the default exchange.")
    ] = "",
    body: Annotated[str | None, typer.Option("--body", "-b", help="The message.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="File with the message.")
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Send it so often.")] = 1,
    persistent: Annotated[
        bool, typer.Option("--persistent", help="Delivery mode 2: kept on disk.")
    ] = False,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="KEY=VALUE", help="KEY:=JSON for other types."),
    ] = None,
    content_type: Annotated[
        str | None, typer.Option("--content-type", help="Like application/json.")
    ] = None,
    more: Annotated[
        list[str] | None,
        typer.Option(
            "--property", "-P", metavar="KEY=VALUE", help=f"One of {', '.join(PROPERTIES)}."
        ),
    ] = None,
    confirm: Annotated[
        bool, typer.Option("--confirm/--no-confirm", help="Wait until the broker has all.")
    ] = True,
    mandatory: Annotated[
        bool, typer.Option("--mandatory", help="Fail if no queue gets it; implies --confirm.")
    ] = False,
    levels: Annotated[
        bool,
        typer.Option("--levels", help="Say which levels were reached; implies --confirm."),
    ] = False,
    vhost: UriVhostOption = "",
    as_json: JsonOption = False,
) -> None:
    """Publish messages, and say if they reached no queue.

    rhizome publish orders 'hello'

    rhizome publish --exchange events --key order.paid --file order.json

    Without a body each line of the standard input is a message.
    """
    if queue and (exchange or key):
        raise UsageError("QUEUE excludes --exchange and --key; give one or the other")
    if text is not None and (body is not None or file is not None):
        raise UsageError("BODY excludes --body and --file; give one of them")
    key, body = queue or key, body if text is None else text
    properties = _properties(content_type, header or [], persistent, more or [])
    bodies = _bodies(body, file, count)
    done = Done(confirm or mandatory or levels)
    message = Outgoing(exchange, key, properties, mandatory)
    uri = uri_in_vhost(uri, vhost)
    coroutine_runner.run(_publish(uri, message, bodies, done, levels))
    if as_json:
        print_json(done.document())
    else:
        done.tell(message)


def _properties(
    content_type: str | None, headers: list[str], persistent: bool, more: list[str]
) -> Properties:
    properties = Properties(
        content_type=content_type,
        headers=parse_pairs("--header", headers, guess_types=False) or None,
        delivery_mode=2 if persistent else None,
    )
    for name, value in parse_pairs("--property", more, guess_types=False).items():
        if name not in PROPERTIES:
            raise UsageError(f"--property {name}: there are {', '.join(PROPERTIES)}")
        setattr(properties, name, _priority(value) if name == "priority" else str(value))
    return properties


def _priority(value: object) -> int:
    text = str(value)
    if not text.isdecimal() or int(text) > PRIORITY_MAX:
        raise UsageError(f"--property priority={text}: give 0 to {PRIORITY_MAX}")
    return int(text)


@dataclass
class Outgoing:
    """Where the messages go."""

    exchange: str
    key: str
    properties: Properties
    mandatory: bool

    def place(self) -> str:
        if not self.exchange:
            return f"there is no queue '{self.key}'"
        return f"no queue is bound to exchange '{self.exchange}' for key '{self.key}'"


@dataclass
class Done:
    """What became of the messages. Without confirms the broker says nothing of them."""

    confirms: bool
    sent: int = 0
    unrouted: int = 0
    levels: Counter[Level] = field(default_factory=Counter)

    def document(self) -> dict[str, object]:
        levels = {str(level): number for level, number in sorted(self.levels.items())}
        confirmed = self.sent if self.confirms else 0
        return {
            "published": self.sent,
            "confirmed": confirmed,
            "reached_no_queue": self.unrouted,
            "levels": levels,
        }

    def tell(self, message: Outgoing) -> None:
        verb = "published and confirmed" if self.confirms else "published"
        say(f"{verb} {self.sent} message{'' if self.sent == 1 else 's'}", to_errors=True)
        for level, number in sorted(self.levels.items()):
            say(f"  {number} {level}", to_errors=True)
        if self.unrouted:
            which = "it" if self.sent == 1 else f"{self.unrouted} of them"
            say(f"{which} reached no queue: {message.place()}", level=WARNING, to_errors=True)


def _bodies(body: str | None, file: Path | None, count: int) -> AsyncIterator[bytes]:
    if body is not None and file is not None:
        raise UsageError("--body and --file exclude each other; give one of them")
    if body is not None:
        return _repeated(body.encode("utf-8", "surrogateescape"), count)
    if file is not None:
        return _repeated(file.read_bytes(), count)
    return _lines(count)


async def _repeated(body: bytes, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield body


async def _lines(count: int) -> AsyncIterator[bytes]:
    """Lines of the standard input.

    The next one may be hours away (`tail -f`): meanwhile the loop has to send the last one, and
    heartbeats. So a thread reads.
    """
    rest = b""
    async for chunk in _chunks():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            for _ in range(count):
                yield line.removesuffix(b"\r")
    if rest:
        for _ in range(count):
            yield rest


async def _chunks() -> AsyncIterator[bytes]:
    """What the standard input gives, as it comes.

    A daemon thread, and not one of the loop's: the loop would wait for its end, which is the end
    of the input, and Ctrl-C would do nothing until then.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue(maxsize=CHUNKS_WAITING_MAX)
    threading.Thread(target=_read, args=(loop, chunks), name="stdin", daemon=True).start()
    while chunk := await chunks.get():
        yield chunk


def _read(loop: asyncio.AbstractEventLoop, chunks: asyncio.Queue[bytes]) -> None:
    """Pass the standard input on until it ends (an empty chunk), or the loop does."""
    chunk = b"more"
    while chunk:
        chunk = os.read(sys.stdin.fileno(), READ_BYTES_MAX)
        handing_over = chunks.put(chunk)
        try:
            asyncio.run_coroutine_threadsafe(handing_over, loop).result()
        except (RuntimeError, CancelledError):
            handing_over.close()
            return


def _tell_blocked(reason: str | None) -> None:
    """Tell a person at a terminal why publishing waits."""
    told = "the broker takes messages again" if reason is None else f"the broker waits: {reason}"
    say(told, to_errors=True)


async def _publish(
    uri: str, message: Outgoing, bodies: AsyncIterator[bytes], done: Done, tells_levels: bool
) -> None:
    async with (
        connect(
            uri, name="rhizome publish", on_blocked=_tell_blocked, confirm_levels=tells_levels
        ) as connection,
        connection.channel(confirms=done.confirms) as channel,
    ):
        if tells_levels:
            if not connection.tells_levels:
                raise CliError("this broker doesn't tell levels; publish without --levels")
            channel.on_level = lambda _, level: done.levels.update([level])
        if not message.mandatory:
            channel.on_return = lambda _: _count_unrouted(done)
        async for body in bodies:
            await channel.ready()
            channel.publish_soon(
                body,
                exchange=message.exchange,
                routing_key=message.key,
                properties=message.properties,
                mandatory=done.confirms,
            )
            done.sent += 1
            await _confirmed(channel, message, UNCONFIRMED_MAX)
        await _confirmed(channel, message, 0)


def _count_unrouted(done: Done) -> None:
    done.unrouted += 1


async def _confirmed(channel: Channel, message: Outgoing, unconfirmed_max: int) -> None:
    """Wait for confirms. That a message came back is an error only if it is mandatory."""
    try:
        await channel.confirmed(unconfirmed_max)
    except MessageReturned:
        if message.mandatory:
            raise
