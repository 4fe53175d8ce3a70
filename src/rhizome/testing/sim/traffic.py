"""What simulated applications tell: what they sent, what they were told, what came to them.

A message has an id of its own for each time that it is sent; its body begins with it. Whoever sends
the same thing twice, because the first time was not answered, gives both the same `message_id` and
another id. A session is one connection of an application, and no two have the same number.
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
    it may have sent messages that nobody got; from then on nobody holds anything through it."""

    broker: str
    connection: int


class ChannelGone(NamedTuple):
    """A channel of a session is about to be closed, and again when it is; what it held goes
    back."""

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
    """Its broker says that a message is safe."""

    message: str


class LevelTold(NamedTuple):
    """Its broker says how safe a message is that it has confirmed."""

    message: str
    level: int


class Nacked(NamedTuple):
    """Its broker says that a queue did not take it."""

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
    """A client has settled what it held over a connection that is gone, and says so later."""

    application: str
    session: int
    queue: str
    message: str
    verdict: str


class Synced(NamedTuple):
    """A client knows that what it has settled is safe, and will not present it any more."""

    application: str
    queue: str
    message: str


class GaveUp(NamedTuple):
    """A client has forgotten what it held of a queue, or of all: others may have it."""

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
    ends has been acked, and nobody has seen it."""

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
    """A consumer has asked to be no more."""

    session: int
    channel: int
    consumer: str


class Cancelled(NamedTuple):
    """A consumer was told to be no more, and hadn't asked for it."""

    session: int
    channel: int
    consumer: str


class ConsumerGone(NamedTuple):
    """A consumer that asked to be no more has its answer: what was under way to it and came too
    late has gone back, and nobody has seen it."""

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
    """A broker has learned who is at home in a group; `members` are the standbys in sync."""

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
    """Something is wrong from now on, at these places (see `timeline.py`); `key` says what."""

    key: str
    places: str


class Undisturbed(NamedTuple):
    """It is over."""

    key: str


class Struck(NamedTuple):
    """Something was lost at this instant, at these places."""

    kind: str
    places: str
