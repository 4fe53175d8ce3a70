"""Hear events on a topic over a queue of one's own, which is made again after a failover.

python events.py amqp://guest:guest@b1,b2,b3/
"""

import asyncio
import sys

from rhizome.client import open_session


async def main(uri: str) -> bytes:
    """Publish an event and hear of it."""
    async with open_session(uri) as session:
        mine = session.queue(exclusive=True, no_ack=True)
        await mine.bind("amq.topic", "orders.*")
        async with mine, session.producer(exchange="amq.topic", persistent=False) as producer:
            await producer.publish(b"paid", routing_key="orders.42", mandatory=True)
            async for event in mine:
                return event.body
    raise AssertionError("iteration ends only when the session does")


if __name__ == "__main__":
    print(asyncio.run(main(sys.argv[1])))
