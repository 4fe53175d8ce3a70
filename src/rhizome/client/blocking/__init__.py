"""The client for programs without an event loop.

A `Session` or `Connection` runs a loop in a thread of its own; every call hands the work over and
waits. All objects here may be used from several threads.

Example:
    from rhizome.client.blocking import Session

    with Session("amqp://guest:guest@b1,b2,b3/") as session:
        with session.producer(routing_key="greetings") as producer:
            producer.publish(b"hello")
        with session.queue("greetings", durable=True, timeout_s=1.0) as queue:
            for message in queue:
                print(message.body)
                message.ack()

A `Connection` is one socket, and ends with it:

    from rhizome.client.blocking import Connection

    with Connection("amqp://guest:guest@127.0.0.1:5672/") as connection:
        with connection.channel(prefetch=100, confirms=True) as channel:
            channel.declare_queue("greetings")
            channel.publish(b"hello", routing_key="greetings")
            for message in channel.consume("greetings", timeout_s=1.0):
                print(message.body)
                message.ack()
"""

from rhizome.client.blocking.channel import Channel, Consumer, Message
from rhizome.client.blocking.connection import Connection
from rhizome.client.blocking.session import Browser, Producer, Queue, Session

__all__ = [
    "Browser",
    "Channel",
    "Connection",
    "Consumer",
    "Message",
    "Producer",
    "Queue",
    "Session",
]
