"""Death report: which brokers of a configuration have ended for certain, and who was told (R15)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TypedDict

from rhizome.cli.errors import CliError
from rhizome.errors import RhizomeError
from rhizome.journal.errors import StoreInUse
from rhizome.server.clustered_broker.death_messenger import Messenger, witness
from rhizome.server.clustered_broker.incarnation_file import ended_incarnation
from rhizome.server.config.broker_config import Config, check_files, load_config
from rhizome.server.config.config_fields import ConfigError
from rhizome.server.multi_core.core_configs import store_directories


class DeathReport(TypedDict):
    """One incarnation that has ended, and what became of its certificate at each address: "" if it
    was taken."""

    broker: str
    incarnation: str
    told: dict[str, str]


def reported_deaths(path: Path | None) -> list[DeathReport]:
    """Report every incarnation that has ended on the stores of a configuration. Raises CliError if
    nobody could be told."""
    try:
        config = load_config(path, {})
        check_files(config, str(path or ""))
    except ConfigError as error:
        raise CliError("; ".join(str(each) for each in error.problems)) from None
    if config.broker.memory or not (config.cluster.is_clustered or config.cluster.discover):
        return []
    try:
        return asyncio.run(_reported(config))
    except (RhizomeError, OSError) as error:
        raise CliError(str(error)) from None


async def _reported(config: Config) -> list[DeathReport]:
    seen_by = witness("`rhizome broker report-death`")
    found = []
    for directory in store_directories(config):
        try:
            certificate = ended_incarnation(directory, seen_by)
        except StoreInUse:
            continue
        if certificate is not None:
            found.append(certificate)
    if not found:
        return []
    if config.cluster.discover:
        from rhizome.server.discovery.primary_discovery import discover_primaries

        config = await discover_primaries(config)
    messenger = Messenger(config)
    return [
        DeathReport(
            broker=each.name, incarnation=each.incarnation, told=await messenger.bring(each)
        )
        for each in found
    ]
