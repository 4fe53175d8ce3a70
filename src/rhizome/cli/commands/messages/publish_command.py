"""`rhizome publish`: send messages from the command line."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Annotated, Final

import typer

from rhizome.cli import coroutine_runner
from rhizome.cli.errors import CliError, UsageError
from rhizome.cli.output.printer import print_json, say
from rhizome.cli.shared_options import URI_DEFAULT, JsonOption, UriOption, parse_pairs
from rhizome.client import Level, Properties, connect

app = typer.Typer()

UNCONFIRMED_MAX: Final = 1000
READ_BYTES_MAX: Final = 64 * 1024
CHUNKS_WAITING_MAX: Final = 4


@app.command()
def publish(
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
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Wait until the broker has confirmed all.")
    ] = False,
    mandatory: Annotated[
        bool, typer.Option("--mandatory", help="Fail if no queue gets it; implies --confirm.")
    ] = False,
    levels: Annotated[
        bool,
        typer.Option("--levels", help="Say which levels were reached; implies --confirm."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Publish messages.

    The body is --body, or the content of --file, or else each line of the standard input is a
    message.
    """
    properties = Properties(
        content_type=content_type,
        headers=parse_pairs("--header", header or [], guess_types=False) or None,
        delivery_mode=2 if persistent else None,
    )
    bodies = _bodies(body, file, count)
    confirm = confirm or mandatory or levels
    reached: Counter[Level] | None = Counter() if levels else None
    sent = coroutine_runner.run(
        _publish(uri, exchange, key, properties, bodies, confirm, mandatory, reached)
    )
    if as_json:
        said = {str(level): number for level, number in sorted((reached or {}).items())}
        print_json({"published": sent, "confirmed": sent if confirm else 0, "levels": said})
        return
    done = "published and confirmed" if confirm else "published"
    say(f"{done} {sent} message{'' if sent == 1 else 's'}", to_errors=True)
    for level, count in sorted((reached or {}).items()):
        say(f"  {count} {level}", to_errors=True)


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
    uri: str,
    exchange: str,
    key: str,
    properties: Properties,
    bodies: AsyncIterator[bytes],
    confirms: bool,
    mandatory: bool,
    reached: Counter[Level] | None,
) -> int:
    sent = 0
    async with (
        connect(
            uri,
            name="rhizome publish",
            on_blocked=_tell_blocked,
            confirm_levels=reached is not None,
        ) as connection,
        connection.channel(confirms=confirms) as channel,
    ):
        if reached is not None:
            if not connection.tells_levels:
                raise CliError("this broker doesn't tell levels; publish without --levels")
            channel.on_level = lambda _, level: reached.update([level])
        async for body in bodies:
            await channel.ready()
            channel.publish_soon(
                body,
                exchange=exchange,
                routing_key=key,
                properties=properties,
                mandatory=mandatory,
            )
            sent += 1
            await channel.confirmed(UNCONFIRMED_MAX)
        await channel.confirmed()
    return sent
