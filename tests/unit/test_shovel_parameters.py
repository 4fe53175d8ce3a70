"""Parameters of RabbitMQ's shovels: what they mean here, and how a wrong one is told."""

from __future__ import annotations

from typing import Any

import pytest

from rhizome.shovel_parameters import (
    READERS,
    InvalidShovel,
    Shovel,
    hide,
    needs_cluster,
    parse_shovel,
    split_uri,
    unhide,
)

ENDS = {"src-uri": "amqp://u:p@a", "dest-uri": "amqp://u:p@b"}


def parsed(**given: Any) -> Shovel:
    return parse_shovel("/", "s", {**ENDS, **_dashed(given)})


def refused(value: object) -> str:
    with pytest.raises(InvalidShovel) as caught:
        parse_shovel("dev", "orders", value)
    return str(caught.value)


def _dashed(given: dict[str, Any]) -> dict[str, Any]:
    return {key.replace("_", "-"): value for key, value in given.items()}


def test_the_simplest_shovel_has_the_defaults_of_rabbitmq() -> None:
    assert parsed(src_queue="q", dest_queue="r") == Shovel(
        ("amqp://u:p@a",), ("amqp://u:p@b",), queue="q", to_queue="r", prefetch=1000
    )


def test_every_key_is_understood() -> None:
    made = parsed(
        src_uri=["amqp://u:p@a", "amqps://u:p@b"], src_protocol="amqp091", dest_protocol="amqp091",
        src_queue="q", src_queue_args={"x-queue-type": "quorum"}, src_predeclared=True,
        dest_exchange="e", dest_exchange_key="k", dest_predeclared=False, dest_queue_args=[],
        src_prefetch_count=7, prefetch_count=8, ack_mode="no-ack", reconnect_delay=2.5,
        src_delete_after="never", delete_after="never", add_forward_headers=True,
        dest_add_timestamp_header=False, publish_properties={}, src_consumer_args={},
    )  # fmt: skip
    assert made == Shovel(
        ("amqp://u:p@a", "amqps://u:p@b"), ("amqp://u:p@b",), queue="q", to_exchange="e",
        to_key="k", prefetch=7, reconnect_s=2.5, forward_headers=True, makes_queue=False,
        queue_arguments={"x-queue-type": "quorum"},
    )  # fmt: skip
    assert parsed(src_queue="q", dest_queue="r", prefetch_count=8).prefetch == 8
    assert parsed(src_queue="q", dest_queue="r", dest_add_forward_headers=True).forward_headers


def test_an_exchange_is_bound_with_the_key_that_is_given_or_with_none() -> None:
    """Not with #, the default of bridges: RabbitMQ takes the empty key."""
    made = parsed(src_exchange="e", src_exchange_key="a.#", dest_queue="r")
    assert (made.exchange, made.key, made.queue) == ("e", "a.#", "")
    assert parsed(src_exchange="e", dest_queue="r").key == ""


@pytest.mark.parametrize(
    ("given", "queue", "exchange", "key"),
    [
        ({"src_queue": "q", "dest_queue": "r"}, "r", "", None),
        ({"src_queue": "q", "dest_queue": "r", "dest_exchange": ""}, "r", "", None),
        ({"src_queue": "q", "dest_exchange": "e"}, "", "e", None),
        ({"src_queue": "q", "dest_exchange": "e", "dest_exchange_key": ""}, "", "e", ""),
        ({"src_queue": "q", "dest_exchange": "", "dest_exchange_key": "r"}, "r", "", None),
        ({"src_queue": "", "src_exchange": "x"}, "", "x", None),
        ({"src_exchange": "x", "dest_exchange_key": "k"}, "", "x", "k"),
    ],
)
def test_the_destination_is_a_queue_or_an_exchange(
    given: dict[str, str], queue: str, exchange: str, key: str | None
) -> None:
    made = parsed(**given)
    assert (made.to_queue, made.to_exchange, made.to_key) == (queue, exchange, key)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"src_qeue": "q"}, "unknown key 'src-qeue', did you mean 'src-queue'?"),
        ({"zzz": 1}, "unknown key 'zzz'; known are src-uri, "),
        ({"src_queue": 1}, "'src-queue' is 1; it must be a text"),
        ({"src_queue": None}, "'src-queue' is null; it must be a text"),
        ({}, "give either 'src-queue' or 'src-exchange'"),
        ({"src_queue": "q", "src_exchange": "e"}, "give either 'src-queue' or 'src-exchange'"),
        ({"src_queue": "q"}, "give 'dest-queue' or 'dest-exchange'"),
        (
            {"src_queue": "q", "dest_queue": "r", "dest_exchange": "e"},
            "give either 'dest-queue' or 'dest-exchange'",
        ),
        ({"src_uri": []}, "'src-uri' is an empty list"),
        ({"src_uri": "http://a"}, "'src-uri' must be a URI that begins with amqp://"),
        ({"src_uri": "amqp"}, "'src-uri' must be a URI that begins with amqp://"),
        ({"dest_uri": ["amqp://b", 1]}, "'dest-uri' must be a URI"),
        ({"src_protocol": "amqp10"}, "'src-protocol' is 'amqp10'; bridges speak amqp091 only"),
        ({"dest_protocol": "amqp10", "dest_address": "x"}, "'dest-protocol' is 'amqp10'"),
        ({"src_delete_after": "queue-length"}, "'src-delete-after' is 'queue-length'"),
        ({"delete_after": 10}, "'delete-after' is 10; bridges know 'never' only"),
        ({"src_prefetch_count": 0}, "'src-prefetch-count' is 0; it must be a whole number"),
        ({"prefetch_count": True}, "'prefetch-count' is true; it must be a whole number"),
        ({"reconnect_delay": -1}, "'reconnect-delay' is -1; it must be a number of seconds"),
        ({"reconnect_delay": "5"}, "'reconnect-delay' is '5'; it must be a number of seconds"),
        ({"ack_mode": "on-cnfirm"}, "it must be one of on-confirm, on-publish, no-ack"),
        ({"add_forward_headers": "yes"}, "'add-forward-headers' is 'yes'; it must be true or"),
        ({"src_queue_args": "x"}, "'src-queue-args' is 'x'; it must be an object"),
        ({"publish_properties": {"priority": 1}}, "'publish-properties' is not supported"),
        ({"dest_add_timestamp_header": True}, "'dest-add-timestamp-header' is not supported"),
    ],
)
def test_a_wrong_parameter_is_told_with_its_name_and_the_key(
    given: dict[str, Any], said: str
) -> None:
    text = refused({**ENDS, **_dashed(given)})
    assert text.startswith("shovel 'orders' in vhost 'dev': ")
    assert said in text


@pytest.mark.parametrize("value", [None, "amqp://", [], 5])
def test_a_value_that_is_no_object_is_told(value: object) -> None:
    assert "it must be an object" in refused(value)


@pytest.mark.parametrize("key", ["src-uri", "dest-uri"])
def test_a_missing_address_is_told(key: str) -> None:
    value = {name: uri for name, uri in ENDS.items() if name != key}
    assert f"'{key}' is missing" in refused({**value, "src-queue": "q", "dest-queue": "r"})


@pytest.mark.parametrize("key", READERS)
def test_no_error_shows_a_password(key: str) -> None:
    """Wherever somebody has put it by mistake."""
    secret = "amqp//u:s3cret@h" if key.endswith("-uri") else "amqp://u:s3cret@h"
    for value in (secret, [secret], {"a": secret}):
        assert "s3cret" not in refused({**ENDS, key: value, "unknown": 1})


def test_a_uri_comes_apart_and_together_again() -> None:
    for uri in ("amqp://", "amqp:///v", "amqps://u:p%40@h1,h2:1/v?heartbeat=3", "amqp://h"):
        assert split_uri(uri).text == uri
    assert split_uri("amqp://u:s3cret@h/v?x=1").shown == "amqp://h/v?x=1"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (ENDS, False),
        ({**ENDS, "src-uri": "amqp:///v"}, True),
        ({**ENDS, "dest-uri": ["amqp://b", "amqp://u:p@"]}, True),
        ({**ENDS, "add-forward-headers": True}, True),
        ({"src-uri": 5}, False),
        ("amqp://", False),
    ],
)
def test_only_some_parameters_are_about_the_cluster_that_has_them(
    value: object, wanted: bool
) -> None:
    assert needs_cluster(value) is wanted


# --- logins that are not the parameter's own


@pytest.mark.parametrize(
    "uri",
    ["amqp:///dev", "amqps:///dev?heartbeat=3", "amqp://u:p@/secret", "amqp://u:p@h/secret"],
)
def test_a_uri_has_a_login_or_means_the_vhost_of_its_parameter(uri: str) -> None:
    made = parse_shovel("dev", "s", {**ENDS, "src-queue": "q", "dest-queue": "r", "src-uri": uri})
    assert made.source_uris == (uri,)


@pytest.mark.parametrize("uri", ["amqp://", "amqp:///", "amqp:///%2F"])
def test_the_default_vhost_has_several_spellings(uri: str) -> None:
    assert parsed(src_queue="q", dest_queue="r", src_uri=uri).source_uris == (uri,)


@pytest.mark.parametrize("key", ["src-uri", "dest-uri"])
@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("amqp://", "means another vhost of this cluster without a login; write amqp:///dev"),
        ("amqp:///secret", "means another vhost of this cluster without a login"),
        ("amqps:///%73ecret", "means another vhost of this cluster without a login"),
        ("amqp://user@/secret", "has no user and password"),
        ("amqp://:p@/secret", "has no user and password"),
        ("amqp://127.0.0.1/secret", "has no user and password"),
        ("amqp://:5672/secret", "has no user and password"),
        ("amqp://,/secret", "has no user and password"),
        ("amqps://u:p@h/v?auth_mechanism=external", "asks for the mechanism EXTERNAL"),
        ("amqps:///dev?auth_mechanism=external", "asks for the mechanism EXTERNAL"),
    ],
)
def test_a_uri_that_needs_the_login_of_somebody_else_is_refused(
    key: str, uri: str, said: str
) -> None:
    """Whoever sets a parameter may not have what the program that follows it was given."""
    ends = {**ENDS, "src-queue": "q", "dest-queue": "r"}
    assert f"shovel 'orders' in vhost 'dev': '{key}' {said}" in refused({**ends, key: uri})
    assert said in refused({**ends, key: ["amqp://u:p@a", uri]})


# --- passwords


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("amqp://u:s3cret@h/v", "amqp://u:***@h/v"),
        ("amqps://u:s3@cret@h1,h2:1/?x=1", "amqps://u:***@h1,h2:1/?x=1"),
        ("amqp://u:s3/cret@h", "amqp://u:***@h"),
        ("amqp://:s3cret@", "amqp://:***@"),
        (
            "amqp://u:p@h/v?name=n&cluster_token=t&x=1",
            "amqp://u:***@h/v?name=n&cluster_token=***&x=1",
        ),
        ("amqp://u:p?q@h?cluster%5Ftoken=t", "amqp://u:***@h?cluster%5Ftoken=***"),
        ("amqp:///v?cluster_token=t", "amqp:///v?cluster_token=***"),
        ("amqp://u@h", "amqp://u@h"),
        ("amqp://h:5672/v", "amqp://h:5672/v"),
        ("a: b@c", "a: b@c"),
    ],
)
def test_passwords_are_hidden_wherever_they_stand(uri: str, shown: str) -> None:
    assert hide({"a": [{"b": uri}, 5, None]}) == {"a": [{"b": shown}, 5, None]}


def test_a_hidden_password_is_the_stored_one() -> None:
    stored = {"src-uri": ["amqp://u:one@a", "amqp://u:two@b"], "dest-uri": "amqp://v:three@c/x"}
    edited = {"dest-uri": "amqp://v:***@c/x", "src-uri": ["amqp://u:***@b", "amqp://n:new@d"]}
    assert unhide({**edited, "n": 1}, stored) == {
        "dest-uri": "amqp://v:three@c/x",
        "src-uri": ["amqp://u:two@b", "amqp://n:new@d"],
        "n": 1,
    }
    assert unhide(hide(stored), stored) == stored
    stored = {"src-uri": "amqp:///v?cluster_token=t", "dest-uri": "amqp://u:p@h?cluster_token=t"}
    assert unhide(hide(stored), stored) == stored
    assert split_uri(stored["dest-uri"]).shown == "amqp://h?cluster_token=***"


@pytest.mark.parametrize(
    "edited",
    [
        {"src-uri": "amqp://u:***@evil/v"},
        {"src-uri": "amqp://w:***@a/v"},
        {"src-uri": "amqp://u:***@a/other"},
        {"src-uri": "amqp://u:***@a/v?verify=verify_none"},
        {"dest-uri": "amqps://u:***@a/v"},
        {"src-uri": ["amqps://u:***@a,evil/v"]},
        {"src-uri": "amqps://u:new@a/v?cluster_token=***"},
    ],
)
def test_a_stored_password_goes_to_no_other_place(edited: object) -> None:
    stored = {"src-uri": "amqps://u:s3cret@a/v", "dest-uri": "amqp://u:s3cret@b"}
    with pytest.raises(InvalidShovel, match="give the password") as caught:
        unhide(edited, stored)
    assert "s3cret" not in str(caught.value)
