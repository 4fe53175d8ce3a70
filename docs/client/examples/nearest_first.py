"""A load-balancing policy of one's own: brokers of this site first.

python nearest_first.py amqp://guest:guest@10.1.0.1,10.2.0.1,10.2.0.2/ 10.2.
"""

import asyncio
import sys
from collections.abc import Sequence

from rhizome.client import Address, Policy, open_session


def nearest_first(prefix: str) -> Policy:
    """The addresses that begin with a prefix before all others."""

    def policy(addresses: Sequence[Address]) -> Sequence[Address]:
        return sorted(addresses, key=lambda address: not address.host.startswith(prefix))

    return policy


async def main(uri: str, prefix: str = "127.") -> str:
    """Open a session; returns the broker that serves it."""
    async with open_session(uri, policy=nearest_first(prefix)) as session:
        return session.broker


if __name__ == "__main__":
    print(asyncio.run(main(*sys.argv[1:])))
