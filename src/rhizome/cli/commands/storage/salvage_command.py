"""`rhizome salvage`: messages that a copy had to give up because a home was forced (G8)."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from rhizome.amqp.frames import body_of, header_payload_of
from rhizome.amqp.properties import decode_properties
from rhizome.cli import coroutine_runner
from rhizome.cli.errors import CliError
from rhizome.cli.http_api.change_confirmation import YesOption, confirmed
from rhizome.cli.output.printer import print_done, print_json, print_table, say
from rhizome.cli.shared_options import URI_DEFAULT, JsonOption, UriOption
from rhizome.client import open_session
from rhizome.client.connection_uri import with_vhost
from rhizome.errors import NotFound
from rhizome.journal.files import DiskFiles
from rhizome.journal.salvaged_messages import Salvage, SalvageManifest, SavedQueue
from rhizome.journal.store_identity import load_identity
from rhizome.journal.store_inspection import records

app = typer.Typer(no_args_is_help=True, help="Messages that a forced home doesn't have.")

COLUMNS: Final = ("name", "group", "saved", "queue", "vhost", "messages")

DirectoryArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Data directory of the broker; it may run.")
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="As `salvage list` names it.")]


@app.callback()
def _family() -> None:
    """Messages that a forced home doesn't have."""


@app.command("list")
def list_saved(directory: DirectoryArgument, as_json: JsonOption = False) -> None:
    """Show what was saved in a broker's data directory.

    Messages are saved by a broker whose copy of a group has more than the home that a person has
    forced. `rhizome journal inspect DIR/salvage/NAME --records` shows them one by one.
    """
    entries = _salvage(directory).entries()
    if as_json:
        print_json([document_of(each) for each in entries])
        return
    rows = [
        [about.name, about.group, _time_text(about.saved_ms), *_queue_cells(queue)]
        for about in entries
        for queue in about.queues
    ]
    print_table(COLUMNS, rows, "nothing was saved here")


def document_of(about: SalvageManifest) -> dict[str, object]:
    """What was saved, as JSON."""
    return {**asdict(about), "messages": about.messages}


def _time_text(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")


def _queue_cells(queue: SavedQueue) -> list[object]:
    return [queue.name or f"(deleted, {queue.id})", queue.vhost, queue.messages]


@app.command("publish")
def publish_saved(
    directory: DirectoryArgument,
    name: NameArgument,
    uri: UriOption = URI_DEFAULT,
    keep: Annotated[
        bool, typer.Option("--keep", help="Don't delete what was saved when all is published.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Put saved messages into the queues that they were in, and delete what was saved.

    They come behind what is in the queues now. Some may have been consumed before their home was
    lost; look at them first. The command can be repeated if it is interrupted: a queue takes each
    message once.
    """
    salvage = _salvage(directory)
    about = _find(salvage, name)
    producer = f"salvage of {load_identity(DiskFiles(directory, read_only=True)).uuid.hex()}/{name}"
    sent = coroutine_runner.run(_publish(salvage, about, uri, producer))
    if not keep:
        salvage.remove(name)
    if as_json:
        print_json({"published": sent, "kept": keep})
    else:
        say(f"published {sent} message{'' if sent == 1 else 's'}", to_errors=True)


@app.command("delete")
def delete_saved(
    directory: DirectoryArgument,
    name: NameArgument,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete what was saved, for good."""
    salvage = _salvage(directory)
    about = _find(salvage, name)
    lost = f"{about.messages} messages of group {about.group}"
    if as_json and not yes:
        raise CliError(f"{lost} would be deleted; give --yes")
    if not as_json:
        say(f"{lost} are deleted; nobody else has them")
    if not yes and not confirmed():
        raise CliError("nothing was done")
    salvage.remove(name)
    print_done(f"deleted {lost}", as_json)


def _salvage(directory: Path) -> Salvage:
    if not (directory / "store.json").is_file():
        raise CliError(f"{directory} is no broker's store; give what `serve --data` had")
    return Salvage(DiskFiles(directory), b"")


def _find(salvage: Salvage, name: str) -> SalvageManifest:
    entries = salvage.entries()
    for about in entries:
        if about.name == name:
            return about
    known = ", ".join(each.name for each in entries) or "nothing"
    raise CliError(f"nothing was saved under the name '{name}'; there is {known}")


async def _publish(salvage: Salvage, about: SalvageManifest, uri: str, producer: str) -> int:
    """Publish each queue's messages with a producer of its own, so that a second try publishes
    the rest."""
    sent = 0
    for queue in about.queues:
        if not queue.name:
            raise CliError(
                f"queue {queue.id} was deleted before its messages were saved: there is no place"
                f" for them; look at them with `rhizome journal inspect`, then delete them"
            )
        async with open_session(with_vhost(uri, queue.vhost), name="rhizome salvage") as session:
            async with session.channel() as channel:
                try:
                    await channel.declare_queue(queue.name, passive=True)
                except NotFound:
                    raise CliError(
                        f"there is no queue '{queue.name}' in vhost '{queue.vhost}' any more;"
                        " declare it, and try again"
                    ) from None
            named = f"{producer}/{queue.id}"
            async with session.producer(routing_key=queue.name, name=named) as publishing:
                for row in records(
                    salvage.journal(about.name), kinds={"enqueue"}, queue_id=queue.id
                ):
                    content = row["content"]
                    assert isinstance(content, bytes)
                    properties = decode_properties(header_payload_of(content))
                    await publishing.send(body_of(content), properties=properties)
                    sent += 1
    return sent
