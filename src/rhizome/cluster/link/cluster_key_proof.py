"""Cluster key proof: the mechanism RHIZOME-CLUSTER, by which both ends prove that they know the
cluster key.

    1  dialler    who I am, nonce, wish        in start-ok
    2  acceptor   who I am, nonce, wish        in secure
    3  dialler    hello, proofs                in secure-ok
    4  acceptor   hello, proof                 in a second secure
    5  dialler    nothing                      in secure-ok

A proof is an HMAC-SHA256 under a key derived from the cluster key, over everything that was said
before and the hello beside it. So the names and UUIDs of both, both nonces and both hellos are
bound in. No key is ever sent.

- A replayed proof fails: the other side's nonce is new.
- A reflected proof fails: the two directions have different labels.
- The dialler proves first: a stranger that merely connects to a broker learns only its name and
  UUID, and nothing with which a guess of the key could be tested.

While the cluster key is rotated a broker has several. The dialler proves that it knows each of its
keys; the acceptor takes the first of its own that fits and answers with a proof under that one. So
two brokers are linked if they share any key, whichever each of them has first.

``wish`` is what an end says of its side of the connection. ``mac`` says whether it wants MACs on
what follows (``mac_records.py``); it does unless TLS or a Unix socket protects the connection. On a
loopback address ``host`` tells this machine from others. There are MACs if both ends know them and
one wants them, unless both are on the same host. Older brokers have no wish.

The introductions are bound into both proofs, so nobody can take a wish away: a changed introduction
is a wrong proof. The keys of the MACs, one for each direction, are derived from the key that fitted
and from all that was said.

Tables carry the parts; unknown fields are ignored, as in hellos.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from rhizome.amqp.field_table import encode_table, read_table
from rhizome.cluster.link.broker_hello import (
    NAME_BYTES_MAX,
    Hello,
    HelloError,
    decode_hello,
    is_uuid,
)
from rhizome.errors import RhizomeError, SyntaxErrorFault

MECHANISM: Final = "RHIZOME-CLUSTER"
NONCE_BYTES: Final = 32
MESSAGE_BYTES_MAX: Final = 15 * 1024
"""The size limit of one step; below the frame limit for peers that the broker doesn't know yet."""

KEYS_MAX: Final = 4
"""How many keys one broker may have: two while the key is rotated, and some for a rotation that was
begun anew."""

FINGERPRINT_BYTES: Final = 6

_KEY_LABEL: Final = b"rhizome link key 1"
_DIALLER: Final = b"rhizome dialler 1"
_ACCEPTOR: Final = b"rhizome acceptor 1"
_MAC_OF_DIALLER: Final = b"rhizome mac of dialler 1"
_MAC_OF_ACCEPTOR: Final = b"rhizome mac of acceptor 1"
_FINGERPRINT_LABEL: Final = b"rhizome key fingerprint 1"


class ProofError(RhizomeError):
    """The other end didn't prove what it must; the text is for the log of this end."""


class Chance(Protocol):
    """The source of nonces and jitter: random.SystemRandom, or a seeded random.Random."""

    def random(self) -> float: ...

    def randbytes(self, n: int) -> bytes: ...


class LinkKey:
    """Secrets derived from one cluster key; never shown anywhere.

    ``fingerprint`` tells keys apart for people: nobody can compute the key from it, though a guess
    of the key could be tested with it.
    """

    def __init__(self, cluster_key: bytes) -> None:
        self._key = hmac.digest(cluster_key, _KEY_LABEL, "sha256")
        fingerprint = hmac.digest(cluster_key, _FINGERPRINT_LABEL, "sha256")
        self.fingerprint = fingerprint[:FINGERPRINT_BYTES].hex()

    def proof(self, label: bytes, *parts: bytes) -> bytes:
        mac = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in (label, *parts):
            # Lengths keep ("ab", "c") and ("a", "bc") apart.
            mac.update(len(part).to_bytes(8, "big") + part)
        return mac.digest()


class LinkKeys:
    """The keys of a broker: it proves with all of them, the first one foremost."""

    def __init__(self, *cluster_keys: bytes) -> None:
        self.keys = tuple(LinkKey(each) for each in cluster_keys)

    @property
    def fingerprints(self) -> tuple[str, ...]:
        return tuple(key.fingerprint for key in self.keys)

    def proofs(self, label: bytes, *parts: bytes) -> list[bytes]:
        return [key.proof(label, *parts) for key in self.keys]

    def fitting(self, proofs: Sequence[bytes], label: bytes, *parts: bytes) -> LinkKey | None:
        """The first key that one of the proofs was made with."""
        for key in self.keys:
            expected = key.proof(label, *parts)
            if any(hmac.compare_digest(proof, expected) for proof in proofs):
                return key
        return None


@dataclass(frozen=True, slots=True)
class Wish:
    """What an end says of its side of a connection.

    ``mac``: whether it wants MACs; None: it has none. ``host``: the machine that it runs on, if the
    connection has a loopback address. Two ends that say the same are on one machine, and nobody
    else is between them. A tunnel has loopback addresses, too, and two hosts.
    """

    mac: bool | None = None
    host: str = ""


NO_WISH: Final = Wish()


@dataclass(frozen=True, slots=True)
class Protection:
    """What two ends have agreed on: under which key, and how what follows is protected.

    ``mac_keys``: to send with and to receive with; None if there are no MACs. ``is_lacking``: one
    end wants MACs and the other, of an older release, has none.
    """

    fingerprint: str
    mac_keys: tuple[bytes, bytes] | None = None
    is_lacking: bool = False


def _agree(key: LinkKey, dials: bool, said: tuple[bytes, ...]) -> Protection:
    """What the two ends have agreed on. ``said``: all four steps."""
    one, other = (_read_wish(introduction) for introduction in said[:2])
    wishes = (one.mac, other.mac)
    if True not in wishes or (one.host and one.host == other.host):
        return Protection(key.fingerprint)
    if None in wishes:
        return Protection(key.fingerprint, is_lacking=True)
    dialler, acceptor = key.proof(_MAC_OF_DIALLER, *said), key.proof(_MAC_OF_ACCEPTOR, *said)
    return Protection(key.fingerprint, (dialler, acceptor) if dials else (acceptor, dialler))


class Dialler:
    """The dialling side: ``first``, ``prove``, ``verify``, each once and in this order.

    ``protection`` is there once the acceptor has proved itself.
    """

    protection: Protection

    def __init__(self, keys: LinkKeys, me: Hello, chance: Chance) -> None:
        self._keys = keys
        self._me = me
        self._nonce = chance.randbytes(NONCE_BYTES)
        self._introduction = b""
        self._said: tuple[bytes, ...] = ()

    def first(self, wish: Wish = NO_WISH) -> bytes:
        self._introduction = _introduce(self._me, self._nonce, wish)
        return self._introduction

    def prove(self, challenge: bytes) -> bytes:
        """Answer the acceptor's introduction."""
        _read_introduction(challenge)
        hello = self._me.encode()
        proofs = self._keys.proofs(_DIALLER, self._introduction, challenge, hello)
        parts: dict[str, object] = {"hello": hello, "proof": proofs[0]}
        if len(proofs) > 1:
            parts["proofs"] = proofs[1:]
        answer = encode_table(parts)
        self._said = (self._introduction, challenge, answer)
        return answer

    def verify(self, challenge: bytes) -> Hello:
        """The acceptor's hello, proved."""
        hello, proofs = _read_proofs(challenge)
        key = self._keys.fitting(proofs, _ACCEPTOR, *self._said, hello)
        if key is None:
            raise ProofError("it doesn't know the cluster key, or has another one")
        self.protection = _agree(key, True, (*self._said, challenge))
        return _proved_hello(hello, self._said[1])


class Acceptor:
    """The accepting side: ``introduce``, then ``verify``, then ``prove``.

    ``protection`` is there once this end has proved itself.
    """

    protection: Protection

    def __init__(self, keys: LinkKeys, me: Hello, chance: Chance, wish: Wish = NO_WISH) -> None:
        self._keys = keys
        self._key: LinkKey | None = None
        self._me = me
        self._introduction = _introduce(me, chance.randbytes(NONCE_BYTES), wish)
        self._theirs = b""
        self._said: tuple[bytes, ...] = ()

    def introduce(self, response: bytes) -> bytes:
        """Answer the dialler's introduction."""
        _read_introduction(response)
        self._theirs = response
        return self._introduction

    def verify(self, response: bytes) -> Hello:
        """The dialler's hello, proved."""
        hello, proofs = _read_proofs(response)
        self._key = self._keys.fitting(proofs, _DIALLER, self._theirs, self._introduction, hello)
        if self._key is None:
            name, uuid = _read_introduction(self._theirs)
            raise ProofError(
                f"what calls itself broker {name!r} ({uuid}) doesn't know the cluster key, or has "
                "another one"
            )
        self._said = (self._theirs, self._introduction, response)
        return _proved_hello(hello, self._theirs)

    def prove(self) -> bytes:
        assert self._key is not None, "verify comes first"
        hello = self._me.encode()
        proof = self._key.proof(_ACCEPTOR, *self._said, hello)
        answer = encode_table({"hello": hello, "proof": proof})
        self.protection = _agree(self._key, False, (*self._said, answer))
        return answer


def _introduce(me: Hello, nonce: bytes, wish: Wish) -> bytes:
    parts: dict[str, object] = {"name": me.name, "uuid": me.uuid, "nonce": nonce}
    if wish.mac is not None:
        parts["mac"] = wish.mac
    if wish.host:
        parts["host"] = wish.host
    return encode_table(parts)


def _read_introduction(data: bytes) -> tuple[str, str]:
    """Name and UUID. Nothing is proved yet, so both are bounded and safe to be shown in quotes."""
    table = _read(data)
    name, uuid, nonce = table.get("name"), table.get("uuid"), table.get("nonce")
    if not isinstance(name, str) or not isinstance(uuid, str):
        raise ProofError("an introduction without name and UUID")
    if not 0 < len(name.encode("utf-8", "surrogateescape")) <= NAME_BYTES_MAX:
        raise ProofError(f"an introduction whose name isn't 1 to {NAME_BYTES_MAX} bytes long")
    if not is_uuid(uuid):
        raise ProofError("an introduction whose UUID isn't 32 hexadecimal digits")
    if not isinstance(nonce, bytes) or len(nonce) < NONCE_BYTES:
        raise ProofError(f"an introduction without a nonce of {NONCE_BYTES} bytes")
    return name, uuid


def _read_wish(introduction: bytes) -> Wish:
    table = _read(introduction)
    mac, host = table.get("mac"), table.get("host")
    return Wish(
        mac if isinstance(mac, bool) else None,
        host if isinstance(host, str) else "",
    )


def _read_proofs(data: bytes) -> tuple[bytes, list[bytes]]:
    table = _read(data)
    hello, proof, more = table.get("hello"), table.get("proof"), table.get("proofs", [])
    if not isinstance(hello, bytes) or not isinstance(proof, bytes):
        raise ProofError("a proof without its parts")
    if not isinstance(more, list) or len(more) >= KEYS_MAX:
        raise ProofError(f"proofs that are no list of less than {KEYS_MAX}")
    return hello, [proof, *(each for each in more if isinstance(each, bytes))]


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
