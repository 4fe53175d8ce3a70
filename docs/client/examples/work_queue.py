"""Take work from a queue, whichever broker serves it.

python work_queue.py amqp://guest:guest@b1,b2,b3/
"""

import asyncio
import sys

from rhizome.client import Failover, open_session


async def main(uri: str, jobs: int = 3) -> list[bytes]:
    """Do some jobs; returns what they were."""
    done: list[bytes] = []
    patient = Failover(tries_max=0, patience_ms=120_000)
    async with (
        open_session(uri, failover=patient, policy="random") as session,
        session.queue("jobs", durable=True, prefetch=10) as queue,
    ):
        async for job in queue:
            try:
                done.append(bytes(job.body))
            except ValueError:
                await job.reject()  # to the dead letter exchange, if the queue has one
            else:
                await job.ack()
            if len(done) == jobs:
                break
    return done


if __name__ == "__main__":
    print(asyncio.run(main(sys.argv[1])))
