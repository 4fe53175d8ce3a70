"""TLS contexts, and the names in certificates."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from rhizome.security.tls import (
    ListenerTls,
    TlsError,
    certificate_names,
    link_context,
    server_context,
)

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


@dataclass(frozen=True)
class Settings:
    certificate: str = ""
    key: str = ""
    ca: str = ""
    verify_client: str = "none"
    minimum_version: str = "1.2"


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a self-signed certificate.pem and key.pem, which serves as authority too."""
    place = tmp_path_factory.mktemp("tls")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
        " -keyout key.pem -out certificate.pem -subj /O=Example/OU=Sales/CN=localhost"
    )
    subprocess.run(command.split(), cwd=place, check=True, capture_output=True, timeout=30)
    return place


def settings(pem: Path, **changes: str) -> Settings:
    values = {"certificate": str(pem / "certificate.pem"), "key": str(pem / "key.pem")}
    return Settings(**(values | changes))


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """Shake hands in memory; return the server's side."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    far = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [near, far]
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    return far


def client_context(pem: Path, *, certified: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(pem / "certificate.pem"))
    if certified:
        context.load_cert_chain(pem / "certificate.pem", pem / "key.pem")
    return context


def test_context_refuses_versions_before_the_minimum(pem: Path) -> None:
    assert server_context(settings(pem)).minimum_version == ssl.TLSVersion.TLSv1_2
    newest = server_context(settings(pem, minimum_version="1.3"))
    assert newest.minimum_version == ssl.TLSVersion.TLSv1_3


def test_client_without_a_certificate_is_served_unless_one_is_required(pem: Path) -> None:
    ca = str(pem / "certificate.pem")
    client = client_context(pem, certified=False)
    handshake(server_context(settings(pem)), client)
    side = handshake(server_context(settings(pem, ca=ca, verify_client="optional")), client)
    assert certificate_names(side.getpeercert()) == ("", "")
    with pytest.raises(ssl.SSLError):
        handshake(server_context(settings(pem, ca=ca, verify_client="required")), client)


def test_names_come_from_the_verified_certificate(pem: Path) -> None:
    ca = str(pem / "certificate.pem")
    server = server_context(settings(pem, ca=ca, verify_client="required"))
    side = handshake(server, client_context(pem, certified=True))
    assert certificate_names(side.getpeercert()) == ("CN=localhost,OU=Sales,O=Example", "localhost")


def test_unverified_certificate_has_no_names(pem: Path) -> None:
    side = handshake(server_context(settings(pem)), client_context(pem, certified=True))
    assert certificate_names(side.getpeercert()) == ("", "")


def test_attributes_of_one_part_of_a_name_are_told_from_parts_of_their_own() -> None:
    organization = (("organizationName", "x"),)
    both = (("commonName", "app"), ("commonName", "guest"))
    together = certificate_names({"subject": (organization, both)})
    apart = certificate_names({"subject": (organization, both[:1], both[1:])})
    assert together == ("CN=app+CN=guest,O=x", "guest")
    assert apart == ("CN=guest,CN=app,O=x", "guest")


def test_special_characters_of_a_name_are_escaped() -> None:
    certificate = {"subject": ((("commonName", "a,b+c\\d"),), (("userId", " #x "),))}
    assert certificate_names(certificate) == ("UID=\\ #x\\ ,CN=a\\,b\\+c\\\\d", "a,b+c\\d")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"certificate": ""}, "tls.certificate"),
        ({"certificate": "/nowhere/c.pem"}, "/nowhere/c.pem"),
        ({"key": "/nowhere/k.pem"}, "/nowhere/k.pem"),
        ({"verify_client": "required"}, "tls.ca"),
        ({"verify_client": "required", "ca": "/nowhere/ca.pem"}, "/nowhere/ca.pem"),
    ],
)
def test_unusable_settings_are_refused_by_name(
    pem: Path, changes: dict[str, str], named: str
) -> None:
    with pytest.raises(TlsError, match=named):
        server_context(settings(pem, **changes))


def test_key_of_another_certificate_is_refused(pem: Path, tmp_path: Path) -> None:
    command = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:prime256v1 -out other.pem"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True, timeout=30)
    with pytest.raises(TlsError, match="fit the certificate"):
        server_context(settings(pem, key=str(tmp_path / "other.pem")))


def test_encrypted_key_is_refused_instead_of_asked_about(pem: Path, tmp_path: Path) -> None:
    locked = tmp_path / "locked.pem"
    command = f"openssl pkey -in key.pem -aes256 -passout pass:x -out {locked}"
    subprocess.run(command.split(), cwd=pem, check=True, capture_output=True, timeout=30)
    with pytest.raises(TlsError, match="unencrypted"):
        server_context(settings(pem, key=str(locked)))


# --- certificates that are no good


def signed(place: Path, name: str, days: tuple[int, int], host: str) -> Path:
    """A certificate of the authority `authority` in `place`, good for these days from now."""
    now = datetime.now(UTC)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = place / name
    made.mkdir()
    for of, key, dates, file in (
        (issuer, keys[0], (-9, 9), "ca.pem"),
        (subject, keys[1], days, "certificate.pem"),
    ):
        builder = x509.CertificateBuilder(
            issuer,
            of,
            key.public_key(),
            x509.random_serial_number(),
            now + timedelta(days=dates[0]),
            now + timedelta(days=dates[1]),
        )
        is_authority = of == issuer
        builder = builder.add_extension(x509.BasicConstraints(is_authority, None), True)
        if not is_authority:
            names = x509.SubjectAlternativeName([x509.DNSName(host)])
            builder = builder.add_extension(names, False)
        certificate = builder.sign(keys[0], hashes.SHA256())
        (made / file).write_bytes(certificate.public_bytes(Encoding.PEM))
    (made / "key.pem").write_bytes(
        keys[1].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    return made


def of_links(made: Path) -> Settings:
    return Settings(
        str(made / "certificate.pem"),
        str(made / "key.pem"),
        str(made / "ca.pem"),
        verify_client="required",
    )


@pytest.mark.parametrize(
    ("days", "host", "fault"),
    [
        ((-2, 2), "localhost", ""),
        ((-2, -1), "localhost", "expired"),
        ((1, 2), "localhost", "not yet valid"),
        ((-2, 2), "elsewhere.example", "Hostname mismatch"),
    ],
)
def test_brokers_dial_only_who_has_a_certificate_for_now_and_for_its_host(
    tmp_path: Path, days: tuple[int, int], host: str, fault: str
) -> None:
    made = of_links(signed(tmp_path, "broker", days, host))
    listener, dialler = server_context(made), link_context(made)
    if not fault:
        handshake(listener, dialler)
        return
    with pytest.raises(ssl.SSLCertVerificationError, match=fault):
        handshake(listener, dialler)


def test_a_client_with_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    expired = of_links(signed(tmp_path, "expired", (-2, -1), "localhost"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(expired.certificate, expired.key)
    with pytest.raises(ssl.SSLError, match="expired"):
        handshake(server_context(expired), context)


# --- certificates that change


def make_certificate(place: Path, name: str) -> Path:
    made = place / name
    made.mkdir()
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
        f" -keyout key.pem -out certificate.pem -subj /O={name}/CN=localhost"
    )
    subprocess.run(command.split(), cwd=made, check=True, capture_output=True, timeout=30)
    return made


def test_new_handshakes_get_the_newest_certificate(pem: Path, tmp_path: Path) -> None:
    newer = make_certificate(tmp_path, "newer")
    listener = ListenerTls(settings(pem), "none")
    old_client, new_client = (client_context(each, certified=False) for each in (pem, newer))
    handshake(listener.context, old_client)
    listener.load(settings(newer))
    handshake(listener.context, new_client)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(listener.context, old_client)


def test_an_authority_that_is_gone_vouches_for_nobody(pem: Path, tmp_path: Path) -> None:
    newer = make_certificate(tmp_path, "newer")
    before = settings(pem, ca=str(pem / "certificate.pem"))
    listener = ListenerTls(before, "required")
    client = client_context(pem, certified=True)
    handshake(listener.context, client)
    listener.load(settings(pem, ca=str(newer / "certificate.pem")))
    with pytest.raises(ssl.SSLError):
        handshake(listener.context, client)


def test_files_that_cannot_be_used_leave_a_listener_as_it_was(pem: Path, tmp_path: Path) -> None:
    listener = ListenerTls(settings(pem), "none")
    newer = make_certificate(tmp_path, "newer")
    with pytest.raises(TlsError):
        listener.load(settings(pem, key=str(newer / "key.pem")))
    handshake(listener.context, client_context(pem, certified=False))


def test_sessions_are_not_resumed(pem: Path) -> None:
    context = server_context(settings(pem))
    assert context.num_tickets == 0
    assert context.options & ssl.OP_NO_TICKET
