"""The TLS listener: certificates of both sides, login by certificate, clients that do it wrong."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from rhizome.client import ConnectFailed, ConnectionLost, connect
from rhizome.errors import LoginRefused, NotAllowed
from rhizome.testing.broker_process import BrokerProcess, wait_until
from rhizome.testing.free_ports import free_port
from tests.key_updates import KeyUpdatingClient
from tests.process.helpers import PROTOCOL_HEADER, run

pytestmark = [
    pytest.mark.rhizome_only,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl"),
]

OPENSSL_SECONDS_MAX: Final = 30
STRANGERS: Final = 20
KEY_UPDATES_MAX: Final = 200_000
"""More than fit into the buffers of a socket."""

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

    def copy(self, name: str, to: str) -> None:
        """Put one certificate in the place of another, as a renewal does: key first, each whole."""
        for kind in (".key", ""):
            fresh = self.directory / "fresh.pem"
            shutil.copy(self.path(name + kind), fresh)
            fresh.replace(self.path(to + kind))

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
https = ["127.0.0.1:{https_port}"]

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

    def __init__(
        self, directory: Path, certificates: Certificates, verify: str, server: str = "server"
    ) -> None:
        self.tls_port = free_port()
        self.https_port = free_port()
        directory.mkdir(parents=True, exist_ok=True)
        self.configuration = directory / "rhizome.toml"
        self.configuration.write_text(
            CONFIGURATION.format(
                port=self.tls_port,
                https_port=self.https_port,
                server=certificates.path(server),
                key=certificates.path(f"{server}.key"),
                ca=certificates.path("ours"),
                verify=verify,
            )
        )
        super().__init__(directory, arguments=["--config", str(self.configuration)])


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


@pytest.mark.parametrize("listener", ["tls_port", "https_port"])
def test_a_stranger_who_changes_its_key_without_end_is_closed(
    optional: TlsBroker, certificates: Certificates, listener: str
) -> None:
    address = ("127.0.0.1", getattr(optional, listener))
    with socket.create_connection(address, timeout=30) as stream:
        stream.settimeout(None)  # the client below reads and writes by itself
        client = KeyUpdatingClient(stream)
        assert client.shake_hands()
        sent = 0
        while sent < KEY_UPDATES_MAX and client.update_key():
            sent += 1
    assert sent < KEY_UPDATES_MAX, "nobody has closed the connection"
    run(exchange_a_message(uri(optional, certificates)))


def test_a_stranger_who_does_not_answer_the_end_of_tls_keeps_no_socket(
    certificates: Certificates, tmp_path: Path
) -> None:
    broker = TlsBroker(tmp_path, certificates, "optional")
    broker.configuration.write_text(
        broker.configuration.read_text() + '[limits]\nhandshake_timeout = "1s"\n'
    )
    with broker, contextlib.ExitStack() as stack:
        files = Path(f"/proc/{broker.pid}/fd")
        before = len(list(files.iterdir()))
        context = trusting(certificates)
        for _ in range(STRANGERS):
            stream = stack.enter_context(socket.create_connection(("127.0.0.1", broker.tls_port)))
            stack.enter_context(context.wrap_socket(stream, server_hostname="localhost"))
        assert len(list(files.iterdir())) >= before + STRANGERS
        # Event loops would wait half a minute for them by themselves.
        wait_until(
            lambda: len(list(files.iterdir())) < before + STRANGERS // 2, "sockets to go", 20
        )


def test_a_broker_without_its_certificate_leaves_no_store_behind(tmp_path: Path) -> None:
    """The definitions of a first try would count for ever."""
    file = tmp_path / "rhizome.toml"
    file.write_text(f'[listen]\ntls = [":0"]\n[tls]\ncertificate = "{tmp_path}/none.pem"\n')
    command = [sys.executable, "-m", "rhizome", "serve", "--config", str(file)]
    command += ["--data", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "there is no file" in done.stderr
    assert not (tmp_path / "data").exists()


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


# --- HTTPS


def trusting(certificates: Certificates, ca: str = "ours") -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificates.path(ca))


def call_https(
    port: int, context: ssl.SSLContext, target: str, body: Any = None, host: str = "localhost"
) -> http.client.HTTPResponse:
    connection = http.client.HTTPSConnection(host, port, timeout=20, context=context)
    login = b64encode(b"guest:guest").decode()
    headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
    connection.request(
        "GET" if body is None else "POST", target, body and json.dumps(body), headers
    )
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def test_api_and_console_are_served_over_https(
    optional: TlsBroker, certificates: Certificates
) -> None:
    context = trusting(certificates)
    assert call_https(optional.https_port, context, "/api/overview").status == 200
    assert call_https(optional.https_port, context, "/").status == 200
    login = {"user": "guest", "password": "guest"}
    answer = call_https(optional.https_port, context, "/api/rhizome/session", login)
    assert answer.status == 201
    assert "secure" in answer.headers["set-cookie"].lower(), "never sent without TLS again"


def test_plain_http_on_the_https_port_gets_nothing(optional: TlsBroker) -> None:
    with socket.create_connection((optional.host, optional.https_port), timeout=20) as stream:
        stream.sendall(b"GET /api/overview HTTP/1.1\r\nhost: localhost\r\n\r\n")
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while data := stream.recv(4096):
                answer += data
    assert b"HTTP" not in answer


# --- certificates and configuration that change


def shown_by(port: int) -> bytes:
    """The certificate that a listener shows."""
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port), timeout=20))


@pytest.fixture
def changing(certificates: Certificates, tmp_path: Path) -> Iterator[TlsBroker]:
    """A broker whose certificate is replaced, with the name `changing`."""
    made = Certificates(certificates.directory)
    made.make("changing", "ours", "/CN=localhost", "subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    made.make("renewed", "ours", "/CN=localhost", "subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    with TlsBroker(tmp_path / "changing", made, "none", "changing") as broker:
        yield broker


def test_renewed_certificates_are_shown_without_a_restart(
    changing: TlsBroker, certificates: Certificates
) -> None:
    ports = (changing.tls_port, changing.https_port)
    old = {shown_by(port) for port in ports}
    assert len(old) == 1
    stays = socket.create_connection((changing.host, changing.tls_port), timeout=20)
    kept = trusting(certificates).wrap_socket(stays, server_hostname="localhost")
    certificates.copy("renewed", "changing")
    for port in ports:
        wait_until(lambda port=port: shown_by(port) not in old, "the renewed certificate")  # type: ignore[misc]
    run(exchange_a_message(uri(changing, certificates)))
    with kept:
        kept.sendall(PROTOCOL_HEADER)
        assert kept.recv(4096), "a connection that exists keeps what it was made with"


def test_a_broken_renewal_leaves_the_certificate_in_use(
    changing: TlsBroker, certificates: Certificates
) -> None:
    old = shown_by(changing.tls_port)
    shutil.copy(certificates.path("app.key"), certificates.path("changing.key"))
    wait_until(
        lambda: "certificates and keys are left as they were" in changing.printed(), "the complaint"
    )
    assert shown_by(changing.tls_port) == old
    os.kill(changing.pid, signal.SIGHUP)
    run(exchange_a_message(uri(changing, certificates)))


def test_sighup_reads_the_configuration_again(
    changing: TlsBroker, certificates: Certificates
) -> None:
    text = changing.configuration.read_text()
    changed = text.replace("[users.app]", '[users.app]\ntags = ["management"]', 1)
    changed += (
        '\n[limits]\nconnections_max = 1\n[log]\nlevel = "debug"\n[journal]\nflush = "never"\n'
    )
    changing.configuration.write_text(changed)

    async def scenario() -> None:
        async with connect(uri(changing, certificates)):
            os.kill(changing.pid, signal.SIGHUP)
            wait_until(lambda: "configuration read again" in changing.printed(), "the new one")
            with pytest.raises(NotAllowed, match=r"connection limit \(1\) is reached"):
                await exchange_a_message(uri(changing, certificates))

    run(scenario())
    printed = changing.printed()
    assert "changed: limits.connections_max, log.level" in printed
    assert "takes effect with a restart: journal.flush" in printed
    assert "[users] are for a new store only" in printed
    changing.configuration.write_text(text + '\n[limits]\nconnections_max = "few"\n')
    os.kill(changing.pid, signal.SIGHUP)
    wait_until(lambda: "configuration is left as it was" in changing.printed(), "the complaint")


# --- links


LINKED: Final = """
[broker]
name = "{name}"
[listen]
tls = ["127.0.0.1:{port}"]
[tls]
certificate = "{directory}/{name}.pem"
key = "{directory}/{name}.key.pem"
ca = "{directory}/trusted.pem"
verify_client = "optional"
[cluster]
key_file = "{directory}/cluster.key"
tls = true
primaries = ["b1=127.0.0.1:{one}", "b2=127.0.0.1:{two}"]
machine = "machine-{name}"
"""


def test_links_of_a_cluster_move_to_another_authority_without_a_restart(tmp_path: Path) -> None:
    """Both brokers get certificates of a new authority; each new link is made with them."""
    made = Certificates(tmp_path)
    for authority in ("old", "new"):
        made.make_authority(authority)
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1\n"
    for broker in ("b1", "b2"):
        for authority in ("old", "new"):
            made.make(f"{broker}-{authority}", authority, f"/CN={broker}", names)
        made.copy(f"{broker}-old", broker)
    (tmp_path / "cluster.key").write_text(secrets.token_urlsafe(32))
    (tmp_path / "cluster.key").chmod(0o600)
    trusted = tmp_path / "trusted.pem"
    shutil.copy(made.path("old"), trusted)
    ports = {name: free_port() for name in ("b1", "b2")}
    brokers = {}
    for name, port in ports.items():
        configuration = tmp_path / f"{name}.toml"
        configuration.write_text(
            LINKED.format(
                name=name, port=port, directory=tmp_path, one=ports["b1"], two=ports["b2"]
            )
        )
        brokers[name] = BrokerProcess(tmp_path / name, arguments=["--config", str(configuration)])
    try:
        for process in brokers.values():
            process.launch()
        for process in brokers.values():
            process.wait_until_ready(60)
        # First both trust both, then both show the new ones, then both trust the new one only.
        trusted.write_bytes(
            Path(made.path("old")).read_bytes() + Path(made.path("new")).read_bytes()
        )
        for name in brokers:
            made.copy(f"{name}-new", name)
        shutil.copy(made.path("new"), trusted)
        for process in brokers.values():
            os.kill(process.pid, signal.SIGHUP)
        for name, port in ports.items():
            wanted = ssl.PEM_cert_to_DER_cert(Path(made.path(f"{name}-new")).read_text())
            wait_until(lambda port=port, wanted=wanted: shown_by(port) == wanted, "the new one")  # type: ignore[misc]
        brokers["b2"].restart()
        shutil.copy(made.path("b2-old"), made.path("b2"))
        shutil.copy(made.path("b2-old.key"), made.path("b2.key"))
        brokers["b2"].stop_cleanly()
        brokers["b2"].launch()
        wait_until(lambda: "no link with b1" in brokers["b2"].printed(), "b2 to be refused", 30)
    finally:
        for process in brokers.values():
            process.close()
