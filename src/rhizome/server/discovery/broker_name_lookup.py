"""The names of the brokers at some addresses.

An edge is given addresses and no names (`rhizome edge`), and links are dialled by name. A broker
says its name before anybody has logged in. That is no proof: the handshake of the link has that,
and refuses another broker than the one that was expected.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from rhizome.errors import RhizomeError
from rhizome.server.clustered_broker.broker_greeting import greeted
from rhizome.server.config.cluster_section import Primary, check_broker_name
from rhizome.server.config.units import Address

PATIENCE_S: Final = 3.0
"""How long a broker has to answer; the registry tells the edge later of those that did not."""
PAUSE_S: Final = 0.5


async def answering_brokers(
    addresses: Sequence[Address], tls: ssl.SSLContext | None, say: Callable[[str], None]
) -> list[Primary]:
    """The brokers at these addresses that answer now; waits until one does.

    ``say`` is told once for each address why nobody answers there.
    """
    told: set[Address] = set()
    while True:
        answers = await asyncio.gather(*(_name_at(each, tls) for each in addresses))
        found: dict[str, Primary] = {}
        for address, (name, problem) in zip(addresses, answers, strict=True):
            if name:
                found.setdefault(name, Primary(name, address))
            elif address not in told:
                told.add(address)
                say(f"{address}: {problem}")
        if found:
            return list(found.values())
        await asyncio.sleep(PAUSE_S)


async def _name_at(address: Address, tls: ssl.SSLContext | None) -> tuple[str, str]:
    """The name of the broker at an address; or "" and why there is none."""
    try:
        async with asyncio.timeout(PATIENCE_S), greeted(address, tls) as greeting:
            name = greeting.start.server_properties.get("broker")
        if not isinstance(name, str):
            return "", "what answers there is no Rhizome broker"
        check_broker_name(name)
    except TimeoutError:
        return "", f"no answer within {PATIENCE_S:g} s"
    except (OSError, EOFError, ValueError, RhizomeError) as error:
        return "", str(error) or type(error).__name__
    return name, ""
