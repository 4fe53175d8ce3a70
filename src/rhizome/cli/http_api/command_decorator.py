"""The options that all commands have which use a cluster's HTTP API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from rhizome.cli.http_api.api_client import Api, Endpoint, Row, endpoint
from rhizome.cli.output.printer import Column, print_done, print_json, print_rows
from rhizome.cli.shared_options import (
    HTTP_DEFAULT,
    HttpOption,
    JsonOption,
    PasswordOption,
    UserOption,
)

R = TypeVar("R")


@dataclass
class Remote:
    """The cluster that a command asks, and whether it answers programs. Its fields are options of
    the command."""

    http: HttpOption = HTTP_DEFAULT
    user: UserOption = ""
    password: PasswordOption = field(default="", repr=False)
    as_json: JsonOption = False

    @cached_property
    def where(self) -> Endpoint:
        """The endpoint, read at its first use: a password may be asked for, and errors of the
        command line come first."""
        return endpoint(self.http, self.user, self.password)

    @cached_property
    def api(self) -> Api:
        return Api(self.where)

    def done(self, text: str) -> None:
        """Say what was done."""
        print_done(text, self.as_json)

    def show(self, document: R, print_it: Callable[[R], None]) -> None:
        """Print a document for programs, or as ``print_it`` does for people."""
        if self.as_json:
            print_json(document)
        else:
            print_it(document)

    def print_rows(
        self, found: list[Row], columns: Sequence[Column], empty: str, by: Sequence[str] = ()
    ) -> None:
        """Print objects as they are for programs, else as a table."""
        self.show(found, lambda found: print_rows(found, columns, empty, by))
