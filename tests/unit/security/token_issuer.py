"""An issuer of access tokens, for tests."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

SHARED = b"a shared secret of at least thirty-two bytes"


def encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


class Issuer:
    """Has a key of each kind: `rsa`, `ec` and `oct` are their names."""

    def __init__(self) -> None:
        self.rsa = rsa.generate_private_key(65537, 2048)
        self.ec = ec.generate_private_key(ec.SECP256R1())

    def rsa_pem(self) -> bytes:
        return self.rsa.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def write_pem(self, directory: Path) -> str:
        path = directory / "rsa.pem"
        path.write_bytes(self.rsa_pem())
        return str(path)

    def public_key(self, kid: str, name: str = "") -> dict[str, Any]:
        """The key `rsa` or `ec` as issuers publish it, under another name if need be."""
        if kid == "ec":
            point = self.ec.public_key().public_numbers()
            x, y = (encoded(each.to_bytes(32, "big")).decode() for each in (point.x, point.y))
            return {"kty": "EC", "kid": name or kid, "crv": "P-256", "x": x, "y": y}
        numbers = self.rsa.public_key().public_numbers()
        return {
            "kty": "RSA",
            "kid": name or kid,
            "alg": "RS256",
            "use": "sig",
            "n": encoded(numbers.n.to_bytes(numbers.n.bit_length() // 8, "big")).decode(),
            "e": encoded(numbers.e.to_bytes(3, "big")).decode(),
        }

    def shared_key(self) -> dict[str, Any]:
        return {"kty": "oct", "kid": "oct", "alg": "HS256", "k": encoded(SHARED).decode()}

    def write_keys(self, directory: Path) -> str:
        """All three, as a JSON Web Key Set."""
        keys = [self.public_key("rsa"), self.public_key("ec"), self.shared_key()]
        path = directory / "keys.json"
        path.write_text(json.dumps({"keys": keys}))
        return str(path)

    def token(self, kid: str = "rsa", header: dict[str, Any] | None = None, **claims: Any) -> bytes:
        algorithm = {"rsa": "RS256", "ec": "ES256", "oct": "HS256"}[kid]
        head = {"typ": "JWT", "alg": algorithm, "kid": kid, **(header or {})}
        head = {name: value for name, value in head.items() if value is not None}
        signed = b".".join(encoded(json.dumps(part).encode()) for part in (head, claims))
        return signed + b"." + encoded(self.sign(kid, signed))

    def sign(self, kid: str, signed: bytes) -> bytes:
        if kid == "oct":
            return hmac.new(SHARED, signed, hashlib.sha256).digest()
        if kid == "rsa":
            return self.rsa.sign(signed, PKCS1v15(), hashes.SHA256())
        pair = decode_dss_signature(self.ec.sign(signed, ec.ECDSA(hashes.SHA256())))
        return b"".join(half.to_bytes(32, "big") for half in pair)
