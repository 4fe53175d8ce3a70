"""`rhizome stream`: streams, partitioned ones under their one name, and remembered offsets."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from rhizome.cli.api import Api, Row, endpoint, path
from rhizome.cli.errors import CliError
from rhizome.cli.options import (
    HTTP_DEFAULT,
    AnyVhostOption,
    HttpOption,
    JsonOption,
    PasswordOption,
    UserOption,
    VhostOption,
)
from rhizome.cli.output import bytes_text, print_done, print_fields, print_json, print_table, say
from rhizome.cli.pairs import parse_pairs

app = typer.Typer(no_args_is_help=True, help="Look at streams, create and delete them.")
offset_app = typer.Typer(no_args_is_help=True, help="What is remembered for named consumers.")
app.add_typer(offset_app, name="offset")

NameArgument = Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.")]
ConsumerArgument = Annotated[
    str, typer.Argument(metavar="CONSUMER", help="Name of the consumer (x-stream-consumer-name).")
]

COLUMNS: Final = ("name", "vhost", "partitions", "first", "next", "messages", "size", "consumers")
PARTITIONS: Final = ("stream", "first", "next", "messages", "size", "segments", "consumers")
SEGMENTS: Final = ("segment", "first", "next", "size", "from", "to")
CONSUMERS: Final = ("stream", "consumer", "tag", "next", "lag", "unacked", "prefetch")


@app.command("list")
def list_streams(
    vhost: AnyVhostOption = "",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """List streams; a partitioned one is one line."""
    parts = ("rhizome", "streams", vhost) if vhost else ("rhizome", "streams")
    streams = Api(endpoint(http, user, password)).rows(path(*parts))
    if as_json:
        print_json(streams)
        return
    print_table(COLUMNS, [_columns(stream) for stream in streams], "no streams")


def _columns(stream: Row) -> list[object]:
    return [
        stream.get("name"),
        stream.get("vhost"),
        stream.get("partitions"),
        stream.get("first"),
        stream.get("next"),
        stream.get("messages"),
        bytes_text(stream.get("bytes")),
        sum(int(each.get("consumers") or 0) for each in _streams_of(stream)),
    ]


def _streams_of(stream: Row) -> list[Row]:
    """The streams behind a name: its partitions, or itself."""
    found = stream.get("streams")
    return [each for each in found if isinstance(each, dict)] if found is not None else [stream]


@app.command("inspect")
def inspect_stream(
    name: NameArgument,
    at: Annotated[
        str,
        typer.Option("--at", help="Also the offset at this time: ISO 8601, or 90s, 10m, 1h ago."),
    ] = "",
    segments: Annotated[bool, typer.Option("--segments", help="Also each segment.")] = False,
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show where a stream begins and ends, who reads it, and what is remembered for whom."""
    query = {"timestamp": time_ms(at)} if at else None
    api = Api(endpoint(http, user, password))
    stream = api.get(path("rhizome", "streams", vhost, name), query)
    if as_json:
        print_json(stream)
        return
    parts = _streams_of(stream)
    if "streams" in stream:
        say(f"{name}: {len(parts)} partitions, {stream.get('messages')} messages")
        print_table(PARTITIONS, [_partition(part) for part in parts], "no partitions")
    else:
        print_fields(_fields(stream))
    if at:
        for part in parts:
            say(f"at {at}: offset {part.get('offset_at')} of {part.get('name')}")
    _print_readers(parts)
    if segments:
        for part in parts:
            say()
            say(f"segments of {part.get('name')}")
            print_table(SEGMENTS, [_segment(each) for each in _rows(part, "segment_details")], "-")


def _fields(stream: Row) -> list[tuple[str, object]]:
    return [
        ("name", stream.get("name")),
        ("vhost", stream.get("vhost")),
        ("first offset", stream.get("first")),
        ("next offset", stream.get("next")),
        ("messages", stream.get("messages")),
        ("size", bytes_text(stream.get("bytes"))),
        ("segments", stream.get("segments")),
        ("from", time_text(stream.get("first_timestamp"))),
        ("to", time_text(stream.get("last_timestamp"))),
        ("arguments", stream.get("arguments")),
    ]


def _partition(part: Row) -> list[object]:
    keys = ("name", "first", "next", "messages")
    shown = [part.get(key) for key in keys]
    return [*shown, bytes_text(part.get("bytes")), part.get("segments"), part.get("consumers")]


def _segment(segment: Row) -> list[object]:
    return [
        segment.get("segment"),
        segment.get("first"),
        segment.get("next"),
        bytes_text(segment.get("bytes")),
        time_text(segment.get("first_timestamp")),
        time_text(segment.get("last_timestamp")),
    ]


def _print_readers(parts: list[Row]) -> None:
    readers = [
        [
            part.get("name"),
            reader.get("name") or "-",
            reader.get("consumer_tag"),
            reader.get("next"),
            reader.get("lag"),
            reader.get("unacknowledged"),
            reader.get("prefetch_count"),
        ]
        for part in parts
        for reader in _rows(part, "consumer_details")
    ]
    if readers:
        say()
        say("consumers")
        print_table(CONSUMERS, readers, "-")
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
def create_stream(
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
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
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
    Api(endpoint(http, user, password)).put(path("rhizome", "streams", vhost, name), document)
    spread = f" with {partitions} partitions" if partitions else ""
    done = f"created stream '{name}'{spread} in vhost '{vhost}'"
    if partitions:
        last = f"{name}-{partitions - 1}"
        done += f"; publish to exchange '{name}', read from {name}-0 to {last}"
    print_done(done, as_json)


@app.command("delete")
def delete_stream(
    name: NameArgument,
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Delete a stream with all that it holds; of a partitioned one all parts."""
    Api(endpoint(http, user, password)).delete(path("rhizome", "streams", vhost, name))
    print_done(f"deleted stream '{name}' in vhost '{vhost}'", as_json)


# ---- offsets ------------------------------------------------------------------------------------


@offset_app.command("list")
def list_offsets(
    name: NameArgument,
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the offset that each named consumer has done with."""
    api = Api(endpoint(http, user, password))
    offsets = api.row(path("rhizome", "streams", vhost, name, "offsets"))
    if as_json:
        print_json(offsets)
        return
    print_table(("consumer", "offset"), sorted(offsets.items()), "nothing is remembered")


@offset_app.command("set")
def set_offset(
    name: NameArgument,
    consumer: ConsumerArgument,
    offset: Annotated[int, typer.Argument(help="The last offset that it is to be done with.")],
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Have a consumer go on after an offset when it comes next."""
    target = path("rhizome", "streams", vhost, name, "offsets", consumer)
    Api(endpoint(http, user, password)).put(target, {"offset": offset})
    print_done(
        f"consumer '{consumer}' of stream '{name}' goes on with offset {offset + 1}", as_json
    )


@offset_app.command("forget")
def forget_offset(
    name: NameArgument,
    consumer: ConsumerArgument,
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Have a consumer begin anew, where it asks to, when it comes next."""
    target = path("rhizome", "streams", vhost, name, "offsets", consumer)
    Api(endpoint(http, user, password)).delete(target)
    print_done(f"nothing is remembered for consumer '{consumer}' of stream '{name}'", as_json)


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
