"""Caller visibility: what a caller is told of sums over all vhosts.

A caller that monitors sees everything. Others see what is in the vhosts that they may enter, and
their own connections, as in the lists. Numbers that count all vhosts together and can't be split
are None for them: homes don't count by vhost, nor do links and the store.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from rhizome.broker.connection.connection import Connection
from rhizome.broker.metadata.vhost import VHost
from rhizome.management.cluster_view import ClusterDocument, CopyInfo, GroupInfo
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import MONITORING
from rhizome.management.http.json_responses import Row
from rhizome.management.metrics.message_rates import Share

GROUP_COUNTS: Final = ("queues", "messages", "index")
STANDBY_COUNTS: Final = ("lag", "records_bytes", "listing_bytes", "backfill_bytes")
LINK_COUNTS: Final = ("backlog_bytes", "sent_bytes", "received_bytes")
STORE_COUNTS: Final = (
    "segments",
    "journal_bytes",
    "spill_bytes",
    "backlog_bytes",
    "written_bytes",
    "syncs",
)


@dataclass(frozen=True, slots=True)
class VisibleObjects:
    """What exists at this broker, as far as the caller may see it: queues, connections, vhosts."""

    share: Share
    connections: list[Connection]
    vhosts: list[VHost]

    def objects(self) -> dict[str, int]:
        """The counts that all summaries have."""
        return {
            "connections": len(self.connections),
            "channels": sum(len(each.channels) for each in self.connections),
            "consumers": self.share.totals.consumers,
            "queues": self.share.totals.queues,
        }

    def depths(self) -> dict[str, int]:
        """The numbers of messages, under RabbitMQ's names."""
        totals = self.share.totals
        return {
            "messages": totals.ready + totals.unacked,
            "messages_ready": totals.ready,
            "messages_unacknowledged": totals.unacked,
        }


async def seen_by(call: Call) -> VisibleObjects:
    rates, caller = call.context.rates, call.caller
    vhosts = call.monitored_vhosts()
    if caller.may(MONITORING):
        share = await rates.everything()
    else:
        share = await rates.share({vhost.name for vhost in vhosts})
    running = call.context.broker.running_connections()
    return VisibleObjects(
        share, [each for each in running if caller.sees(each.identity.user)], vhosts
    )


def told(call: Call, row: dict[str, Any], *counts: str) -> dict[str, Any]:
    """A row; ``counts`` are its numbers over all vhosts."""
    return row if call.caller.may(MONITORING) else {**row, **dict.fromkeys(counts)}


def cluster_row(call: Call, document: ClusterDocument) -> dict[str, Any]:
    row = asdict(document)
    row["brokers"] = [told(call, each, "connections") for each in row["brokers"]]
    row["groups"] = [_group_told(call, each) for each in row["groups"]]
    return row


def group_row(call: Call, group: GroupInfo) -> Row:
    return _group_told(call, asdict(group))


def _group_told(call: Call, row: dict[str, Any]) -> dict[str, Any]:
    row["in_sync"] = [told(call, each, "lag") for each in row["in_sync"]]
    return told(call, row, *GROUP_COUNTS)


def copy_row(call: Call, copy: CopyInfo) -> Row:
    row = asdict(copy)
    row["standbys"] = [told(call, each, *STANDBY_COUNTS) for each in row["standbys"]]
    return told(call, row, "index")


def link_rows(call: Call) -> list[Row]:
    return [told(call, each, *LINK_COUNTS) for each in call.context.others.links()]
