"""Where `rhizome bridge --parameters` reads the parameters: a cluster's HTTP API."""

from __future__ import annotations

import asyncio
from typing import Final

from rhizome.bridge.following import Listing, ListingLost, ListingRefused
from rhizome.bridge.parameters import Own, Parameter, own_of
from rhizome.cli.api import Api, NoAnswer, Row, path
from rhizome.cli.errors import CliError
from rhizome.shovels import COMPONENT, needs_cluster

# Shorter than for other commands: the next broker may answer, and a stop waits for it.
TIMEOUT_S: Final = 10.0


class ParameterReader:
    """Reads all parameters that the user may see; beside the event loop, since it waits."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def read(self) -> Listing:
        """Raises ListingLost or ListingRefused."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> Listing:
        try:
            rows = self._api.rows(path("parameters", COMPONENT))
            parameters = [_parameter(row) for row in rows]
            needed = any(needs_cluster(each.value) for each in parameters)
            return Listing(tuple(parameters), self._own() if needed else Own())
        except NoAnswer as error:
            raise ListingLost(str(error)) from None
        except CliError as error:
            raise ListingRefused(str(error)) from None

    def _own(self) -> Own:
        """Nothing is known of a cluster that doesn't tell: what needs it, says so."""
        try:
            document = self._api.row(path("rhizome", "cluster"))
        except NoAnswer:
            raise
        except CliError:
            return Own()
        return own_of(document, self._api.answered.host)


def _parameter(row: Row) -> Parameter:
    return Parameter(str(row.get("vhost", "")), str(row.get("name", "")), row.get("value"))
