"""`rhizome journal`: read a store offline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from rhizome.amqp.field_reader import FieldReader
from rhizome.amqp.frames import body_of
from rhizome.broker.metadata.metadata_commands import decode
from rhizome.broker.metadata.metadata_state import State
from rhizome.cli.errors import CliError
from rhizome.cli.output.printer import (
    bytes_text,
    print_fields,
    print_json,
    print_json_line,
    print_table,
    say,
)
from rhizome.cli.shared_options import JsonOption
from rhizome.errors import AmqpError, RhizomeError
from rhizome.journal.recovery import recover
from rhizome.journal.salvaged_messages import ABOUT, about_of
from rhizome.journal.store_inspection import Row, StoreReport, inspect, open_offline, records

app = typer.Typer(no_args_is_help=True, help="Read a store offline.")

BODY_SHOWN_BYTES_MAX: Final = 64

QueueNames = dict[int, tuple[str, str]]


@app.callback()
def _family() -> None:
    """Read a store offline."""


@app.command("inspect")
def inspect_store(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the store.")],
    show_records: Annotated[
        bool, typer.Option("--records", help="Print every record, one per line.")
    ] = False,
    queue: Annotated[
        str, typer.Option("--queue", help="Only records of this queue: its name or number.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Show what a store holds: segments, records, live messages, damage.

    Nothing is written and nothing is locked; a running broker's store may be read as well. The
    exit code is 1 if the store is damaged.
    """
    if not directory.is_dir():
        raise CliError(f"{directory} is no directory; give the one that `serve --data` had")
    names = queue_names(directory)
    if show_records or queue:
        if _print_records(directory, names, queue, as_json):
            raise typer.Exit(1)
        return
    report = inspect(directory)
    if as_json:
        print_json(report_document(report, names))
    else:
        _print_report(report, names)
    if report.is_damaged():
        raise typer.Exit(1)


def queue_names(directory: Path) -> QueueNames:
    """Vhost and name of every durable queue, by the number that records use.

    Best effort: a store whose definitions can't be read is inspected by numbers. What was saved
    aside (`rhizome salvage`) says itself what its queues were called.
    """
    saved = directory / ABOUT
    if saved.is_file():
        about = about_of(directory.name, saved.read_bytes())
        return {each.id: (each.vhost, each.name) for each in about.queues if each.name}
    files, identity = open_offline(directory)
    try:
        recovered = recover(files, identity.uuid, accept_corruption=True, repair=False)
        state = State.restore(recovered.snapshot) if recovered.snapshot else State()
        for _, command in recovered.commands:
            state.apply(decode(command))
    except RhizomeError:
        return {}
    return {
        definition.id: (vhost.name, definition.name)
        for vhost in state.vhosts.values()
        for definition in vhost.queues.values()
    }


# --- the report


def report_document(report: StoreReport, names: QueueNames) -> dict[str, object]:
    """The report as JSON."""
    return {
        "store": report.identity.uuid.hex(),
        "cluster": report.identity.cluster_uuid.hex() or None,
        "clean": report.clean,
        "torn_bytes": report.torn_bytes,
        "corruptions": [
            {"segment": each.segment, "offset": each.offset, "reason": each.reason}
            for each in report.corruptions
        ],
        "checkpoints": report.checkpoints,
        "segments": [
            {
                "segment": each.segment,
                "bytes_used": each.bytes_used,
                "bytes_file": each.bytes_file,
                "fault": each.fault or None,
                "records": dict(each.kinds),
            }
            for each in report.segments
        ],
        "queues": [
            {
                "id": queue_id,
                "vhost": names.get(queue_id, (None, None))[0],
                "name": names.get(queue_id, (None, None))[1],
                "messages": count,
                "content_bytes": size,
            }
            for queue_id, (count, size) in sorted(report.live.items())
        ],
    }


def _print_report(report: StoreReport, names: QueueNames) -> None:
    print_fields(
        [
            ("store", report.identity.uuid.hex()),
            ("cluster", report.identity.cluster_uuid.hex() or None),
            ("closed cleanly", report.clean),
            ("torn tail", f"{report.torn_bytes} bytes"),
            ("checkpoints", len(report.checkpoints)),
        ]
    )
    say()
    say("segments")
    rows = [
        [
            each.segment,
            bytes_text(each.bytes_used),
            bytes_text(each.bytes_file),
            _kinds(each.kinds),
            each.fault,
        ]
        for each in report.segments
    ]
    print_table(("number", "used", "file", "records", "fault"), rows, "none")
    say()
    say("live messages")
    live = [
        [queue_id, *names.get(queue_id, ("?", "?")), count, bytes_text(size)]
        for queue_id, (count, size) in sorted(report.live.items())
    ]
    print_table(("id", "vhost", "queue", "messages", "bytes"), live, "none")
    for corruption in report.corruptions:
        say()
        say(f"damaged: {corruption}")


def _kinds(kinds: dict[str, int]) -> str:
    return " ".join(f"{kind}={count}" for kind, count in sorted(kinds.items()))


# --- records


def _print_records(directory: Path, names: QueueNames, queue: str, as_json: bool) -> bool:
    """Whether there is damage among them."""
    damaged = False
    files, _ = open_offline(directory)
    wanted = _queue_ids(names, queue) if queue else [None]
    for row in _merged(records(files, queue_id=each) for each in wanted):
        document = record_document(row, names)
        damaged = damaged or row["kind"] == "damage"
        if as_json:
            print_json_line(document)
        else:
            fields = (f"{key}={value}" for key, value in document.items() if key != "kind")
            say(" ".join((f"{document['kind']:<10}", *fields)))
    return damaged


def _merged(sources: Iterator[Iterator[Row]]) -> Iterator[Row]:
    for source in sources:
        yield from source


def _queue_ids(names: QueueNames, queue: str) -> list[int | None]:
    """The numbers of the queues of that name, one per vhost; or the number itself."""
    found: list[int | None] = [number for number, (_, name) in names.items() if name == queue]
    if not found and queue.isascii() and queue.isdigit():
        found = [int(queue)]
    if not found:
        raise CliError(f"the store has no durable queue '{queue}'; see `journal inspect` for all")
    return found


def record_document(row: Row, names: QueueNames) -> dict[str, object]:
    """One record as JSON: bytes readable, queues by name where it is known."""
    document = {key: value for key, value in row.items() if not isinstance(value, bytes)}
    queues = row.get("queues")
    if isinstance(queues, list):
        document["queues"] = [names[each][1] if each in names else each for each in queues]
    for key, value in row.items():
        if isinstance(value, bytes):
            document.update(_readable(key, value))
    return document


def _readable(key: str, value: bytes) -> dict[str, object]:
    if key == "route":
        return _route(value)
    if key == "content":
        return {"body": _body(value)}
    if key == "command":
        try:
            return {"command": str(decode(value))}
        except RhizomeError as error:
            return {"command": f"unreadable: {error}"}
    return {key: value.decode("utf-8", "backslashreplace")}


def _route(tail: bytes) -> dict[str, object]:
    """A record's route is two short strings: exchange and routing key."""
    try:
        reader = FieldReader(tail, 0)
        return {"exchange": reader.shortstr(), "routing_key": reader.shortstr()}
    except AmqpError:
        return {"route": tail.hex()}


def _body(content: bytes) -> str:
    """The beginning of the body, as text."""
    try:
        body = body_of(content)
    except AmqpError:
        return "unreadable"
    shown = body[:BODY_SHOWN_BYTES_MAX].decode("utf-8", "backslashreplace")
    return shown + ("..." if len(body) > BODY_SHOWN_BYTES_MAX else "")
