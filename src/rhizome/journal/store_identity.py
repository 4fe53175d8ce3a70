"""Store identity: a small file that says which store a directory holds.

Its checksum covers all other fields, in one spelling, so that a reader can check fields that it
doesn't know. Release 0.1.1 ignores the checksum and writes none, so a file without one is accepted;
the next start with segments that name the same store adds it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from rhizome.journal.errors import CorruptStore, ForeignStore
from rhizome.journal.files import Files
from rhizome.journal.records import crc32c

STORE_VERSION: Final = 1
IDENTITY_NAME: Final = "store.json"
CHECKSUM: Final = "crc"


@dataclass(frozen=True)
class StoreIdentity:
    """The identity of a store; `cluster_uuid` is empty until it has joined a cluster."""

    uuid: bytes
    cluster_uuid: bytes = b""


def load_identity(root: Files, new_uuid: bytes = b"") -> StoreIdentity:
    """The identity in a store's directory; with `new_uuid` a new one is made if there is none."""
    if IDENTITY_NAME not in root.names():
        if not new_uuid:
            raise ForeignStore(f"there is no {IDENTITY_NAME}: this is not a store")
        identity = StoreIdentity(new_uuid)
        save_identity(root, identity)
        return identity
    try:
        fields = json.loads(root.load(IDENTITY_NAME))
        written = fields.get(CHECKSUM)
        version = int(fields["version"])
        identity = StoreIdentity(
            bytes.fromhex(fields["uuid"]), bytes.fromhex(fields["cluster_uuid"])
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(f"can't be read ({error})") from error
    # Before the version: a flipped bit in it doesn't mean a newer program.
    if written is not None and written != _checksum(fields):
        raise _damaged(f"is damaged (its checksum is {written} and should be {_checksum(fields)})")
    if version > STORE_VERSION:
        raise ForeignStore(
            f"the store has version {version} and this program knows up to {STORE_VERSION}: "
            "start the newer program that wrote it"
        )
    return identity


def save_identity(root: Files, identity: StoreIdentity) -> None:
    fields: dict[str, object] = {
        "version": STORE_VERSION,
        "uuid": identity.uuid.hex(),
        "cluster_uuid": identity.cluster_uuid.hex(),
    }
    fields[CHECKSUM] = _checksum(fields)
    root.store(IDENTITY_NAME, [json.dumps(fields, indent=2).encode() + b"\n"])


def add_checksum(root: Files, identity: StoreIdentity) -> None:
    """Write the checksum of an identity that has none yet, and was found to fit its segments."""
    if CHECKSUM not in json.loads(root.load(IDENTITY_NAME)):
        # A full disk must not prevent a start: the checksum is added at a later one.
        with suppress(OSError):
            save_identity(root, identity)


def _checksum(fields: dict[str, object]) -> str:
    """The checksum of all other fields."""
    others = {name: value for name, value in fields.items() if name != CHECKSUM}
    spelling = json.dumps(others, sort_keys=True, separators=(",", ":"))
    return f"{crc32c(spelling.encode()):08x}"


def _damaged(what: str) -> CorruptStore:
    return CorruptStore(
        f"{IDENTITY_NAME} {what}: put back a copy of it, it never changes; without one, write it "
        "anew with the uuid that the segments name (runbook, 'A damaged store.json')",
        [],
    )
