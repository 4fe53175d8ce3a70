"""The TLS listener: certificates of both sides, login by certificate, clients that do it wrong."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from rhizome.client import ConnectFailed, ConnectionLost, connect
from rhizome.errors import LoginRefused
from rhizome.testing.ports import free_port
from rhizome.testing.processes import BrokerProcess

from .kit import PROTOCOL_HEADER, run

pytestmark = [
    pytest.mark.rhizome_only,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl"),
]

OPENSSL_SECONDS_MAX: Final = 30
KEY: Final = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"


@dataclass(frozen=True)
class Certificates:
    """PEM files: two authorities, a server and clients that they signed."""

    directory: Path

    def path(self, name: str) -> str:
        return str(self.directory / f"{name}.pem")

    def make_authority(self, name: str) -> None:
        self._openssl(
            f"req -x509 {KEY} -days 2 -subj /CN={name} -keyout {name}.key.pem -out {name}.pem"
        )

    def make(self, name: str, authority: str, subject: str, extension: str = "") -> None:
        """A certificate for `subject`, signed by `authority`."""
        self._openssl(f"req {KEY} -subj {subject} -keyout {name}.key.pem -out {name}.csr")
        (self.directory / f"{name}.ext").write_text(extension)
        self._openssl(
            f"x509 -req -in {name}.csr -CA {authority}.pem -CAkey {authority}.key.pem"
            f" -CAcreateserial -days 2 -extfile {name}.ext -out {name}.pem"
        )

    def _openssl(self, arguments: str) -> None:
        command = ["openssl", *arguments.split()]
        subprocess.run(
            command,
            cwd=self.directory,
            check=True,
            capture_output=True,
            timeout=OPENSSL_SECONDS_MAX,
        )


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    for authority in ("ours", "theirs"):
        made.make_authority(authority)
    made.make("server", "ours", "/CN=localhost", "subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    made.make("app", "ours", "/O=Example/CN=app")
    made.make("nobody", "ours", "/O=Example/CN=nobody")
    made.make("stranger", "theirs", "/O=Example/CN=app")
    return made


CONFIGURATION: Final = """
[listen]
tls = ["127.0.0.1:{port}"]

[tls]
certificate = "{server}"
key = "{key}"
ca = "{ca}"
verify_client = "{verify}"

[users.guest]
password = "guest"
tags = ["administrator"]
permissions."/" = {{ configure = ".*", write = ".*", read = ".*" }}

[users.app]
permissions."/" = {{ configure = ".*", write = ".*", read = ".*" }}
"""


class TlsBroker(BrokerProcess):
    """A broker with a TLS listener beside the plain one. The user `app` has no password."""

    def __init__(self, directory: Path, certificates: Certificates, verify: str) -> None:
        self.tls_port = free_port()
        directory.mkdir(parents=True, exist_ok=True)
        configuration = directory / "rhizome.toml"
        configuration.write_text(
            CONFIGURATION.format(
                port=self.tls_port,
                server=certificates.path("server"),
                key=certificates.path("server.key"),
                ca=certificates.path("ours"),
                verify=verify,
            )
        )
        super().__init__(directory, arguments=["--config", str(configuration)])


@pytest.fixture(scope="module")
def optional(
    certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TlsBroker]:
    """Clients may show a certificate."""
    broker = TlsBroker(tmp_path_factory.mktemp("optional"), certificates, "optional")
    with broker:
        yield broker


@pytest.fixture(scope="module")
def required(
    certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TlsBroker]:
    """Clients must show a certificate."""
    broker = TlsBroker(tmp_path_factory.mktemp("required"), certificates, "required")
    with broker:
        yield broker


def uri(
    broker: TlsBroker,
    certificates: Certificates,
    *,
    client: str = "",
    ca: str = "ours",
    user: str = "guest:guest",
    mechanism: str = "PLAIN",
) -> str:
    options = {"cacertfile": certificates.path(ca), "auth_mechanism": mechanism}
    if client:
        options["certfile"] = certificates.path(client)
        options["keyfile"] = certificates.path(f"{client}.key")
    query = "&".join(f"{key}={value}" for key, value in options.items())
    return f"amqps://{user}@localhost:{broker.tls_port}/?{query}"


async def exchange_a_message(where: str, body: bytes = b"hello") -> None:
    async with connect(where) as connection, connection.channel(confirms=True) as channel:
        queue = (await channel.declare_queue(exclusive=True)).name
        await channel.publish(body, routing_key=queue)
        message = await channel.get(queue, no_ack=True)
        assert message is not None
        assert message.body == body


def test_messages_of_any_size_go_through_tls(
    optional: TlsBroker, certificates: Certificates
) -> None:
    where = uri(optional, certificates)
    run(exchange_a_message(where))
    run(exchange_a_message(where, bytes(range(256)) * 20_000))


def test_a_client_that_does_not_know_the_authority_refuses_the_broker(
    optional: TlsBroker, certificates: Certificates
) -> None:
    with pytest.raises(ConnectFailed, match=r"(?i)certificate"):
        run(exchange_a_message(uri(optional, certificates, ca="theirs")))


def test_external_logs_in_as_the_common_name_of_the_certificate(
    optional: TlsBroker, certificates: Certificates
) -> None:
    where = uri(optional, certificates, client="app", user=":", mechanism="EXTERNAL")
    run(exchange_a_message(where))


def test_external_is_refused_without_a_certificate_and_for_unknown_names(
    optional: TlsBroker, certificates: Certificates
) -> None:
    for client in ("", "nobody"):
        where = uri(optional, certificates, client=client, user=":", mechanism="EXTERNAL")
        with pytest.raises(LoginRefused):
            run(exchange_a_message(where))


def test_a_user_without_a_password_cannot_log_in_by_one(optional: TlsBroker) -> None:
    for login in ("app:", "app:app"):
        with pytest.raises(LoginRefused):
            run(exchange_a_message(f"amqp://{login}@{optional.host}:{optional.port}/"))


def test_external_is_not_offered_on_the_plain_listener(optional: TlsBroker) -> None:
    address = f"{optional.host}:{optional.port}"
    with pytest.raises(ConnectFailed, match="no mechanism EXTERNAL"):
        run(exchange_a_message(f"amqp://app:@{address}/?auth_mechanism=EXTERNAL"))


@pytest.mark.parametrize("client", ["", "stranger"])
def test_a_missing_or_foreign_certificate_is_refused_where_one_is_required(
    required: TlsBroker, certificates: Certificates, client: str
) -> None:
    # With TLS 1.3 the client may learn of it only when it reads: the connection fails anyway.
    with pytest.raises((ConnectFailed, ConnectionLost)):
        run(exchange_a_message(uri(required, certificates, client=client)))
    run(exchange_a_message(uri(required, certificates, client="app")))


def test_a_foreign_certificate_is_refused_where_one_is_optional(
    optional: TlsBroker, certificates: Certificates
) -> None:
    where = uri(optional, certificates, client="stranger", user=":", mechanism="EXTERNAL")
    with pytest.raises((ConnectFailed, ConnectionLost)):
        run(exchange_a_message(where))


def test_plain_amqp_on_the_tls_port_is_closed(
    optional: TlsBroker, certificates: Certificates
) -> None:
    with socket.create_connection((optional.host, optional.tls_port), timeout=20) as stream:
        stream.sendall(PROTOCOL_HEADER)
        answer = b""
        try:
            while data := stream.recv(4096):
                answer += data
        except ConnectionResetError:
            pass
    assert b"AMQP" not in answer
    run(exchange_a_message(uri(optional, certificates)))


def test_tls_on_the_plain_port_is_closed_with_the_protocol_header(optional: TlsBroker) -> None:
    context = ssl.create_default_context()
    with (
        socket.create_connection((optional.host, optional.port), timeout=20) as stream,
        pytest.raises(ssl.SSLError),
    ):
        context.wrap_socket(stream, server_hostname="localhost")


def test_old_versions_of_tls_are_refused(optional: TlsBroker, certificates: Certificates) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificates.path("ours"))
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection((optional.host, optional.tls_port), timeout=20) as stream,
        pytest.raises(ssl.SSLError),
    ):
        context.wrap_socket(stream, server_hostname="localhost")
