"""`rhizome status`: how a broker is."""

from __future__ import annotations

import typer

from rhizome.cli.api import Api, endpoint, path
from rhizome.cli.options import HTTP_DEFAULT, HttpOption, JsonOption, PasswordOption, UserOption
from rhizome.cli.output import bytes_text, print_fields, print_json, print_table

app = typer.Typer()


@app.command()
def status(
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show how a broker is: its state, alarms, load and store."""
    document = Api(endpoint(http, user, password)).row(path("rhizome", "status"))
    if as_json:
        print_json(document)
        return
    tables = {name: rows for name, value in document.items() if (rows := as_rows(value))}
    print_fields(flatten({key: each for key, each in document.items() if key not in tables}))
    for name, rows in tables.items():
        headings = list(rows[0])
        print(f"\n{name}")
        print_table(headings, [[row.get(key) for key in headings] for row in rows], "none")


def as_rows(value: object) -> list[dict[str, object]]:
    """The value if it is a list of objects, which is shown as a table; else an empty list."""
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        return value
    return []


def flatten(document: dict[str, object], prefix: str = "") -> list[tuple[str, object]]:
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
