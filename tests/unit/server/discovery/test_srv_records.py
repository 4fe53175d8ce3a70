"""The DNS client: what it asks, what it takes for an answer, and that it ends."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.server.discovery.srv_records import (
    RECORDS_MAX,
    TYPE_SRV,
    DnsError,
    ResolverSettings,
    SrvRecord,
    encode_name,
    find_srv,
    read_answer,
    read_resolv_conf,
)
from rhizome.testing.free_ports import free_port
from tests.dns_server import DnsServer

SERVICE = "_amqp._tcp.mq.test"
BROKERS = {"b1.mq.test": ("127.0.0.1", 5672), "b2.mq.test": ("127.0.0.1", 5673)}
FOUND = [SrvRecord("b1.mq.test", 5672), SrvRecord("b2.mq.test", 5673)]


@pytest.fixture
def dns() -> Iterator[DnsServer]:
    with DnsServer() as server:
        server.publish(SERVICE, BROKERS)
        yield server


def ask(dns: DnsServer, name: str, seconds: float = 30.0, **more: object) -> list[SrvRecord]:
    settings = ResolverSettings((("127.0.0.1", dns.port),), **more)  # type: ignore[arg-type]
    return find_srv(name, seconds, settings)


def test_records_are_found(dns: DnsServer) -> None:
    assert ask(dns, SERVICE) == FOUND
    assert dns.asked == [(SERVICE, TYPE_SRV)]


def test_an_answer_that_was_cut_is_asked_for_by_tcp(dns: DnsServer) -> None:
    dns.truncates = True
    assert ask(dns, SERVICE) == FOUND
    assert len(dns.asked) == 2


def test_a_name_that_does_not_exist_has_no_records(dns: DnsServer) -> None:
    assert ask(dns, "_amqp._tcp.nobody.test") == []


def test_short_names_are_completed_in_the_order_of_libc(dns: DnsServer) -> None:
    assert ask(dns, "_amqp._tcp.mq", search=("else", "test"), dots_min=5) == FOUND
    assert [name for name, _ in dns.asked] == ["_amqp._tcp.mq.else", SERVICE]
    dns.asked.clear()
    assert ask(dns, SERVICE, search=("else",), dots_min=2) == FOUND
    assert [name for name, _ in dns.asked] == [SERVICE]
    dns.asked.clear()
    assert ask(dns, "_amqp._tcp.mq.", search=("test",)) == []
    assert [name for name, _ in dns.asked] == ["_amqp._tcp.mq"]


def test_the_next_server_is_asked_when_one_is_gone(dns: DnsServer) -> None:
    servers = (("127.0.0.1", free_port()), ("127.0.0.1", dns.port))
    assert find_srv(SERVICE, 30, ResolverSettings(servers)) == FOUND


def test_a_server_that_fails_is_named(dns: DnsServer) -> None:
    dns.fails = True
    with pytest.raises(DnsError, match=r"SRV _amqp._tcp.mq.test: 127.0.0.1: server failure"):
        ask(dns, SERVICE)


def test_a_server_that_is_silent_is_left_when_time_is_up(dns: DnsServer) -> None:
    dns.silent = True
    with pytest.raises(DnsError, match="no answer"):
        ask(dns, SERVICE, seconds=0.2)


@pytest.mark.parametrize("name", ["", "a..b", "x" * 64, ".".join(["x" * 60] * 5)])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(DnsError, match="is no name"):
        encode_name(name)


def reply(answers: bytes, count: int = 1) -> bytes:
    question = encode_name(SERVICE) + struct.pack("!HH", TYPE_SRV, 1)
    return struct.pack("!HHHHHH", 1, 0x8180, 1, count, 0, 0) + question + answers


def test_names_that_point_in_a_ring_are_refused() -> None:
    place = len(reply(b""))
    ring = struct.pack("!H", 0xC000 | place)
    with pytest.raises(DnsError, match="points forwards"):
        read_answer(reply(ring + bytes(20)))


def test_an_answer_of_too_many_records_is_refused() -> None:
    with pytest.raises(DnsError, match="at most"):
        read_answer(reply(b"", RECORDS_MAX + 1))


@given(st.binary(max_size=200), st.integers(0, 5))
def test_whatever_comes_is_read_or_refused(answers: bytes, count: int) -> None:
    for message in (reply(answers, count), answers):
        try:
            read_answer(message)
        except DnsError:
            pass


def test_resolv_conf_is_read(tmp_path: Path) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text(
        "# comment\nnameserver 10.96.0.10\nnameserver fd00::a\nsearch ns.svc.cluster.local. test\n"
        "options timeout:1 ndots:5\n"
    )
    assert read_resolv_conf(file) == ResolverSettings(
        (("10.96.0.10", 53), ("fd00::a", 53)), ("ns.svc.cluster.local", "test"), 5
    )
    file.write_text("")
    assert read_resolv_conf(file).servers == (("127.0.0.1", 53),)
    with pytest.raises(DnsError, match="can't be read"):
        read_resolv_conf(tmp_path / "missing")
