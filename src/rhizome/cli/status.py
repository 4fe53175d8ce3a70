"""`rhizome status`: how a broker is, and its cluster."""

from __future__ import annotations

import typer

from rhizome.cli.api import Api, Row, endpoint, path
from rhizome.cli.clustertext import print_cluster
from rhizome.cli.options import HTTP_DEFAULT, HttpOption, JsonOption, PasswordOption, UserOption
from rhizome.cli.output import bytes_text, print_fields, print_json, say

app = typer.Typer()


@app.command()
def status(
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show how a broker is (alarms, load, store), and the cluster as it sees it."""
    document = Api(endpoint(http, user, password)).row(path("rhizome", "status"))
    if as_json:
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
