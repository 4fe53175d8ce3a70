"""Publish lines so that each is taken once, though brokers may crash meanwhile.

python exactly_once.py amqp://guest:guest@b1,b2,b3/
"""

import asyncio
import sys

from rhizome.client import open_session


async def main(uri: str) -> int:
    """Publish some lines; returns how many are safe."""
    lines = [b"line %d" % number for number in range(500)]
    async with open_session(uri, name="importer") as session:
        async with session.queue("lines", durable=True) as queue:
            await queue.info()
        async with session.producer(routing_key="lines", window=200) as producer:
            for line in lines:
                await producer.send(line)
            await producer.flush()
            return producer.sequence


if __name__ == "__main__":
    print(asyncio.run(main(sys.argv[1])), "lines are safe")
