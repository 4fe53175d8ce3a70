"""Bridges from parameters: their settings, and what a URI without a host leads to."""

from __future__ import annotations

from typing import Any

import pytest

from rhizome.bridge import BridgeSettings, InvalidBridge, Refused
from rhizome.bridge.shovel_settings import (
    OwnCluster,
    Parameter,
    ParameterContext,
    own_cluster_of,
    settings_of,
)

TEMPLATE = BridgeSettings("", "", "", refused=Refused.DROP, drain_s=3.0, retry_s_max=9.0)
OWN = OwnCluster("grove", ("amqp://b1:5672", "amqp://b2:5673", "amqps://b1:5671"))


def made(
    own: OwnCluster = OWN, own_uri: str = "", vhost: str = "/", tls_files: str = "", **given: Any
) -> BridgeSettings:
    value = {"src-queue": "q", "dest-queue": "r"}
    value |= {"src-uri": "amqp://u:p@a", "dest-uri": "amqp://u:p@b"}
    value |= {key.replace("_", "-"): each for key, each in given.items()}
    value = {key: each for key, each in value.items() if each is not None}
    return settings_of(
        Parameter(vhost, "s", value), ParameterContext(own, own_uri, TEMPLATE, tls_files)
    )


def test_a_parameter_becomes_a_bridge_and_the_options_say_the_rest() -> None:
    assert made(src_queue_args={"x": 1}, reconnect_delay=4) == BridgeSettings(
        "s", "amqp://u:p@a", "amqp://u:p@b", queue="q", to_queue="r", prefetch=1000,
        refused=Refused.DROP, drain_s=3.0, retry_s_max=4.0, makes_queue=True,
        makes_to_queue=True, arguments={"x": 1},
    )  # fmt: skip


def test_an_exchange_is_bound_with_the_one_key_even_if_it_is_empty() -> None:
    found = made(src_queue=None, src_exchange="e", dest_queue=None)
    assert (found.exchange, found.binding_keys, found.target_exchange) == ("e", ("",), "e")
    assert found.retry_s_max == 9.0


def test_parameters_of_one_name_in_two_vhosts_are_two_bridges() -> None:
    pairs = [("/", "s"), ("v", "s"), ("/", "v/s"), ("v/s", "s"), ("/", "v%2Fs")]
    ids = [Parameter(vhost, name, {}).id for vhost, name in pairs]
    assert ids == ["s", "v/s", "v%2Fs", "v%2Fs/s", "v%252Fs"]


# --- addresses


def test_several_addresses_of_one_cluster_become_one() -> None:
    uris = ["amqp://u:p@a1/v?heartbeat=5", "amqp://u:p@a2:1,a3/v?heartbeat=5"]
    assert made(src_uri=uris).source_uri == "amqp://u:p@a1,a2:1,a3/v?heartbeat=5"


@pytest.mark.parametrize(
    "other", ["amqp://u:other@a2/v", "amqps://u:s3cret@a2/v", "amqp://x:y@a2/v"]
)
def test_addresses_that_differ_in_more_than_the_host_are_refused(other: str) -> None:
    with pytest.raises(InvalidBridge) as caught:
        made(src_uri=["amqp://u:s3cret@a1/v", other])
    assert "shovel 's' in vhost '/': the URIs in 'src-uri' must be of one" in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("uri", ["amqp://u:s3cret@h:99999/", "amqp://u:s3cret@h/?nonsense=1"])
def test_a_wrong_address_is_told_without_its_password(uri: str) -> None:
    with pytest.raises(InvalidBridge) as caught:
        made(dest_uri=uri)
    assert "'dest-uri': 'amqp://u:***@h" in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "own_uri", "wanted"),
    [
        ("amqp://", "amqp://u:p@", "amqp://u:p@b1:5672,b2:5673"),
        ("amqp:///v?heartbeat=3", "amqp://u:p@/", "amqp://u:p@b1:5672,b2:5673/v?heartbeat=3"),
        ("amqp://x:y@/v", "amqp://u:p@", "amqp://x:y@b1:5672,b2:5673/v"),
        ("amqp://x:y@", "", "amqp://x:y@b1:5672,b2:5673"),
        ("amqps://", "amqps://u:p@", "amqps://u:p@b1:5671"),
        ("amqp:///v", "amqps://u:p@c1,c2/w", "amqps://u:p@c1,c2/v"),
        ("amqp://x:y@a", "amqp://u:p@", "amqp://x:y@a"),
    ],
)
def test_a_uri_without_a_host_means_the_cluster_itself(uri: str, own_uri: str, wanted: str) -> None:
    vhost = "v" if "/v" in uri else "/"
    assert made(own_uri=own_uri, src_uri=uri, vhost=vhost).source_uri == wanted


def test_the_login_of_the_operator_is_for_the_vhost_of_the_parameter_alone() -> None:
    """Whoever may set parameters in one vhost would read the queues of all."""
    for uri in ("amqp:///secret", "amqp://", "amqp://u@/secret", "amqp://b1:5672/secret"):
        with pytest.raises(InvalidBridge, match=r"shovel 's' in vhost 'tenant': 'src-uri' "):
            made(own_uri="amqp://u:p@", vhost="tenant", src_uri=uri)


def test_a_login_in_the_uri_is_not_joined_by_the_certificate_of_the_operator() -> None:
    own = "amqps://u:p@c1?cacertfile=ca&auth_mechanism=external"
    found = made(own_uri=own, vhost="v", src_uri="amqp://x:y@/secret", dest_uri="amqp:///v")
    assert found.source_uri == "amqps://x:y@c1/secret?cacertfile=ca"
    assert found.destination_uri == "amqps://u:p@c1/v?cacertfile=ca&auth_mechanism=external"


@pytest.mark.parametrize("option", ["cacertfile", "certfile", "keyfile", "%63ertfile"])
@pytest.mark.parametrize("uri", ["amqps://u:p@evil/?{}=/etc/bridge.pem", "amqps://u:p@/?{}=x"])
def test_a_parameter_names_no_file_of_the_machine_of_the_bridge(uri: str, option: str) -> None:
    """The operator's certificate would be shown to a host of the policymaker's choice."""
    with pytest.raises(InvalidBridge, match=r"'src-uri' names a file .*--tls-files DIRECTORY"):
        made(src_uri=uri.format(option))


def test_the_operator_may_allow_for_files_of_a_directory() -> None:
    uri = "amqps://u:p@a?cacertfile={}&heartbeat=3"
    for named in ("/tls/sub/ca.pem", "sub/ca.pem", "/etc/../tls/sub/ca.pem"):
        found = made(tls_files="/tls", src_uri=uri.format(named)).source_uri
        assert found == uri.format("/tls/sub/ca.pem")
    for named in ("/etc/ca.pem", "../ca.pem", "/tls/../etc/ca.pem", "/tlsx/ca.pem", "", "..%2Fca"):
        with pytest.raises(InvalidBridge, match="not below the directory of --tls-files"):
            made(tls_files="/tls", src_uri=uri.format(named))


@pytest.mark.parametrize(
    ("uri", "own_uri", "wanted"),
    [
        ("amqp://", "amqps://u:p@", "amqps://u:p@b1:5671"),
        ("amqp://", "amqps://u:p@?cacertfile=/ca", "amqps://u:p@b1:5671?cacertfile=/ca"),
        (
            "amqp://?heartbeat=3",
            "amqps://u:p@c1?cacertfile=/ca&heartbeat=9&cluster_token=t",
            "amqps://u:p@c1?cacertfile=/ca&cluster_token=t&heartbeat=3",
        ),
        ("amqp://?auth_mechanism=plain", "amqp://u:p@c1", "amqp://u:p@c1"),
        (
            "amqp://x:y@",
            "amqps://u:p@?cluster_token=t&verify=verify_peer",
            "amqps://x:y@b1:5671?verify=verify_peer",
        ),
    ],
)
def test_a_uri_without_a_host_goes_over_the_transport_of_the_operator(
    uri: str, own_uri: str, wanted: str
) -> None:
    assert made(own_uri=own_uri, src_uri=uri).source_uri == wanted


@pytest.mark.parametrize("option", ["verify=verify_none", "server_name_indication=evil"])
@pytest.mark.parametrize("own_uri", ["amqps://u:p@", "amqps://u:p@c1?cacertfile=/ca"])
def test_how_the_brokers_are_checked_is_the_operators_alone(option: str, own_uri: str) -> None:
    with pytest.raises(InvalidBridge, match=r"goes the way of --own.*give that to --own"):
        made(own_uri=own_uri, src_uri=f"amqps://?{option}")


def test_a_hidden_password_is_told_with_what_to_do() -> None:
    with pytest.raises(InvalidBridge, match=r"password of 'dest-uri' is hidden.*the tag bridge"):
        made(dest_uri="amqp://u:***@b")


def test_the_cluster_itself_needs_a_login_of_the_operator_and_addresses() -> None:
    with pytest.raises(InvalidBridge, match=r"'src-uri' names no host.*--own .*RHIZOME_BRIDGE_OWN"):
        made(src_uri="amqp://")
    with pytest.raises(InvalidBridge, match=r"'dest-uri' names no host.*tell no amqps address"):
        made(
            dest_uri="amqps://", own_uri="amqp://u:p@", own=OwnCluster("grove", ("amqp://b1:5672",))
        )


def test_addresses_are_read_as_clusters_and_as_lone_brokers_tell_them() -> None:
    cluster = {
        "cluster": {"name": "grove"},
        "brokers": [
            {"role": "primary", "addresses": ["b1:5672"]},
            {"role": "primary", "addresses": ["b2:5672", "b1:5672"]},
            {"role": "witness", "addresses": ["w:5672"]},
            {"role": "secondary", "addresses": ["s:5672"]},
        ],
    }
    assert own_cluster_of(cluster, "h") == OwnCluster("grove", ("amqp://b1:5672", "amqp://b2:5672"))
    told = ["amqp://0.0.0.0:5672", "amqps://[::]:5671", "amqp://:5674", "http://b:15672"]
    lone = {"cluster": {"name": "x"}, "brokers": [{"role": "primary", "addresses": told}]}
    own = own_cluster_of(lone, "h")
    assert (own.hosts("amqp"), own.hosts("amqps")) == ("h:5672,h:5674", "h:5671")
    assert own_cluster_of(lone, "::1").hosts("amqp") == "[::1]:5672,[::1]:5674"
    assert own_cluster_of({"brokers": None}, "h") == OwnCluster()


# --- headers


def test_forward_headers_tell_the_way_without_passwords() -> None:
    found = made(
        vhost="v", src_uri="amqp://u:s3cret@a/v", dest_queue=None, dest_exchange="e",
        dest_exchange_key="k", add_forward_headers=True,
    )  # fmt: skip
    assert found.forwarded == {
        "shovelled-by": "grove",
        "shovel-type": "dynamic",
        "shovel-name": "s",
        "shovel-vhost": "v",
        "src-uri": "amqp://a/v",
        "dest-uri": "amqp://b",
        "src-queue": "q",
        "dest-exchange": "e",
        "dest-exchange-key": "k",
    }
    assert made().forwarded == {}


def test_neither_parameters_nor_settings_show_what_they_hold() -> None:
    parameter = Parameter("/", "s", {"src-uri": "amqp://u:s3cret@a"})
    assert "s3cret" not in repr((parameter, ParameterContext(OWN, "amqp://u:s3cret@", TEMPLATE)))
