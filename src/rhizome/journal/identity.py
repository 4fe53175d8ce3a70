"""Identity: who a store is, in a small file that everything else in its directory hangs on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from rhizome.journal.errors import ForeignStore
from rhizome.journal.files import Files

STORE_VERSION: Final = 1
IDENTITY_NAME: Final = "store.json"


@dataclass(frozen=True)
class Identity:
    """Who a store is; `cluster_uuid` is empty until it has joined one."""

    uuid: bytes
    cluster_uuid: bytes = b""


def load_identity(root: Files, new_uuid: bytes = b"") -> Identity:
    """The identity in a store's directory; with `new_uuid` a new one is made if there is none."""
    if IDENTITY_NAME not in root.names():
        if not new_uuid:
            raise ForeignStore(f"there is no {IDENTITY_NAME}: this is not a store")
        identity = Identity(new_uuid)
        save_identity(root, identity)
        return identity
    try:
        fields = json.loads(root.load(IDENTITY_NAME))
        version = int(fields["version"])
        identity = Identity(bytes.fromhex(fields["uuid"]), bytes.fromhex(fields["cluster_uuid"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ForeignStore(f"{IDENTITY_NAME} can't be read ({error}): restore it") from error
    if version > STORE_VERSION:
        raise ForeignStore(
            f"the store has version {version} and this program knows up to {STORE_VERSION}: "
            "start the newer program that wrote it"
        )
    return identity


def save_identity(root: Files, identity: Identity) -> None:
    fields = {
        "version": STORE_VERSION,
        "uuid": identity.uuid.hex(),
        "cluster_uuid": identity.cluster_uuid.hex(),
    }
    root.store(IDENTITY_NAME, [json.dumps(fields, indent=2).encode() + b"\n"])
