"""Settings of the cluster cores, from the [cluster] section: their times, and the hash of the
primaries."""

from __future__ import annotations

import hashlib
from typing import Final

from rhizome.cluster.consensus.settings import ConsensusSettings
from rhizome.cluster.home.settings import HomeSettings
from rhizome.cluster.link.peers import LinkSettings
from rhizome.cluster.state.cluster_commands import PutSettings
from rhizome.cluster.takeover.settings import RootSettings
from rhizome.server.config.cluster_section import MACS_OF_NETWORK, ClusterSection, host_id

FRAME_BYTES_MORE: Final = 1 << 20
MESSAGE_BYTES_FORMER: Final = 128 << 20
"""The largest message of earlier releases by default. Links take it whatever new messages may have:
stores have such messages, and copies of them are made."""
"""Room in a link's frame besides the largest message body."""

LINK_HEARTBEATS: Final = 5
"""How many heartbeats fit in the time after which a silent link counts as broken."""


def consensus_settings(section: ClusterSection) -> ConsensusSettings:
    return ConsensusSettings(
        heartbeat_ms=section.heartbeat_ms,
        root_lease_ms=section.root_lease_ms,
        election_patience_ms=section.election_patience_ms,
        startup_patience_ms=section.startup_patience_ms,
        home_lease_ms=section.home_lease_ms,
        max_drift=section.max_drift,
        rest_ms=section.last_man_standing_ms,
    )


def shared_settings(section: ClusterSection) -> PutSettings:
    """What the first root of a new cluster proposes."""
    return PutSettings(
        section.placement,
        section.copies,
        section.failover_policy,
        section.state_size_max_bytes,
        section.min_copies,
    )


def home_settings(section: ClusterSection) -> HomeSettings:
    return HomeSettings(
        sync_timeout_ms=section.sync_timeout_ms,
        attach_patience_ms=consensus_settings(section).honoured_ms(section.home_lease_ms),
        transfer_patience_ms=section.transfer_patience_ms,
        resume_patience_ms=section.resume_patience_ms,
        catch_up_bytes=section.catch_up_rate,
    )


def root_settings(section: ClusterSection) -> RootSettings:
    return RootSettings(
        section.whole_patience_ms,
        section.replace_patience_ms,
        section.rebalance,
        section.unlinked_patience_ms,
        section.full_disk_patience_ms,
    )


def link_settings(section: ClusterSection, message_bytes_max: int) -> LinkSettings:
    return LinkSettings(
        heartbeat_ms=section.link_timeout_ms // LINK_HEARTBEATS,
        timeout_ms=section.link_timeout_ms,
        dial_timeout_ms=section.link_timeout_ms,
        delay_ms=section.reconnect_delay_ms,
        delay_max_ms=section.reconnect_delay_max_ms,
        stable_ms=section.link_timeout_ms,
        buffer_bytes=section.link_buffer_bytes,
        frame_bytes_max=max(message_bytes_max, MESSAGE_BYTES_FORMER) + FRAME_BYTES_MORE,
        needs_certificate=section.tls,
        has_macs=True,
        host=host_id() if section.link_macs == MACS_OF_NETWORK else "",
        insecure=section.insecure_links,
        trusts_loopback=section.link_macs == MACS_OF_NETWORK,
    )


def primaries_hash(section: ClusterSection) -> str:
    """A hash that is the same for all brokers that name the same primaries (R7).

    It covers the names only, in any order: one broker may be dialled at different addresses from
    different places.
    """
    names = "\n".join(sorted(section.primary_names))
    return hashlib.sha256(names.encode()).hexdigest()
