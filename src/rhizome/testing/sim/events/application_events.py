"""Events of simulated applications: what they sent, what they were told, what was delivered.

A message has an id of its own for each time that it is sent; its body begins with it. An
application that sends the same message twice, because the first time was not answered, gives both
the same `message_id` and different ids. A session is one connection of an application, and no two
have the same number.
"""

from __future__ import annotations

from typing import Final, NamedTuple

ACK: Final = "ack"
REJECT: Final = "reject"
REQUEUE: Final = "requeue"

COMMIT: Final = "commit"
ROLLBACK: Final = "rollback"


class SessionOpened(NamedTuple):
    """An application's connection with a broker is open; `connection` is its number."""

    application: str
    session: int
    broker: str
    connection: int = 0


class SessionOver(NamedTuple):
    """It is over, for whatever reason."""

    application: str
    session: int


class ConnectionLetGo(NamedTuple):
    """A broker has ended a connection with an application, or noticed that it is over. Until then
    it may have sent messages that did not arrive; from then on nothing is held through it."""

    broker: str
    connection: int


class ChannelGone(NamedTuple):
    """A channel of a session is about to be closed, and again when it is closed; what it held is
    requeued."""

    session: int
    channel: int


class Sent(NamedTuple):
    """An application published; `transaction` is 0 outside of one."""

    application: str
    session: int
    channel: int
    message: str
    exchange: str
    key: str
    persistent: int
    mandatory: int
    priority: int
    message_id: str
    transaction: int
    size: int


class Confirmed(NamedTuple):
    """Its broker has confirmed a message."""

    message: str


class LevelTold(NamedTuple):
    """Its broker tells the reliability level of a message that it has confirmed."""

    message: str
    level: int


class Nacked(NamedTuple):
    """Its broker says that a queue refused it."""

    message: str


class Returned(NamedTuple):
    """A mandatory message came back."""

    message: str


class Delivered(NamedTuple):
    """A message came to an application; `tag` is that of its channel, `consumer` is empty if it
    was pulled. `intact`: the body is what was sent. `died_in`: the queue that it died in first."""

    application: str
    session: int
    channel: int
    consumer: str
    tag: int
    queue: str
    message: str
    redelivered: int
    automatic: int
    intact: int
    died_in: str = ""


class SettledBy(NamedTuple):
    """An application has sent its verdict about a delivery; in a transaction it counts once that
    is committed."""

    session: int
    channel: int
    tag: int
    verdict: str
    transaction: int


class CanResume(NamedTuple):
    """A session belongs to a client that comes back with what it holds (J12)."""

    application: str
    session: int


class Presented(NamedTuple):
    """A client has come back, and has the answer to what it presented: a message that it holds,
    under this tag from now on, or one that it has settled."""

    application: str
    session: int
    channel: int
    tag: int
    queue: str
    message: str
    held: int


class SettledAway(NamedTuple):
    """A client has settled what it held over a lost connection, and sends that later."""

    application: str
    session: int
    queue: str
    message: str
    verdict: str


class Synced(NamedTuple):
    """A client knows that what it has settled is committed, and will not present it any more."""

    application: str
    queue: str
    message: str


class GaveUp(NamedTuple):
    """A client has forgotten what it held of a queue, or of all: others may get it."""

    application: str
    queue: str


class Takes(NamedTuple):
    """A channel asks for messages of a queue, with a consumer or for one: from now on some may be
    under way to it, before it has any answer."""

    session: int
    channel: int
    queue: str


class TakesUnseen(NamedTuple):
    """A channel asks for messages of a queue with automatic acks: what is on its way to it when it
    ends counts as acked, and no application has seen it."""

    session: int
    channel: int
    queue: str


class Consuming(NamedTuple):
    """A consumer has its consume-ok; `prefetch` 0 is any number."""

    session: int
    channel: int
    consumer: str
    queue: str
    prefetch: int


class CancelSent(NamedTuple):
    """A consumer has sent basic.cancel."""

    session: int
    channel: int
    consumer: str


class Cancelled(NamedTuple):
    """A broker has cancelled a consumer."""

    session: int
    channel: int
    consumer: str


class ConsumerGone(NamedTuple):
    """A consumer has the answer to its cancel: what was under way to it and came too late was
    requeued, and no application has seen it."""

    session: int
    channel: int
    consumer: str


class TransactionEnds(NamedTuple):
    """An application has sent commit or rollback."""

    transaction: int
    verdict: str


class TransactionEnded(NamedTuple):
    """It has its answer."""

    transaction: int
    verdict: str


class PurgeSent(NamedTuple):
    queue: str


class PurgeAnswered(NamedTuple):
    queue: str


class GroupAt(NamedTuple):
    """A broker has learned the home of a group; `members` are the standbys in sync."""

    group: int
    home: str
    incarnation: str
    epoch: int
    version: int
    members: str


class QueueIn(NamedTuple):
    """A queue belongs to a group."""

    queue: str
    group: int


class ProgramEnded(NamedTuple):
    """A broker was killed, or lost its power."""

    broker: str


class Disturbed(NamedTuple):
    """Something is wrong from now on, at these places (see `fault_timeline.py`); `key` says
    what."""

    key: str
    places: str


class Undisturbed(NamedTuple):
    """It is over."""

    key: str


class Struck(NamedTuple):
    """Something was lost at this instant, at these places."""

    kind: str
    places: str
