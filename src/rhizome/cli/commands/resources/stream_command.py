"""`rhizome stream`: streams, partitioned ones under their one name, and remembered offsets."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from rhizome.cli.errors import CliError
from rhizome.cli.http_api.api_client import Row, path
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.output.printer import bytes_of, print_json, print_row, print_rows, print_table, say
from rhizome.cli.shared_options import AnyVhostOption, VhostOption, parse_pairs, with_options

app = typer.Typer(no_args_is_help=True, help="Look at streams, create and delete them.")
offset_app = typer.Typer(no_args_is_help=True, help="What is remembered for named consumers.")
app.add_typer(offset_app, name="offset")

NameArgument = Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.")]
ConsumerArgument = Annotated[
    str, typer.Argument(metavar="CONSUMER", help="Name of the consumer (x-stream-consumer-name).")
]

SIZE: Final = ("size", bytes_of("bytes"))
FROM_TO: Final = (
    ("from", lambda row: time_text(row.get("first_timestamp"))),
    ("to", lambda row: time_text(row.get("last_timestamp"))),
)
COLUMNS: Final = (
    *("name", "vhost", "partitions", "first", "next", "messages", SIZE),
    ("consumers", lambda row: sum(int(each.get("consumers") or 0) for each in _streams_of(row))),
)
PARTITIONS: Final = (
    *(("stream", "name"), "first", "next", "messages", SIZE, "segments", "consumers"),
)
SEGMENTS: Final = ("segment", "first", "next", SIZE, *FROM_TO)
FIELDS: Final = (
    *("name", "vhost", ("first offset", "first"), ("next offset", "next"), "messages", SIZE),
    *("segments", *FROM_TO, "arguments"),
)
READERS: Final = (
    *("stream", ("reader", "name"), "next", "lag"),
    ("last heard of", lambda row: time_text(row.get("used_ms"))),
    ("kept", lambda row: "yes" if row.get("kept") else "while it runs"),
    ("connected", lambda row: "yes" if row.get("connected") else "-"),
    ("about to be dropped", lambda row: row.get("at_risk") or "-"),
)
CONSUMERS: Final = (
    "stream",
    ("consumer", lambda row: row.get("name") or "-"),
    *(("tag", "consumer_tag"), "next", "lag"),
    *(("unacked", "unacknowledged"), ("prefetch", "prefetch_count")),
)


@app.command("list")
@with_options
def list_streams(remote: Remote, vhost: AnyVhostOption = "") -> None:
    """List streams; a partitioned one is one line."""
    parts = ("rhizome", "streams", vhost) if vhost else ("rhizome", "streams")
    streams = remote.api.rows(path(*parts))
    remote.print_rows(streams, COLUMNS, "no streams")


def _streams_of(stream: Row) -> list[Row]:
    """The streams behind a name: its partitions, or itself."""
    found = stream.get("streams")
    return [each for each in found if isinstance(each, dict)] if found is not None else [stream]


@app.command("inspect")
@with_options
def inspect_stream(
    remote: Remote,
    name: NameArgument,
    at: Annotated[
        str,
        typer.Option("--at", help="Also the offset at this time: ISO 8601, or 90s, 10m, 1h ago."),
    ] = "",
    segments: Annotated[bool, typer.Option("--segments", help="Also each segment.")] = False,
    vhost: VhostOption = "/",
) -> None:
    """Show where a stream begins and ends, who reads it, and what is remembered for whom."""
    query = {"timestamp": time_ms(at)} if at else None
    api = remote.api
    stream = api.get(path("rhizome", "streams", vhost, name), query)
    if remote.as_json:
        print_json(stream)
        return
    parts = _streams_of(stream)
    if "streams" in stream:
        say(f"{name}: {len(parts)} partitions, {stream.get('messages')} messages")
        print_rows(parts, PARTITIONS, "no partitions")
    else:
        print_row(stream, FIELDS)
    if at:
        for part in parts:
            say(f"at {at}: offset {part.get('offset_at')} of {part.get('name')}")
    _print_readers(parts)
    if segments:
        for part in parts:
            say()
            say(f"segments of {part.get('name')}")
            print_rows(_rows(part, "segment_details"), SEGMENTS, "-")


def _print_readers(parts: list[Row]) -> None:
    readers = [
        {**reader, "stream": part.get("name")}
        for part in parts
        for reader in _rows(part, "consumer_details")
    ]
    if readers:
        say()
        say("consumers")
        print_rows(readers, CONSUMERS, "-")
    remembered = [
        [part.get("name"), consumer, offset]
        for part in parts
        for consumer, offset in sorted((part.get("offsets") or {}).items())
    ]
    if remembered:
        say()
        say("remembered offsets")
        print_table(("stream", "consumer", "offset"), remembered, "-")


def _rows(part: Row, key: str) -> list[Row]:
    return [each for each in part.get(key) or [] if isinstance(each, dict)]


@app.command("create")
@with_options
def create_stream(
    remote: Remote,
    name: NameArgument,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            min=1,
            help="Spread it over streams NAME-0, NAME-1, ... by a hash of the routing key.",
            show_default="one stream",
        ),
    ] = None,
    max_age: Annotated[
        str, typer.Option("--max-age", help="Keep messages this long: 7D, 12h, 30m.")
    ] = "",
    max_bytes: Annotated[
        int, typer.Option("--max-bytes", help="Keep at most so many bytes (each).", min=0)
    ] = 0,
    segment_bytes: Annotated[
        int, typer.Option("--segment-bytes", help="Size of a segment: what is dropped at once.")
    ] = 0,
    argument: Annotated[
        list[str] | None,
        typer.Option("--argument", "-a", metavar="KEY=VALUE", help="Like x-group=b2."),
    ] = None,
    vhost: VhostOption = "/",
) -> None:
    """Create a stream, or a partitioned one with everything that belongs to it."""
    arguments = dict(parse_pairs("--argument", argument or [], guess_types=True))
    if max_age:
        arguments["x-max-age"] = max_age
    if max_bytes:
        arguments["x-max-length-bytes"] = max_bytes
    if segment_bytes:
        arguments["x-stream-max-segment-size-bytes"] = segment_bytes
    document: Row = {"arguments": arguments}
    if partitions:
        document["partitions"] = partitions
    remote.api.put(path("rhizome", "streams", vhost, name), document)
    spread = f" with {partitions} partitions" if partitions else ""
    done = f"created stream '{name}'{spread} in vhost '{vhost}'"
    if partitions:
        last = f"{name}-{partitions - 1}"
        done += f"; publish to exchange '{name}', read from {name}-0 to {last}"
    remote.done(done)


@app.command("delete")
@with_options
def delete_stream(remote: Remote, name: NameArgument, vhost: VhostOption = "/") -> None:
    """Delete a stream with all that it holds; of a partitioned one all parts."""
    remote.api.delete(path("rhizome", "streams", vhost, name))
    remote.done(f"deleted stream '{name}' in vhost '{vhost}'")


# ---- readers ------------------------------------------------------------------------------------


@app.command("readers")
@with_options
def list_readers(
    remote: Remote,
    name: Annotated[
        str, typer.Argument(metavar="[STREAM]", help="Only of this stream, with its partitions.")
    ] = "",
    vhost: AnyVhostOption = "",
) -> None:
    """List named readers, the next offset of each, and how many messages it is behind.

    `rhizome stream offset set` moves a reader, `rhizome stream offset forget` removes it.
    """
    api = remote.api
    if name:
        stream = api.get(path("rhizome", "streams", vhost or "/", name))
        readers = [row for part in _streams_of(stream) for row in _rows(part, "reader_details")]
    else:
        parts = ("rhizome", "stream-readers", vhost) if vhost else ("rhizome", "stream-readers")
        readers = api.rows(path(*parts))
    if not remote.as_json:
        readers.sort(key=lambda row: (str(row.get("stream")), -int(row.get("lag") or 0)))
    remote.print_rows(readers, READERS, "no named readers")


# ---- offsets ------------------------------------------------------------------------------------


@offset_app.command("list")
@with_options
def list_offsets(remote: Remote, name: NameArgument, vhost: VhostOption = "/") -> None:
    """List the offset that each named consumer has done with."""
    api = remote.api
    offsets = api.row(path("rhizome", "streams", vhost, name, "offsets"))
    rows, columns = sorted(offsets.items()), ("consumer", "offset")
    remote.show(offsets, lambda _: print_table(columns, rows, "nothing is remembered"))


@offset_app.command("set")
@with_options
def set_offset(
    remote: Remote,
    name: NameArgument,
    consumer: ConsumerArgument,
    offset: Annotated[int, typer.Argument(help="The last offset that it is to be done with.")],
    vhost: VhostOption = "/",
) -> None:
    """Have a consumer go on after an offset when it comes next."""
    target = path("rhizome", "streams", vhost, name, "offsets", consumer)
    remote.api.put(target, {"offset": offset})
    remote.done(f"consumer '{consumer}' of stream '{name}' goes on with offset {offset + 1}")


@offset_app.command("forget")
@with_options
def forget_offset(
    remote: Remote, name: NameArgument, consumer: ConsumerArgument, vhost: VhostOption = "/"
) -> None:
    """Have a consumer begin anew, where it asks to, when it comes next."""
    target = path("rhizome", "streams", vhost, name, "offsets", consumer)
    remote.api.delete(target)
    remote.done(f"nothing is remembered for consumer '{consumer}' of stream '{name}'")


# ---- times --------------------------------------------------------------------------------------

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "D": 86400}


def time_ms(text: str) -> int:
    """A time, or how long ago it was, in milliseconds since 1970."""
    number, unit = text[:-1], text[-1:]
    if number.isdecimal() and unit in _UNITS_S:
        return int((time.time() - int(number) * _UNITS_S[unit]) * 1000)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise CliError(
            f"time {text}: give it like 2026-05-01T12:00:00Z, or as a time ago like 90s, 10m, 1h"
        ) from None
    if when.tzinfo is None:
        when = when.astimezone()
    return max(0, int(when.timestamp() * 1000))


def time_text(ms: object) -> str:
    if not isinstance(ms, int) or ms == 0:
        return "-"
    when = datetime.fromtimestamp(ms / 1000, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
