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

    def write_keys(self, directory: Path) -> str:
        """All three, as a JSON Web Key Set."""
        of_rsa = self.rsa.public_key().public_numbers()
        of_ec = self.ec.public_key().public_numbers()
        keys = [
            {
                "kty": "RSA",
                "kid": "rsa",
                "alg": "RS256",
                "use": "sig",
                "n": encoded(of_rsa.n.to_bytes(256, "big")).decode(),
                "e": encoded(of_rsa.e.to_bytes(3, "big")).decode(),
            },
            {
                "kty": "EC",
                "kid": "ec",
                "crv": "P-256",
                "x": encoded(of_ec.x.to_bytes(32, "big")).decode(),
                "y": encoded(of_ec.y.to_bytes(32, "big")).decode(),
            },
            {"kty": "oct", "kid": "oct", "alg": "HS256", "k": encoded(SHARED).decode()},
        ]
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
