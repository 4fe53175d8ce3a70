"""amqps, against a scripted peer with a certificate of its own."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from rhizome.amqp import methods
from rhizome.client import ConnectFailed, connect

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")

PeerContext = Callable[..., AbstractAsyncContextManager[Any]]


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a self-signed certificate.pem for 127.0.0.1 and its key.pem."""
    place = tmp_path_factory.mktemp("tls")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
        " -keyout key.pem -out certificate.pem -subj /CN=peer -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run(command.split(), cwd=place, check=True, capture_output=True, timeout=30)
    return place


@pytest.fixture
def server_tls(pem: Path) -> ssl.SSLContext:
    """Demands a certificate of the client, too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem / "certificate.pem", pem / "key.pem")
    context.load_verify_locations(pem / "certificate.pem")
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def test_a_verified_connection_can_log_in_by_certificate(
    peer_context: PeerContext, server_tls: ssl.SSLContext, pem: Path
) -> None:
    async def scenario() -> None:
        async with peer_context(server_tls) as peer:
            peer.mechanisms = b"PLAIN EXTERNAL"
            uri = (
                f"amqps://127.0.0.1:{peer.port}/?cacertfile={pem}/certificate.pem"
                f"&certfile={pem}/certificate.pem&keyfile={pem}/key.pem&auth_mechanism=external"
            )
            async with connect(uri) as connection, connection.channel() as channel:
                await channel.declare_queue("q")
            start_ok = peer.of(methods.ConnectionStartOk)[0]
            assert (start_ok.mechanism, start_ok.response) == ("EXTERNAL", b"")

    asyncio.run(scenario())


def test_an_unknown_authority_is_refused_unless_verification_is_off(
    peer_context: PeerContext, server_tls: ssl.SSLContext
) -> None:
    async def scenario() -> None:
        async with peer_context(server_tls) as peer:
            uri = f"amqps://127.0.0.1:{peer.port}/"
            with pytest.raises(ConnectFailed, match="CERTIFICATE_VERIFY_FAILED"):
                await connect(uri)
            async with connect(f"{uri}?verify=verify_none") as connection:
                assert connection.is_open

    asyncio.run(scenario())
