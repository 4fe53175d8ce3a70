"""In which order a session tries the brokers that it knows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rhizome.client.connection_uri import Address, parse_uris
from rhizome.client.errors import Redirected
from rhizome.client.session.balancing_policies import (
    Policy,
    RoundRobin,
    at_random,
    in_order,
    policy_of,
)
from rhizome.client.session.failover_addresses import AddressBook, FailoverMap, Search, decode_map


def book(hosts: str = "a:1,b:1,c:1", policy: Policy = in_order) -> AddressBook:
    return AddressBook(parse_uris(f"amqp://me:secret@{hosts}/"), policy)


def labels(addresses: Sequence[Address]) -> list[str]:
    return [address.label for address in addresses]


def told(version: int = 1, **brokers: dict[str, object]) -> FailoverMap:
    entries: dict[str, object] = {
        "brokers": [{"name": name, **fields} for name, fields in brokers.items()],
        "failover": {"A": ["C", "B"], "B": ["C", "A"]},
    }
    return decode_map(version, entries)


def three(**changes: dict[str, object]) -> FailoverMap:
    brokers: dict[str, dict[str, object]] = {
        name: {"addresses": [f"{name.lower()}:1"], **changes.get(name, {})} for name in "ABC"
    }
    return told(**brokers)


def test_heirs_come_before_others() -> None:
    known = book("a:1,b:1,d:1")
    known.learn_map(three())
    lost = parse_uris("amqp://me:secret@a:1/")[0]
    assert labels(known.after(lost, "A")) == ["c:1", "b:1", "d:1"]
    assert labels(known.next_round()) == ["a:1", "b:1", "d:1", "c:1"]


def test_without_a_map_the_others_come_in_order() -> None:
    lost = parse_uris("amqp://me:secret@b:1/")[0]
    assert labels(book().after(lost, "")) == ["a:1", "c:1"]


def test_brokers_that_are_of_no_use_come_last() -> None:
    known = book()
    known.learn_map(three(C={"away": True}, A={"draining": True}))
    lost = parse_uris("amqp://me:secret@b:1/")[0]
    assert labels(known.after(lost, "B")) == ["a:1", "c:1"]
    assert labels(known.next_round()) == ["b:1", "a:1", "c:1"]
    assert known.is_useless(parse_uris("amqp://c:1/")[0])


def test_what_is_learned_has_the_login_of_what_was_given() -> None:
    known = book("a:1")
    known.learn_hosts("x:7,,y:8")
    assert labels(known.first_round()) == ["a:1", "x:7", "y:8"]
    assert {address.user for address in known.first_round()} == {"me"}


def test_an_older_map_is_not_believed() -> None:
    known = book()
    assert known.learn_map(told(5, A={"addresses": ["a:1"]}))
    assert not known.learn_map(told(4, A={"addresses": ["z:1"]}))
    assert known.map.version == 5
    assert known.learn_map(told(1, Other={"addresses": ["o:1"]})), "that is another cluster"


def test_a_map_may_have_what_nobody_understands() -> None:
    entries: dict[str, object] = {
        "brokers": [7, {"name": 3}, {"name": "A", "addresses": "none", "new": 1}],
        "failover": [1],
        "more": {},
    }
    decoded = decode_map(1, entries)
    assert list(decoded.brokers) == ["A"]
    assert decoded.brokers["A"].addresses == ()
    assert decoded.failover == {}


def test_policies_order_what_the_map_does_not() -> None:
    known = book(policy=lambda addresses: list(reversed(addresses)))
    known.learn_map(three())
    lost = parse_uris("amqp://me:secret@a:1/")[0]
    assert labels(known.first_round()) == ["c:1", "b:1", "a:1"]
    assert labels(known.after(lost, "A")) == ["c:1", "b:1"]
    assert labels(known.after(lost, "unknown")) == ["c:1", "b:1"]


def test_round_robin_begins_with_the_next() -> None:
    known = book(policy=RoundRobin())
    assert [labels(known.first_round())[0] for _ in range(4)] == ["a:1", "b:1", "c:1", "a:1"]


def test_random_has_all_of_them() -> None:
    addresses = parse_uris("amqp://a,b,c/")
    assert sorted(labels(at_random(addresses))) == sorted(labels(addresses))


def test_policies_have_names() -> None:
    assert policy_of("in-order") is in_order
    assert policy_of("random") is at_random
    assert policy_of(in_order) is in_order
    with pytest.raises(ValueError, match="in-order, random, round-robin"):
        policy_of("fastest")


def test_a_search_follows_redirects_a_few_times_and_goes_on_behind_them() -> None:
    search = Search(parse_uris("amqp://a,b/"))
    tried: list[tuple[str, bool]] = []
    for address in search:
        tried.append((address.host, bool(search.properties)))
        sent_on = address.host != "b"
        search.failed(address, Redirected(f"{address.host}x", "") if sent_on else OSError("no"))
    assert tried == [("a", False), ("ax", True), ("axx", True), ("axxx", True), ("b", True)]
    assert [label for label, _ in search.failure().attempts] == [
        f"{host}:5672" for host, _ in tried
    ]
