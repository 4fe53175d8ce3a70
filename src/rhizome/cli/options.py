"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer


def checked_uri(uri: str) -> str:
    """A URI that can be read: else nothing is begun. Imports the client late, as commands do."""
    from rhizome.client.address import parse_uris

    if uri:
        parse_uris(uri)
    return uri


HttpOption = Annotated[
    str,
    typer.Option(
        "--http",
        envvar="RHIZOME_HTTP",
        metavar="HOST:PORT,...",
        help="HTTP API of a broker, or of several of one cluster, tried in order;"
        " http://user:password@host:port works too.",
    ),
]
UserOption = Annotated[
    str, typer.Option("--user", "-u", help="User for the HTTP API.", show_default="guest")
]
PasswordOption = Annotated[
    str, typer.Option("--password", "-p", help="Password of that user.", show_default="guest")
]
UserArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]
VhostOption = Annotated[str, typer.Option("--vhost", "-V", help="Virtual host.")]
AnyVhostOption = Annotated[
    str, typer.Option("--vhost", "-V", help="Only this virtual host.", show_default="all")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
UriOption = Annotated[
    str,
    typer.Option(
        "--uri",
        envvar="RHIZOME_URI",
        metavar="URI",
        help="Broker to connect to; host:port,host:port lists several, tried in order.",
        callback=checked_uri,
    ),
]

HTTP_DEFAULT = "127.0.0.1:15672"
URI_DEFAULT = "amqp://guest:guest@127.0.0.1:5672/"
