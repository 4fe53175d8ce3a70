"""Broker hello: a broker's name, persistent identity, incarnation, and where it belongs.

A ``Hello`` is what two brokers exchange when they link. On the wire it is an AMQP field table. A
receiver ignores the fields that it doesn't know, so that a broker of the next release can join. The
two speak the smaller of the two newest versions, if both still know that one.

A broker is addressed by its name everywhere, and the name counts only together with the UUID that
is bound to it (R7).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rhizome.amqp.field_table import encode_table, read_table
from rhizome.errors import RhizomeError, SyntaxErrorFault

PRIMARY: Final = "primary"
SECONDARY: Final = "secondary"
WITNESS: Final = "witness"
ROLES: Final = (PRIMARY, SECONDARY, WITNESS)

LINK_VERSIONS: Final = (1, 1)
"""The oldest and the newest version of the link protocol that this release speaks."""

PRODUCERS_BY_USER: Final = "producers-by-user"
"""Numbered messages are forwarded with the name of a producer that says whose it is."""
FETCHES: Final = "fetches"
"""A home may ask for a message that it can't read from its own disk (FETCH)."""
PLAIN_NAMES: Final = "plain-names"
"""It knows whose the names are that end in "-" and a broker's name (broker_generated_names.py)."""
PINS: Final = "pins"
"""It knows groups that people have pinned to a broker (`PinHome`)."""
DEATHS: Final = "deaths"
"""It takes certificates of death (DEATH, R15)."""
RESUMABLE: Final = "resumable-clients"
"""It hears which clients may come back elsewhere (RESUMABLE_CLIENTS, J12)."""
FEATURES: Final = (PRODUCERS_BY_USER, FETCHES, PLAIN_NAMES, PINS, DEATHS, RESUMABLE)
"""The features that brokers of this release announce, beyond the version of their link."""

NAME_BYTES_MAX: Final = 255
HELLO_BYTES_MAX: Final = 12 * 1024
"""Fits into one frame of the handshake, with room for the proofs around it."""

ADDRESSES_MAX: Final = 16
FEATURES_MAX: Final = 64

_HEX: Final = "0123456789abcdef"
_UUID_DIGITS: Final = 32
_INCARNATION_DIGITS_MAX: Final = 64


class HelloError(RhizomeError):
    """A peer's hello can't be understood; the text says which part."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a broker says about itself.

    Invariant: ``uuid`` is 32 hexadecimal digits and outlives restarts; ``incarnation`` is new at
    every start; ``cluster_uuid`` is empty until the store has been admitted to a cluster (R7), and
    ``primaries_hash`` counts only until then.
    """

    name: str
    uuid: str
    incarnation: str
    role: str = PRIMARY
    addresses: tuple[str, ...] = ()
    machine: str = ""
    cluster_uuid: str = ""
    primaries_hash: str = ""
    versions: tuple[int, int] = LINK_VERSIONS
    features: tuple[str, ...] = ()

    def votes(self) -> bool:
        """Whether a broker of this role may be in the membership: secondaries never vote (R5)."""
        return self.role != SECONDARY

    def encode(self) -> bytes:
        data = encode_table(
            {
                "name": self.name,
                "uuid": self.uuid,
                "incarnation": self.incarnation,
                "role": self.role,
                "addresses": list(self.addresses),
                "machine": self.machine,
                "cluster_uuid": self.cluster_uuid,
                "primaries_hash": self.primaries_hash,
                "version_min": self.versions[0],
                "version_max": self.versions[1],
                "features": list(self.features),
            }
        )
        if len(data) > HELLO_BYTES_MAX:
            raise HelloError(
                f"broker {self.name!r} has {len(data)} bytes to say about itself; the maximum is "
                f"{HELLO_BYTES_MAX}: use fewer or shorter addresses"
            )
        return data


def decode_hello(data: bytes) -> Hello:
    """Raises HelloError for anything that isn't a hello of some version."""
    if len(data) > HELLO_BYTES_MAX:
        raise HelloError(f"a hello of {len(data)} bytes; the maximum is {HELLO_BYTES_MAX}")
    try:
        table, _ = read_table(data, 0)
    except SyntaxErrorFault as fault:
        raise HelloError(f"a hello that is no field table: {fault.text}") from None
    versions = (_number(table, "version_min"), _number(table, "version_max"))
    if not 0 < versions[0] <= versions[1]:
        raise HelloError(f"a hello with the versions {versions[0]} to {versions[1]}")
    role = _text(table, "role")
    if role not in ROLES:
        raise HelloError(f"a hello with the role {role[:40]!r}; known are {', '.join(ROLES)}")
    return Hello(
        name=_name(table),
        uuid=_uuid(table, "uuid"),
        incarnation=_incarnation(table),
        role=role,
        addresses=_texts(table, "addresses", ADDRESSES_MAX),
        machine=_text(table, "machine"),
        cluster_uuid=_optional_uuid(table, "cluster_uuid"),
        primaries_hash=_text(table, "primaries_hash"),
        versions=versions,
        features=_texts(table, "features", FEATURES_MAX),
    )


def negotiated_version(mine: tuple[int, int], theirs: tuple[int, int]) -> int:
    """The newest version that both speak; 0 if there is none."""
    newest = min(mine[1], theirs[1])
    return newest if newest >= max(mine[0], theirs[0]) else 0


def hash_primaries(names: Iterable[str]) -> str:
    """A hash of the configured list of primaries, in whatever order it was written (R7)."""
    sha = hashlib.sha256()
    for name in sorted(names):
        encoded = name.encode("utf-8", "surrogateescape")
        sha.update(len(encoded).to_bytes(4, "big") + encoded)
    return sha.hexdigest()


def _text(table: dict[str, object], field: str) -> str:
    value = table.get(field, "")
    if not isinstance(value, str):
        raise HelloError(f"a hello whose {field} isn't a text")
    return value


def _number(table: dict[str, object], field: str) -> int:
    value = table.get(field)
    if not isinstance(value, int) or isinstance(value, bool):
        raise HelloError(f"a hello whose {field} isn't a number")
    return value


def _texts(table: dict[str, object], field: str, count_max: int) -> tuple[str, ...]:
    value = table.get(field, [])
    if not isinstance(value, list) or len(value) > count_max:
        raise HelloError(f"a hello whose {field} isn't a list of at most {count_max}")
    texts = tuple(item for item in value if isinstance(item, str))
    if len(texts) != len(value):
        raise HelloError(f"a hello whose {field} aren't all texts")
    return texts


def _name(table: dict[str, object]) -> str:
    name = _text(table, "name")
    if not 0 < len(name.encode("utf-8", "surrogateescape")) <= NAME_BYTES_MAX:
        raise HelloError(f"a hello whose name is empty or longer than {NAME_BYTES_MAX} bytes")
    return name


def is_uuid(text: str) -> bool:
    """Whether this is how a broker's or cluster's UUID is written."""
    return len(text) == _UUID_DIGITS and all(digit in _HEX for digit in text)


def _uuid(table: dict[str, object], field: str) -> str:
    value = _text(table, field)
    if not is_uuid(value):
        raise HelloError(f"a hello whose {field} isn't {_UUID_DIGITS} hexadecimal digits")
    return value


def _incarnation(table: dict[str, object]) -> str:
    value = _text(table, "incarnation")
    if not 0 < len(value) <= _INCARNATION_DIGITS_MAX or any(digit not in _HEX for digit in value):
        raise HelloError("a hello whose incarnation isn't a hexadecimal number")
    return value


def _optional_uuid(table: dict[str, object], field: str) -> str:
    return _uuid(table, field) if _text(table, field) else ""
