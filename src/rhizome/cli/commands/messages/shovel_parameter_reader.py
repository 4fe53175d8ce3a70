"""Where `rhizome bridge --parameters` reads the parameters: a cluster's HTTP API."""

from __future__ import annotations

import asyncio
from typing import Final

from rhizome.bridge.shovel_settings import OwnCluster, Parameter, own_cluster_of
from rhizome.bridge.shovel_supervisor import (
    ParameterListing,
    ParametersRefused,
    ParametersUnavailable,
)
from rhizome.cli.errors import CliError
from rhizome.cli.http_api.api_client import Api, NoAnswer, Row, path
from rhizome.shovel_parameters import COMPONENT, needs_cluster

# Shorter than for other commands: the next broker may answer, and a stop waits for it.
TIMEOUT_S: Final = 10.0


class ParameterReader:
    """Reads all parameters that the user may see, in a thread, since it waits."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def read(self) -> ParameterListing:
        """Raises ParametersUnavailable or ParametersRefused."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> ParameterListing:
        try:
            rows = self._api.rows(path("parameters", COMPONENT))
            parameters = [_parameter(row) for row in rows]
            needed = any(needs_cluster(each.value) for each in parameters)
            return ParameterListing(tuple(parameters), self._own() if needed else OwnCluster())
        except NoAnswer as error:
            raise ParametersUnavailable(str(error)) from None
        except CliError as error:
            raise ParametersRefused(str(error)) from None

    def _own(self) -> OwnCluster:
        """What the cluster tells of itself; empty if it doesn't, and code that needs it says so."""
        try:
            document = self._api.row(path("rhizome", "cluster"))
        except NoAnswer:
            raise
        except CliError:
            return OwnCluster()
        return own_cluster_of(document, self._api.answered.host)


def _parameter(row: Row) -> Parameter:
    return Parameter(str(row.get("vhost", "")), str(row.get("name", "")), row.get("value"))
