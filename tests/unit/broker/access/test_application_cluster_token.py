"""What applications show of the cluster that they belong to, and who gets to see it."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import ConnectionClose, ConnectionOpenOk
from rhizome.broker.access.application_cluster_token import (
    HIDDEN,
    ApplicationTokens,
    application_token,
    take_shown,
)
from rhizome.broker.connection.connection import Connection
from rhizome.broker.observer import Observer
from rhizome.cluster.link.cluster_key_proof import LinkKey
from rhizome.journal.files import MemoryFiles
from rhizome.server.config.broker_config import Config
from rhizome.server.config.cluster_section import ClusterSection
from rhizome.testing.in_memory_broker import Core, make_core

OLD, NEW = b"the old key of the cluster", b"the new key of the cluster"


class Disclosures(Observer):
    """Remembers who has sent the cluster key."""

    def __init__(self) -> None:
        super().__init__()
        self.connections: list[Connection] = []

    def key_disclosed(self, connection: Connection) -> None:
        self.connections.append(connection)


def demanding(*keys: bytes, is_demanded: bool = True) -> tuple[Core, Disclosures]:
    core = make_core()
    core.broker.cluster.demand(ApplicationTokens(is_demanded, keys))
    seen = Disclosures()
    core.broker.observer = seen
    return core, seen


def answer(core: Core, **properties: object) -> object:
    return core.connect(properties=properties, opens=False).events[0].pop(0)


def test_a_token_is_no_key_and_leads_to_none() -> None:
    token = application_token(OLD)
    assert token != application_token(NEW)
    assert len(token) == 43
    assert LinkKey(token.encode()).fingerprint != LinkKey(OLD).fingerprint
    assert LinkKey(token.encode())._key != LinkKey(OLD)._key


def test_tokens_of_all_keys_count_while_the_key_is_rotated() -> None:
    core, _ = demanding(NEW, OLD)
    for key in (OLD, NEW):
        assert isinstance(answer(core, cluster_token=application_token(key)), ConnectionOpenOk)
    core.broker.cluster.demand(ApplicationTokens(True, (NEW,)))
    refused = answer(core, cluster_token=application_token(OLD))
    assert isinstance(refused, ConnectionClose)
    assert refused.reply_code == 530


@pytest.mark.parametrize("name", ["cluster_key", "cluster_token"])
def test_the_key_itself_is_refused_with_what_to_do(name: str) -> None:
    core, seen = demanding(OLD)
    refused = answer(core, **{name: OLD.decode()})
    assert isinstance(refused, ConnectionClose)
    assert refused.reply_code == 530
    assert "rhizome cluster app-token" in refused.reply_text
    assert OLD.decode() not in refused.reply_text
    assert len(seen.connections) == 1


def test_an_application_may_show_both_while_brokers_of_0_1_are_in_the_cluster() -> None:
    core, seen = demanding(OLD)
    both = answer(core, cluster_key=OLD.decode(), cluster_token=application_token(OLD))
    assert isinstance(both, ConnectionOpenOk)
    assert len(seen.connections) == 1


def test_the_key_is_reported_where_nobody_demands_anything() -> None:
    core, seen = demanding(OLD, is_demanded=False)
    assert isinstance(answer(core, cluster_key=OLD.decode()), ConnectionOpenOk)
    assert isinstance(answer(core, cluster_key="something else"), ConnectionOpenOk)
    assert len(seen.connections) == 1


@pytest.mark.parametrize("is_demanded", [True, False])
def test_nobody_is_shown_what_an_application_has_shown(is_demanded: bool) -> None:
    core, _ = demanding(OLD, is_demanded=is_demanded)
    properties: dict[str, object] = {
        "cluster_token": application_token(OLD),
        "cluster_key": "mistaken",
        "product": "app",
    }
    client = core.connect(properties=properties)
    shown = client.connection.client_properties
    assert shown["cluster_token"] == shown["cluster_key"] == HIDDEN
    assert shown["product"] == "app"


def test_a_lone_broker_demands_a_token_too() -> None:
    section = ClusterSection(key=OLD.decode(), demand_key=True)
    core = Core(MemoryFiles(), Config(users={}, cluster=section))
    assert isinstance(answer(core), ConnectionClose)
    assert isinstance(answer(core, cluster_token=application_token(OLD)), ConnectionOpenOk)


@pytest.mark.parametrize("value", [b"\xff\xfe", "\udcff", 7, True, {"a": 1}, [b"x"], ""])
def test_whatever_is_shown_is_compared_and_nothing_else_happens(value: object) -> None:
    core, _ = demanding(OLD)
    assert isinstance(answer(core, cluster_token=value), ConnectionClose)
    properties: dict[str, object] = {"cluster_token": value}
    shown = take_shown(properties)
    assert isinstance(shown.token, bytes)
    assert properties["cluster_token"] == HIDDEN
