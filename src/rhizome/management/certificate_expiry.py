"""Certificate expiry: when certificates end, read from their PEM files.

Python's standard library shows the dates of a peer's certificate only, so this module parses the
few fields of X.509 (RFC 5280, 4.1) up to them.
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_PEM: Final = re.compile(
    r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL | re.ASCII
)
_EXPLICIT_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17

UNITS: Final = {"days": 86_400, "weeks": 7 * 86_400, "months": 30 * 86_400, "years": 365 * 86_400}


def expired_by(path: str, now_ms: int, within_seconds: int) -> list[dict[str, object]]:
    """The certificates in a file that have expired, or will within a time; none without a file."""
    if not path:
        return []
    limit = now_ms / 1000 + within_seconds
    return [
        {"name": path, "expires": end.strftime("%Y-%m-%d %H:%M:%S")}
        for end in ends_of(Path(path).read_text())
        if end.timestamp() <= limit
    ]


def ends_of(pem: str) -> list[datetime]:
    """When each certificate in a text ends."""
    return [end_of(ssl.PEM_cert_to_DER_cert(found)) for found in _PEM.findall(pem)]


def end_of(der: bytes) -> datetime:
    certificate, _ = _content(der, 0)
    fields, _ = _content(der, certificate)
    at = fields
    if der[at] == _EXPLICIT_VERSION:
        at = _after(der, at)
    # serial number, signature algorithm, issuer
    for _ in range(3):
        at = _after(der, at)
    validity, _ = _content(der, at)
    end = _after(der, validity)
    start, stop = _content(der, end)
    text = der[start:stop].decode("ascii")
    if der[end] == _UTC_TIME:
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _content(der: bytes, at: int) -> tuple[int, int]:
    """The begin and end of the content of the element at an offset."""
    length = der[at + 1]
    start = at + 2
    if length & 0x80:
        size = length & 0x7F
        length = int.from_bytes(der[start : start + size], "big")
        start += size
    return start, start + length


def _after(der: bytes, at: int) -> int:
    return _content(der, at)[1]
