"""`rhizome publish`: send messages from the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Annotated, Final

import typer

from rhizome.cli import loops
from rhizome.cli.errors import CliError
from rhizome.cli.options import URI_DEFAULT, UriOption
from rhizome.cli.pairs import parse_pairs
from rhizome.client import Properties, connect

app = typer.Typer()

UNCONFIRMED_MAX: Final = 1000


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
    sent = loops.run(
        _publish(uri, exchange, key, properties, bodies, confirm or mandatory, mandatory)
    )
    done = "published and confirmed" if confirm or mandatory else "published"
    print(f"{done} {sent} message{'' if sent == 1 else 's'}", file=sys.stderr)


def _bodies(body: str | None, file: Path | None, count: int) -> Iterator[bytes]:
    if body is not None and file is not None:
        raise CliError("--body and --file exclude each other; give one of them")
    if body is not None:
        return repeat(body.encode("utf-8", "surrogateescape"), count)
    if file is not None:
        return repeat(file.read_bytes(), count)
    return _lines(count)


def _lines(count: int) -> Iterator[bytes]:
    for line in sys.stdin.buffer:
        yield from repeat(line.rstrip(b"\r\n"), count)


async def _publish(
    uri: str,
    exchange: str,
    key: str,
    properties: Properties,
    bodies: Iterator[bytes],
    confirms: bool,
    mandatory: bool,
) -> int:
    """Reading from the standard input blocks the loop; nothing else runs in it meanwhile."""
    sent = 0
    async with (
        connect(uri, name="rhizome publish") as connection,
        connection.channel(confirms=confirms) as channel,
    ):
        for body in bodies:
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
