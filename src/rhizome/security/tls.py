"""TLS contexts of listeners and links, and the names in a client's certificate."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from rhizome.errors import RhizomeError
from rhizome.security.tls_empty_record_limit import MeteredTls

VERIFY_NONE: Final = "none"
VERIFY_OPTIONAL: Final = "optional"
VERIFY_REQUIRED: Final = "required"

_VERIFY_MODES: Final = {
    VERIFY_NONE: ssl.CERT_NONE,
    VERIFY_OPTIONAL: ssl.CERT_OPTIONAL,
    VERIFY_REQUIRED: ssl.CERT_REQUIRED,
}
_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

# Attribute names as RFC 4514 abbreviates them; others are written as OpenSSL calls them.
_ABBREVIATIONS: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}


class TlsError(RhizomeError):
    """TLS settings that no listener can be started with."""


class TlsSettings(Protocol):
    """The [tls] section of the configuration; empty paths are absent ones."""

    @property
    def certificate(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def ca(self) -> str: ...
    @property
    def verify_client(self) -> str: ...
    @property
    def minimum_version(self) -> str: ...


class ListenerTls:
    """TLS of listeners, whose certificate, key and authorities can change while they listen.

    A handshake begins with `context` and goes on with the newest one: OpenSSL asks for it when it
    has read the client's hello. Connections that exist keep what they were made with. Whether
    clients must show a certificate and the oldest version stay as they were at the start.
    """

    def __init__(self, settings: TlsSettings, verify_client: str) -> None:
        self._verify_client = verify_client
        self.context = server_context(settings, verify_client)
        self._newest = self.context
        self.context.sni_callback = self._choose

    def load(self, settings: TlsSettings) -> None:
        """Read the files again; raises TlsError, and then everything stays as it was."""
        self._newest = server_context(settings, self._verify_client)

    def _choose(self, handshake: ssl.SSLObject, name: str, context: ssl.SSLContext) -> None:
        handshake.context = self._newest


def server_context(settings: TlsSettings, verify_client: str = "") -> ssl.SSLContext:
    """The context of a TLS listener. Raises TlsError that names the file at fault.

    `verify_client`: instead of the one of the settings.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[settings.minimum_version]
    # A client must not make the broker pay for new handshakes inside a connection. Sessions are
    # not resumed: a ticket would vouch for a client whose authority is no longer trusted.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    # Nor for new keys without end, which TLS 1.3 has instead.
    context.sslobject_class = MeteredTls
    _load_certificate(context, settings)
    context.verify_mode = _VERIFY_MODES[verify_client or settings.verify_client]
    if context.verify_mode != ssl.CERT_NONE:
        _load_authorities(context, settings)
    return context


def link_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context that links to other brokers are dialled with: both ends show a certificate."""
    if settings.verify_client == VERIFY_NONE:
        raise TlsError(
            "cluster.tls demands certificates of other brokers: set tls.verify_client to"
            f' "{VERIFY_OPTIONAL}" or "{VERIFY_REQUIRED}"'
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _VERSIONS[settings.minimum_version]
    _load_certificate(context, settings)
    _load_authorities(context, settings)
    return context


def _load_certificate(context: ssl.SSLContext, settings: TlsSettings) -> None:
    if not settings.certificate:
        raise TlsError("a TLS listener needs tls.certificate (PEM, with its chain) and tls.key")
    for key, path in (("certificate", settings.certificate), ("key", settings.key)):
        _check_file(f"tls.{key}", path)
    try:
        context.load_cert_chain(settings.certificate, settings.key or None, _no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise TlsError(
            f"certificate {settings.certificate} and key {settings.key or settings.certificate}"
            f" can't be used: {error}. The key must be unencrypted PEM and fit the certificate"
        ) from error


def _load_authorities(context: ssl.SSLContext, settings: TlsSettings) -> None:
    if not settings.ca:
        raise TlsError(
            "certificates of clients can't be verified without tls.ca, the certificates of the"
            " authorities that sign them"
        )
    _check_file("tls.ca", settings.ca)
    try:
        context.load_verify_locations(cafile=settings.ca)
    except (ssl.SSLError, OSError) as error:
        raise TlsError(f"tls.ca {settings.ca} holds no usable certificate: {error}") from error


def _check_file(key: str, path: str) -> None:
    if path and not Path(path).is_file():
        raise TlsError(f"{key}: there is no file {path}")


def _no_password() -> str:
    # Without this OpenSSL would ask on the terminal and hang a broker that has none.
    raise ValueError("the key is encrypted")


def certificate_names(certificate: Mapping[str, object] | None) -> tuple[str, str]:
    """(subject, common name) of what `SSLObject.getpeercert()` returned; empty without one.

    getpeercert gives a filled mapping only for a certificate that was verified. The subject is
    written as RFC 4514 says, most specific attribute first: "CN=app,OU=Sales,O=Example".
    Attributes of one part are joined by "+", so that no other subject is written alike.
    """
    if not certificate:
        return "", ""
    names = _relative_names(certificate.get("subject"))
    common_names = [value for each in names for name, value in each if name == "commonName"]
    written = ["+".join(_written(*attribute) for attribute in each) for each in names]
    return ",".join(reversed(written)), common_names[-1] if common_names else ""


def _relative_names(subject: object) -> list[list[tuple[str, str]]]:
    """The parts of a subject, each with one attribute, or several that belong together."""
    if not isinstance(subject, tuple):
        return []
    return [[(str(name), str(value)) for name, value in each] for each in subject]


def _written(name: str, value: str) -> str:
    return f"{_ABBREVIATIONS.get(name, name)}={_escape(value)}"


def _escape(value: str) -> str:
    escaped = "".join("\\" + c if c in '\\,+"<>;' else c for c in value)
    if escaped.startswith(("#", " ")):
        escaped = "\\" + escaped
    if escaped.endswith(" ") and len(value) > 1:
        escaped = escaped[:-1] + "\\ "
    return escaped
