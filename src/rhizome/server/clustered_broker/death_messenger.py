"""Death messenger: brings certificates of death to the brokers of a cluster (R15).

It connects to each address like an application, and shows the certificate in place of a login. One
broker that takes it is enough: that one passes it on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rhizome.amqp.methods import ConnectionSecure, ConnectionStartOk
from rhizome.cluster.link.cluster_key_proof import LinkKeys
from rhizome.cluster.link.death_certificate import DEATH_MECHANISM, DeathCertificate, certify
from rhizome.errors import RhizomeError
from rhizome.journal.errors import StoreInUse
from rhizome.security.tls import link_context
from rhizome.server.clustered_broker.broker_greeting import greeted
from rhizome.server.clustered_broker.incarnation_file import ended_incarnation
from rhizome.server.config.broker_config import Config
from rhizome.server.config.cluster_section import read_keys
from rhizome.server.config.units import Address

logger = logging.getLogger("rhizome.cluster")

PATIENCE_S: Final = 5.0
_PROPERTIES: Final[dict[str, object]] = {
    "product": "Rhizome",
    "capabilities": {"authentication_failure_close": True},
}


class NotTaken(RhizomeError):
    """A broker did not take the certificate; the text says why."""


async def bring(
    certificate: DeathCertificate,
    keys: LinkKeys,
    addresses: Sequence[Address],
    tls: ssl.SSLContext | None = None,
) -> dict[str, str]:
    """Show a certificate at all addresses at the same time; what became of it at each: "" where it
    was taken, else why not."""
    payload = certify(keys, certificate)

    async def shown(address: Address) -> str:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await _show(payload, address, tls)
        except TimeoutError:
            return f"no answer within {PATIENCE_S:g} s"
        except (OSError, EOFError, ValueError, RhizomeError) as error:
            return str(error) or type(error).__name__
        return ""

    outcomes = await asyncio.gather(*(shown(each) for each in addresses))
    return {str(address): outcome for address, outcome in zip(addresses, outcomes, strict=True)}


async def _show(payload: bytes, address: Address, tls: ssl.SSLContext | None) -> None:
    async with greeted(address, tls) as greeting:
        greeting.send(ConnectionStartOk(dict(_PROPERTIES), DEATH_MECHANISM, payload, "en_US"))
        if not isinstance(await greeting.next(), ConnectionSecure):
            raise NotTaken(
                "the broker refused the certificate: it has another cluster key, or is of a"
                " release that knows no certificates of death; its log says more"
            )


# ---- who brings them -----------------------------------------------------------------------------


def witness(what: str) -> str:
    """How a certificate names the one who has seen the end."""
    return f"{what} on {socket.gethostname()} (process {os.getpid()})"


class Messenger:
    """Brings certificates with the key, and to the primaries, of one broker's configuration.

    Raises SettingError for a key, and TlsError for certificates, that can't be used.
    """

    def __init__(self, config: Config) -> None:
        self._keys = LinkKeys(*read_keys(config.cluster))
        self._tls = link_context(config.tls) if config.cluster.tls else None
        primaries = config.cluster.primaries
        self._addresses = [e.address for e in primaries if e.name != config.broker.name]

    async def bring(self, certificate: DeathCertificate) -> dict[str, str]:
        return await bring(certificate, self._keys, self._addresses, self._tls)


def report_predecessor(config: Config) -> threading.Thread | None:
    """A broker starts on a store whose last process ended without a farewell: the others hear of
    that at once, and not only when this one has read its journal. The thread that tells them."""
    if config.broker.memory or not config.cluster.is_clustered:
        return None
    directory = Path(config.broker.data)
    try:
        certificate = ended_incarnation(directory, witness("its next start"))
    except (StoreInUse, OSError):
        return None  # opening the store says what is wrong
    if certificate is None:
        return None
    messenger = Messenger(config)

    def tell() -> None:
        outcomes = asyncio.run(messenger.bring(certificate))
        told = [address for address, problem in outcomes.items() if not problem]
        logger.info("the end of the last process was reported to %d brokers", len(told))

    thread = threading.Thread(target=tell, name="death messenger", daemon=True)
    thread.start()
    return thread
