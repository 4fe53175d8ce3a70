"""The client for programs without an event loop: the same objects, whose calls wait.

Each session or connection runs a loop in a thread of its own (event_loop_thread.py). Imports
rhizome.client only. Begin with session.py.
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
