"""Group info: what operators are shown of groups, from the cluster state and reports of homes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rhizome.cluster.state.cluster_state import ClusterState
from rhizome.cluster.state.groups_and_placement import STREAMS_FROM, Group, unavailable
from rhizome.management.cluster_view import GroupInfo, MemberInfo

News = Mapping[str, Mapping[str, object]]
"""The latest report of each broker (``cluster/gossip.py``)."""


@dataclass(frozen=True, slots=True)
class Duties:
    """A broker's roles in groups: how many homes, how many of these can't move, and how many in
    sync."""

    homes: int = 0
    stuck: int = 0
    copies: int = 0


def duties_of(state: ClusterState) -> dict[str, Duties]:
    found: dict[str, Duties] = {}
    for group in state.groups.groups.values():
        home = found.get(group.home, Duties())
        stuck = home.stuck + group.local
        found[group.home] = Duties(home.homes + 1, stuck, home.copies)
        for member in group.in_sync:
            known = found.get(member.broker, Duties())
            found[member.broker] = Duties(known.homes, known.stuck, known.copies + 1)
    return found


def group_infos(state: ClusterState, news: News) -> tuple[GroupInfo, ...]:
    """``news``: reports of the brokers that can be reached; the home of a group should be among
    them."""
    return tuple(_group(state, news, group) for group in state.groups.groups.values())


def _group(state: ClusterState, news: News, group: Group) -> GroupInfo:
    told = news.get(group.home)
    reason = unavailable(group, state.registry)
    if not reason and told is None:
        reason = f"its home {group.home} can't be reached from here"
    messages = _told(told, "messages", group.id)
    return GroupInfo(
        group.id,
        None if reason else group.home,
        group.epoch,
        group.failover,
        tuple(
            MemberInfo(each.broker, each.incarnation, each.copy, _lag(told, group.id, each.broker))
            for each in group.in_sync
        ),
        state.groups.copy_requirements.count(group.id),
        messages if isinstance(messages, int) else 0,
        group.copies,
        group.min_copies,
        group.local,
        group.origin,
        group.incarnation,
        group.version,
        group.parent,
        group.moving_to,
        reason,
        _number(_told(told, "records", group.id)),
        group.id >= STREAMS_FROM,
        group.pinned,
    )


def _told(told: Mapping[str, object] | None, what: str, group: int) -> object:
    """What a home reports of one of its groups."""
    by_group = None if told is None else told.get(what)
    return by_group.get(str(group)) if isinstance(by_group, dict) else None


def _lag(told: Mapping[str, object] | None, group: int, standby: str) -> int | None:
    lags = _told(told, "lags", group)
    return _number(lags.get(standby)) if isinstance(lags, dict) else None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None
