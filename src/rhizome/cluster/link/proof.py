"""The mechanism RHIZOME-CLUSTER: both ends prove that they know the cluster key.

    1  dialler    who I am, nonce              in start-ok
    2  acceptor   who I am, nonce              in secure
    3  dialler    hello, proof                 in secure-ok
    4  acceptor   hello, proof                 in a second secure
    5  dialler    nothing                      in secure-ok

A proof is an HMAC-SHA256 under a key derived from the cluster key, over everything that was said
before and the hello beside it, so the names and UUIDs of both, both nonces and both hellos are
bound in. The key itself is never sent.

- A replayed proof fails: the other side's nonce is new.
- A reflected proof fails: the two directions have different labels.
- The dialler proves first: whoever merely connects to a broker learns nothing that a guess of the
  key could be tested with, and of the broker only its name and UUID.

Tables carry the parts; unknown fields are ignored, as in hellos.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final, Protocol

from rhizome.amqp.values import encode_table, read_table
from rhizome.cluster.identity import Hello, HelloError, decode_hello
from rhizome.errors import RhizomeError, SyntaxErrorFault

MECHANISM: Final = "RHIZOME-CLUSTER"
NONCE_BYTES: Final = 32
MESSAGE_BYTES_MAX: Final = 15 * 1024
"""Of one step; below the frame limit that the broker has for those it doesn't know yet."""

_KEY_LABEL: Final = b"rhizome link key 1"
_DIALLER: Final = b"rhizome dialler 1"
_ACCEPTOR: Final = b"rhizome acceptor 1"


class ProofError(RhizomeError):
    """The other end didn't prove what it must; the text is for the log of this end."""


class Chance(Protocol):
    """Where nonces and jitter come from: random.SystemRandom, or a seeded random.Random."""

    def random(self) -> float: ...

    def randbytes(self, n: int) -> bytes: ...


class LinkKey:
    """What is derived from the cluster key; shows itself nowhere."""

    def __init__(self, cluster_key: bytes) -> None:
        self._key = hmac.digest(cluster_key, _KEY_LABEL, "sha256")

    def proof(self, label: bytes, *parts: bytes) -> bytes:
        mac = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in (label, *parts):
            # Lengths keep ("ab", "c") and ("a", "bc") apart.
            mac.update(len(part).to_bytes(8, "big") + part)
        return mac.digest()


class Dialler:
    """The dialling side: ``first``, ``prove``, ``verify``, each once and in this order."""

    def __init__(self, key: LinkKey, me: Hello, chance: Chance) -> None:
        self._key = key
        self._me = me
        self._introduction = _introduce(me, chance)
        self._said: tuple[bytes, ...] = ()

    def first(self) -> bytes:
        return self._introduction

    def prove(self, challenge: bytes) -> bytes:
        """Answer the acceptor's introduction."""
        _read_introduction(challenge)
        hello = self._me.encode()
        proof = self._key.proof(_DIALLER, self._introduction, challenge, hello)
        answer = encode_table({"hello": hello, "proof": proof})
        self._said = (self._introduction, challenge, answer)
        return answer

    def verify(self, challenge: bytes) -> Hello:
        """The acceptor's hello, proved."""
        hello, proof = _read_proof(challenge)
        expected = self._key.proof(_ACCEPTOR, *self._said, hello)
        if not hmac.compare_digest(proof, expected):
            raise ProofError("it doesn't know the cluster key, or has another one")
        return _proved_hello(hello, self._said[1])


class Acceptor:
    """The accepting side: ``introduce``, then ``verify``, then ``prove``."""

    def __init__(self, key: LinkKey, me: Hello, chance: Chance) -> None:
        self._key = key
        self._me = me
        self._introduction = _introduce(me, chance)
        self._theirs = b""
        self._said: tuple[bytes, ...] = ()

    def introduce(self, response: bytes) -> bytes:
        """Answer the dialler's introduction."""
        _read_introduction(response)
        self._theirs = response
        return self._introduction

    def verify(self, response: bytes) -> Hello:
        """The dialler's hello, proved."""
        hello, proof = _read_proof(response)
        expected = self._key.proof(_DIALLER, self._theirs, self._introduction, hello)
        if not hmac.compare_digest(proof, expected):
            name, uuid = _read_introduction(self._theirs)
            raise ProofError(
                f"what calls itself broker {name!r} ({uuid}) doesn't know the cluster key, or has "
                "another one"
            )
        self._said = (self._theirs, self._introduction, response)
        return _proved_hello(hello, self._theirs)

    def prove(self) -> bytes:
        hello = self._me.encode()
        return encode_table(
            {"hello": hello, "proof": self._key.proof(_ACCEPTOR, *self._said, hello)}
        )


def _introduce(me: Hello, chance: Chance) -> bytes:
    return encode_table({"name": me.name, "uuid": me.uuid, "nonce": chance.randbytes(NONCE_BYTES)})


def _read_introduction(data: bytes) -> tuple[str, str]:
    table = _read(data)
    name, uuid, nonce = table.get("name"), table.get("uuid"), table.get("nonce")
    if not isinstance(name, str) or not isinstance(uuid, str):
        raise ProofError("an introduction without name and UUID")
    if not isinstance(nonce, bytes) or len(nonce) < NONCE_BYTES:
        raise ProofError(f"an introduction without a nonce of {NONCE_BYTES} bytes")
    return name, uuid


def _read_proof(data: bytes) -> tuple[bytes, bytes]:
    table = _read(data)
    hello, proof = table.get("hello"), table.get("proof")
    if not isinstance(hello, bytes) or not isinstance(proof, bytes):
        raise ProofError("a proof without its parts")
    return hello, proof


def _read(data: bytes) -> dict[str, object]:
    if len(data) > MESSAGE_BYTES_MAX:
        raise ProofError(f"a step of {len(data)} bytes; the maximum is {MESSAGE_BYTES_MAX}")
    try:
        table, _ = read_table(data, 0)
    except SyntaxErrorFault as fault:
        raise ProofError(f"a step that is no field table: {fault.text}") from None
    return table


def _proved_hello(data: bytes, introduction: bytes) -> Hello:
    try:
        hello = decode_hello(data)
    except HelloError as error:
        raise ProofError(str(error)) from None
    if (hello.name, hello.uuid) != _read_introduction(introduction):
        raise ProofError(f"broker {hello.name!r} introduced itself under another name or UUID")
    return hello
