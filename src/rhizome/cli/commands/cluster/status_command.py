"""`rhizome status`: how a broker is, and its cluster."""

from __future__ import annotations

import typer

from rhizome.cli.http_api.api_client import Row, path
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.output.cluster_tables import print_cluster
from rhizome.cli.output.printer import bytes_text, print_fields, print_json, say
from rhizome.cli.shared_options import with_options

app = typer.Typer()


@app.command()
@with_options
def status(remote: Remote) -> None:
    """Show how a broker is (alarms, load, store), and the cluster as it sees it."""
    document = remote.api.row(path("rhizome", "status"))
    if remote.as_json:
        print_json(document)
        return
    broker = document.pop("broker", None)
    print_cluster(document)
    if isinstance(broker, dict):
        say()
        print_fields(flatten({"broker": broker.pop("name", None), **broker}))


def flatten(document: Row, prefix: str = "") -> list[tuple[str, object]]:
    """Nested objects as dotted names; numbers of bytes in readable units."""
    fields: list[tuple[str, object]] = []
    for key, value in document.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            fields += flatten(value, f"{name}.")
        elif key.endswith("_bytes") and isinstance(value, int):
            fields.append((name, f"{value} ({bytes_text(value)})"))
        else:
            fields.append((name, value))
    return fields
