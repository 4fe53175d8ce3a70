"""How the two sides of an adoption are given, and what is asked of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rhizome.adopt.errors import AdoptionError, SiteUnavailable
from rhizome.adopt.queue_listing import QueueCounts, QueueKey
from rhizome.cli.commands.messages.adoption_sites import ListingReader, Site, Sites
from rhizome.cli.errors import CliError, UsageError
from tests.unit.cli.conftest import ScriptedApi

QUEUES = (
    "GET /api/queues?columns=name,vhost,type,arguments,exclusive,auto_delete,messages,"
    "messages_unacknowledged,message_stats.publish_details.rate"
)
CONSUMERS = "GET /api/consumers?columns=queue,consumer_tag"
URI = "amqp://app:s%40cret@127.0.0.1:5672"


def addresses(uri: str, http: str = "") -> tuple[list[tuple[str, int, bool]], str, str]:
    where = Site("--from", uri, http).where
    found = [(each.host, each.port, each.tls) for each in where.addresses]
    return found, where.user, where.password


def test_the_http_api_is_at_the_usual_port_of_the_same_hosts_with_the_same_login() -> None:
    found, user, password = addresses("amqp://app:s%40cret@a:5673,b,[::1]:5672/v?heartbeat=3")
    assert found == [("a", 15672, False), ("b", 15672, False), ("::1", 15672, False)]
    assert (user, password) == ("app", "s@cret")


def test_another_address_gets_the_login_of_the_uri_unless_it_has_its_own() -> None:
    assert addresses(URI, "https://c:15671") == ([("c", 15671, True)], "app", "s@cret")
    assert addresses(URI, "http://ops:pw@c:80") == ([("c", 80, False)], "ops", "pw")


def test_a_login_for_tls_is_not_sent_without() -> None:
    with pytest.raises(UsageError, match="--from-http: give the HTTP API too"):
        Site("--from", "amqps://app:s@a", "")


def test_a_uri_may_be_in_a_variable_or_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OLD", URI)
    file = tmp_path / "uri"
    file.write_text(URI + "\n")
    for given in ("env:OLD", f"file:{file}"):
        site = Site("--from", given, "")
        assert site.uri == URI
        assert (site.label, site.user) == ("127.0.0.1:5672", "app")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("env:NOT_THERE", "there is no variable NOT_THERE"),
        ("file:/not/there", "No such file"),
        ("", "give the address of a broker"),
        ("amqp:///", "give the address of a broker"),
        ("http://app:s3cret@a", "amqp"),
    ],
)
def test_a_wrong_uri_is_told_without_its_password(given: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as told:
        Site("--from", given, "")
    assert "s3cret" not in str(told.value)


def sites(api: ScriptedApi) -> Sites:
    return Sites(URI, URI, api.address, api.address)


def test_queues_are_read_with_the_consumers_of_applications(api: ScriptedApi) -> None:
    api.answer(QUEUES, [{"name": "q", "vhost": "v", "messages": 3}])
    api.answer(CONSUMERS, [{"queue": {"name": "q", "vhost": "v"}, "consumer_tag": "c"}])
    listing = asyncio.run(ListingReader(sites(api)).read())
    assert listing.source == listing.target == {QueueKey("v", "q"): QueueCounts(1, 3)}


def test_failures_name_the_options_of_the_side() -> None:
    site = Site("--to", "amqp://a:b@127.0.0.1:1", "127.0.0.1:1")
    with pytest.raises(CliError, match="give --to-http HOST:PORT"):
        site.definitions()


def test_a_refusal_is_final_at_first_and_passes_later(api: ScriptedApi) -> None:
    reader = ListingReader(sites(api))

    async def scenario() -> None:
        # Both sides are asked at once; either may be the first to refuse.
        with pytest.raises(AdoptionError, match=": not found") as first:
            await reader.read()
        assert not isinstance(first.value, SiteUnavailable)
        api.answer(QUEUES, [])
        api.answer(CONSUMERS, [])
        await reader.read()
        api.answer(QUEUES, {"reason": "down"}, 503)
        with pytest.raises(SiteUnavailable):
            await reader.read()

    asyncio.run(scenario())


def test_consumers_that_can_not_be_asked_for_are_not_told() -> None:
    reader = ListingReader(Sites("amqp://a:b@127.0.0.1:1", URI, "127.0.0.1:1", "127.0.0.1:1"))
    assert asyncio.run(reader.source_consumers([QueueKey("/", "q")])) == {}
