"""The same without an event loop.

python without_a_loop.py amqp://guest:guest@b1,b2,b3/
"""

import sys

from rhizome.client.blocking import Session


def main(uri: str) -> list[bytes]:
    """Publish two messages, look at them, then take them."""
    with Session(uri) as session:
        with session.queue("letters", durable=True, timeout_s=5.0) as queue:
            queue.info()
        with session.producer(routing_key="letters") as producer:
            producer.publish(b"a")
            producer.publish(b"b")
        with session.browse("letters") as browser:
            seen = [message.body for message in browser]
        taken = []
        with session.queue("letters", durable=True, timeout_s=5.0) as queue:
            for message in queue:
                taken.append(message.body)
                message.ack()
                if len(taken) == len(seen):
                    break
        return taken


if __name__ == "__main__":
    print(main(sys.argv[1]))
