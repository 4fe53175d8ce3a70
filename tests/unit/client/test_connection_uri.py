"""Connection URIs."""

from __future__ import annotations

import pytest

from rhizome.client.connection_uri import Address, parse_uris
from rhizome.client.errors import InvalidUri
from rhizome.client.handshake_settings import settings_for


def only(uri: str) -> Address:
    addresses = parse_uris(uri)
    assert len(addresses) == 1
    return addresses[0]


@pytest.mark.parametrize(
    ("uri", "host", "port", "vhost"),
    [
        ("amqp://", "127.0.0.1", 5672, "/"),
        ("amqp://b1", "b1", 5672, "/"),
        ("amqp://b1/", "b1", 5672, "/"),
        ("amqp://b1/%2F", "b1", 5672, "/"),
        ("amqp://b1:1234/orders", "b1", 1234, "orders"),
        ("amqp://b1/a%2Fb", "b1", 5672, "a/b"),
        ("amqps://b1", "b1", 5671, "/"),
        ("amqp://[::1]:9/v", "::1", 9, "v"),
        ("amqp://[::1]", "::1", 5672, "/"),
    ],
)
def test_host_port_and_vhost_are_read(uri: str, host: str, port: int, vhost: str) -> None:
    address = only(uri)
    assert (address.host, address.port, address.vhost) == (host, port, vhost)


def test_user_and_password_are_unquoted() -> None:
    address = only("amqp://a%40b:p%3Aw%2F@h")
    assert (address.user, address.password) == ("a@b", "p:w/")
    assert "p:w/" not in repr(address)


def test_several_hosts_and_several_uris_keep_their_order() -> None:
    found = parse_uris(["amqp://u:p@b1:1,b2:2/v", "amqp://b3"])
    assert [address.label for address in found] == ["b1:1", "b2:2", "b3:5672"]
    assert [address.user for address in found] == ["u", "u", "guest"]


def test_options_are_those_of_rabbitmq() -> None:
    address = only(
        "amqps://h/?heartbeat=10&connection_timeout=500&channel_max=9&frame_max=8192"
        "&auth_mechanism=external&cacertfile=/ca&certfile=/c&keyfile=/k&verify=verify_none&name=me"
    )
    assert (address.heartbeat_s, address.connect_timeout_ms) == (10, 500)
    assert (address.channel_max, address.frame_bytes_max) == (9, 8192)
    assert (address.mechanism, address.connection_name) == ("EXTERNAL", "me")
    assert address.tls is not None
    assert (address.tls.ca_file, address.tls.certificate_file) == ("/ca", "/c")
    assert not address.tls.verify


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("http://b1", "must begin with amqp"),
        ("b1:5672", "must begin with amqp"),
        ("amqp://b1:x", "a port is a number"),
        ("amqp://b1:70000", "a port is a number"),
        ("amqp://[::1", "write IPv6"),
        ("amqp://b1/a/b", "%2F"),
        ("amqp://b1?heartbeat=soon", "whole number"),
        ("amqp://b1?heartbaet=1", "unknown option 'heartbaet'"),
        ("amqp://b1?frame_max=100", "4096"),
        ("amqp://b1?cacertfile=x", "amqps://"),
        ("amqps://b1?verify=maybe", "verify_peer or verify_none"),
    ],
)
def test_a_bad_uri_is_refused_with_the_form_that_is_expected(uri: str, said: str) -> None:
    with pytest.raises(InvalidUri, match=said):
        parse_uris(uri)


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(InvalidUri):
        parse_uris([])


def test_the_token_of_a_cluster_is_an_option_and_shows_itself_nowhere() -> None:
    (address,) = parse_uris("amqp://b1/?cluster_token=s3cret")
    assert address.cluster_token == "s3cret"
    assert address.at("b2").cluster_token == "s3cret"
    settings = settings_for(address, "", {})
    assert settings.client_properties["cluster_token"] == "s3cret"
    assert "s3cret" not in repr(address) + repr(settings)
