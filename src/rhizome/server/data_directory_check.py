"""Whether a data directory belongs to a standalone broker or to a broker of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rhizome.journal.errors import ForeignStore
from rhizome.journal.recovery import Recovered
from rhizome.server.config.broker_config import Config

STORE_DIRECTORY: Final = "cluster"
"""The part of a data directory that only a broker of a cluster has."""


def check_data_directory(config: Config, recovered: Recovered) -> None:
    """Refuse a standalone broker's store for a cluster, and the other way round: neither would find
    its queues there, and messages of no queue are dropped."""
    if config.broker.memory:
        return
    data = Path(config.broker.data)
    has_cluster = (data / STORE_DIRECTORY).exists()
    if has_cluster and not config.cluster.is_clustered:
        raise ForeignStore(
            f"{data} is the store of a broker of a cluster, or of one with several cores: start it"
            " as that (cluster.primaries, --cores), or choose another data directory"
        )
    is_lone = not has_cluster and bool(recovered.commands or recovered.snapshot)
    if is_lone and config.cluster.is_clustered:
        raise ForeignStore(
            f"{data} is the store of a lone broker: choose another data directory for the cluster,"
            " and bring its messages over with `rhizome bridge`"
        )
