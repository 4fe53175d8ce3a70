"""Settings of bridges: what they mean, and how a wrong one is told."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from rhizome.bridge import BridgeSettings, InvalidBridge, Refused, load_bridges
from rhizome.bridge.address_rotation import Addresses
from rhizome.bridge.bridge_events import REFUSED, BridgeEvent, Reporter
from rhizome.bridge.bridge_sides import FIRST_S, Backoff, Side
from rhizome.bridge.errors import needs_a_person
from rhizome.errors import AccessRefused, ConnectionForced, NotFound

URI = "amqp://guest:guest@127.0.0.1/"
ENDS = f'from = "{URI}"\nto = "{URI}"\n'


def settings(**given: Any) -> BridgeSettings:
    return BridgeSettings("id", URI, URI, **given)


@pytest.mark.parametrize(
    ("given", "source", "queue", "exchange"),
    [
        ({"queue": "q"}, "q", "q", ""),
        ({"queue": "q", "to_queue": "r"}, "q", "r", ""),
        ({"queue": "q", "to_exchange": "e"}, "q", "", "e"),
        ({"exchange": "e"}, "bridge.id", "", "e"),
        ({"exchange": "e", "to_exchange": "f"}, "bridge.id", "", "f"),
        ({"exchange": "e", "to_queue": "q"}, "bridge.id", "q", ""),
    ],
)
def test_the_destination_is_called_like_the_source_unless_told(
    given: dict[str, str], source: str, queue: str, exchange: str
) -> None:
    made = settings(**given)
    made.check()
    assert (made.source_queue, made.target_queue, made.target_exchange) == (source, queue, exchange)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "either a queue or an exchange"),
        ({"queue": "q", "exchange": "e"}, "either a queue or an exchange"),
        ({"queue": "q", "keys": ("k",)}, "keys bind to an exchange"),
        ({"queue": "q", "arguments": {"x": 1}}, "the bridge's own queue"),
        ({"queue": "q", "to_queue": "r", "to_exchange": "e"}, "its own destination"),
        ({"queue": "q", "to_key": "k"}, "needs an exchange"),
        ({"queue": "q", "prefetch": 0}, "1 to 65535"),
        ({"queue": "q", "content_ids": True, "dedup": False}, "leave out one"),
        ({"queue": "q", "hops_max": 0}, "1 or more"),
    ],
)
def test_a_contradiction_is_told(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidBridge, match=said):
        settings(**given).check()


def test_a_missing_or_wrong_address_is_told() -> None:
    with pytest.raises(InvalidBridge, match="cluster to bridge to"):
        BridgeSettings("id", URI, "", queue="q").check()
    with pytest.raises(InvalidBridge, match="from: 'http://x' is no AMQP URI"):
        BridgeSettings("id", "http://x", URI, queue="q").check()


def test_passwords_are_not_shown() -> None:
    secret = BridgeSettings("id", "amqp://u:s3cret@h/", "amqp://u:s3cret@h/", queue="q")
    assert "s3cret" not in repr(secret)


# --- files


def test_a_file_has_a_table_per_bridge(tmp_path: Path) -> None:
    file = tmp_path / "bridges.toml"
    file.write_text(
        f'[bridge.orders]\n{ENDS}queue = "orders"\nprefetch = 10\nretry_max = 3\n'
        f'[bridge.events]\n{ENDS}exchange = "e"\nkeys = ["a", "b"]\nrefused = "drop"\n'
        "arguments = { x-max-length = 5 }\nmax_hops = 2\n"
    )
    orders, events = load_bridges(file)
    assert orders == BridgeSettings("orders", URI, URI, "orders", prefetch=10, retry_s_max=3.0)
    assert (events.keys, events.refused, events.hops_max) == (("a", "b"), Refused.DROP, 2)
    assert events.arguments == {"x-max-length": 5}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no bridge in it"),
        ("x = [", "bridges.toml"),
        ("[other]", "unknown table 'other'"),
        ("bridge = 1", "no bridge in it"),
        ("[bridge]\norders = 1", "must be a table"),
        (f"[bridge.a]\n{ENDS}quue = 'q'", "did you mean 'queue'"),
        (f"[bridge.a]\n{ENDS}zzz = 'q'", "known are from, to"),
        (f"[bridge.a]\n{ENDS}queue = 1", "it must be a text"),
        (f"[bridge.a]\n{ENDS}queue = 'q'\nprefetch = true", "a whole number"),
        (f"[bridge.a]\n{ENDS}exchange = 'e'\nkeys = [1]", "a list of texts"),
        (f"[bridge.a]\n{ENDS}queue = 'q'\nrefused = 'no'", "keep, dead-letter or drop"),
        (f"[bridge.a]\n{ENDS}", "bridge 'a': give either"),
        (f"[bridge.a]\n{ENDS}queue = 'q'\ndrain = 'x'", "a number of seconds"),
    ],
)
def test_a_wrong_file_is_told_with_its_name(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "bridges.toml"
    file.write_text(text)
    with pytest.raises(InvalidBridge) as caught:
        load_bridges(file)
    assert said in str(caught.value)
    assert str(file) in str(caught.value)


# --- addresses and pauses


def test_each_broker_has_an_address_and_the_one_that_failed_comes_last() -> None:
    addresses = Addresses("amqp://u:p%40@h1,h2:1,[::1]:2/v?frame_max=4096")
    tail = "/v?frame_max=4096&heartbeat=10"
    hosts = [f"amqp://u:p%40@{host}{tail}" for host in ("h1", "h2:1", "[::1]:2")]
    assert addresses.uris == hosts
    addresses.move_on("h2:1")
    assert addresses.uris == [hosts[2], hosts[0], hosts[1]]
    addresses.move_on("elsewhere:5672")
    assert addresses.uris[0] == hosts[2]


def test_a_heartbeat_that_was_asked_for_stays() -> None:
    assert Addresses("amqp://h/?heartbeat=3").uris == ["amqp://h/?heartbeat=3"]


def test_pauses_grow_to_a_maximum_and_start_anew() -> None:
    backoff = Backoff(5.0, Random(1))
    pauses = [backoff.next_s() for _ in range(20)]
    assert FIRST_S / 2 <= pauses[0] <= FIRST_S
    assert all(2.5 <= pause <= 5.0 for pause in pauses[-10:])
    backoff.reset()
    assert backoff.next_s() <= FIRST_S


# --- names of clusters


def side(uri: str, told: str = "", given: str = "") -> Side:
    made = Side("source", uri, given, settings(queue="q"), Random(1))
    made.name = told
    return made


def test_a_place_is_the_cluster_and_its_vhost() -> None:
    one, other = side("amqp://a/%2F", "berlin"), side("amqp://b/v", "munich")
    assert (one.place(other), other.place(one)) == ("berlin:/", "munich:v")


def test_namesakes_are_told_apart_by_address() -> None:
    one, other = side("amqp://a,b/", "rhizome"), side("amqp://c/", "rhizome")
    assert one.place(other) == "rhizome@a:5672:/"
    assert other.place(one) == "rhizome@c:5672:/"


def test_two_addresses_of_one_cluster_are_one_place() -> None:
    one, other = side("amqp://a,b/", "rhizome"), side("amqp://b/", "rhizome")
    assert one.place(other) == other.place(one) == "rhizome:/"


def test_a_given_name_goes_before_the_told_one() -> None:
    one, other = side("amqp://a/", "rhizome", "x"), side("amqp://c/", "rhizome")
    assert (one.place(other), other.place(one)) == ("x:/", "rhizome:/")


# --- errors


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (NotFound("no queue 'q' in vhost '/'"), True),
        (AccessRefused("access to queue 'q' refused for user 'u'"), True),
        (AccessRefused("queue 'q' in vhost '/' in exclusive use"), False),
        (NotFound("home broker 'b1' of queue 'q' is down or cannot be reached"), False),
        (NotFound("home node 'n' of durable queue 'q' is down or inaccessible"), False),
        (ConnectionForced("shutdown"), False),
        (OSError("no route to host"), False),
    ],
)
def test_only_what_waiting_does_not_mend_needs_a_person(error: Exception, wanted: bool) -> None:
    assert needs_a_person(error) is wanted


# --- reports


def test_a_refusal_that_repeats_is_told_now_and_then() -> None:
    told: list[BridgeEvent] = []
    reporter = Reporter("id", told.append)
    for _ in range(250):
        reporter.tell(REFUSED, "same")
    reporter.tell(REFUSED, "other")
    assert [event.text for event in told] == ["same", "same", "same", "other"]


def test_a_status_names_what_is_out_of_the_ordinary_only() -> None:
    told: list[BridgeEvent] = []
    reporter = Reporter("id", told.append)
    reporter.counters.moved = 5
    reporter.tell_status()
    reporter.counters.sent_again = 2
    reporter.tell_status()
    assert [event.line() for event in told] == [
        "id: moved 5, under way 0",
        "id: moved 5, under way 0, sent again 2",
    ]
    assert '"moved": 5' in told[0].json_line(1)
