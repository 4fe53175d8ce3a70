"""Ports for tests."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest

from rhizome.testing import free_ports as ports
from rhizome.testing.free_ports import free_port, free_ports


@pytest.fixture
def own_counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))


def test_a_free_port_can_be_listened_on() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))
        listener.listen()


@pytest.mark.usefixtures("own_counter")
def test_no_port_is_given_twice_until_all_were() -> None:
    given = [free_port() for _ in range(200)]
    assert len(set(given)) == 200


@pytest.mark.usefixtures("own_counter")
def test_a_port_that_is_taken_is_left_out() -> None:
    first = free_port()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", first + 2))
        assert free_ports(3) > first + 2


@pytest.mark.usefixtures("own_counter")
def test_the_count_begins_again_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "LAST", ports.FIRST + 50)
    assert all(ports.FIRST <= free_ports(7) <= ports.LAST - 7 for _ in range(30))
