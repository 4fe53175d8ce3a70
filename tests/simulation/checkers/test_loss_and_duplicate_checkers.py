"""The checkers of messages, on histories that never happened: what they see, what they excuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rhizome.testing.sim.apps.app_topology import HELD, LATER
from rhizome.testing.sim.checkers.fault_timeline import lease
from rhizome.testing.sim.events import application_events as told
from rhizome.testing.sim.events.broker_events import Observation
from tests.simulation.story import EDGE, HOME, OTHER, PUBLISHER, WORKER, Story, seen_by

Tell = Callable[[], object]

LINK = "b1~b2"
NINE = 90
"""The tag of what the session 9 has."""
NOTHING = ""
INTERVAL_US = 100_000


def done(message: str = "p/1", **promises: object) -> Story:
    """A message that was published, confirmed, delivered and acked."""
    return Story(**promises).sends(message).confirmed(message).comes(message).settles()


def held(**promises: object) -> Story:
    """A message that its consumer holds."""
    return Story(**promises).sends("p/1").confirmed("p/1").comes("p/1")


def confirmed(key: str = "orders", persistent: bool = True, **promises: object) -> Story:
    """A message that was confirmed and never delivered."""
    return Story(**promises).sends("p/1", key, persistent).confirmed("p/1")


LOST: dict[str, tuple[str, Tell]] = {
    "consumed": (NOTHING, lambda: done().ends()),
    "gone": ("NoConfirmedMessageLost", lambda: confirmed().ends()),
    "gone after a kill of its home": (
        "NoConfirmedMessageLost",
        lambda: confirmed().dies(HOME).ends(),
    ),
    "gone with the power, and synced": (
        "NoConfirmedMessageLost",
        lambda: confirmed().loses_power(HOME).ends(),
    ),
    "gone with the power before its interval was over": (
        NOTHING,
        lambda: confirmed(unsynced_us=INTERVAL_US).loses_power(HOME).ends(),
    ),
    "gone with the power long after its interval": (
        "NoConfirmedMessageLost",
        lambda: confirmed(unsynced_us=INTERVAL_US).wait(10).loses_power(HOME).ends(),
    ),
    "gone with the power, and never synced": (
        NOTHING,
        lambda: confirmed(unsynced_us=1 << 60).wait(10).loses_power(HOME).ends(),
    ),
    "gone with a kill, and not synced": (
        "NoConfirmedMessageLost",
        lambda: confirmed(unsynced_us=1 << 60).dies(HOME).ends(),
    ),
    "gone with the power of another broker, and not synced": (
        "NoConfirmedMessageLost",
        lambda: confirmed(unsynced_us=1 << 60).dies(HOME).loses_power(EDGE).ends(),
    ),
    "delivered, and gone with its consumer": (
        "NoConfirmedMessageLost",
        lambda: held().then(told.SessionOver("w", WORKER)).ends(),
    ),
    "of a session that ended first": (
        NOTHING,
        lambda: Story().sends("p/1").then(over()).ends(),
    ),
    "nacked": (
        NOTHING,
        lambda: Story().sends("p/1", "narrow").then(told.Nacked("p/1")).ends(),
    ),
    "in one of two queues only": (
        "NoConfirmedMessageLost",
        lambda: (
            Story().sends("p/1", "both", exchange="work").confirmed("p/1").comes("p/1").settles()
        ).ends(),
    ),
    "purged": (
        NOTHING,
        lambda: (
            confirmed("notes")
            .then(told.PurgeSent("notes"))
            .then(told.PurgeAnswered("notes"))
            .ends()
        ),
    ),
    "purged before it was sent": (
        "ToldLevelIsKept",
        lambda: (
            Story()
            .then(told.PurgeSent("notes"))
            .then(told.PurgeAnswered("notes"))
            .sends("p/1", "notes")
            .confirmed("p/1")
            .ends()
        ),
    ),
    "expired, and not among the dead": (
        "NoConfirmedMessageLost",
        lambda: confirmed("brief").ends(),
    ),
    "expired, and among the dead": (
        NOTHING,
        lambda: confirmed("brief").comes("p/1", "graves").settles().ends(),
    ),
    "expired while its home died": (NOTHING, lambda: confirmed("brief").dies(HOME).ends()),
    "expired while its home died, and letters are kept": (
        "NoConfirmedMessageLost",
        lambda: confirmed("brief", letters=True).dies(HOME).ends(),
    ),
    "crowded out": (NOTHING, lambda: _crowd(confirmed("lossy"), 6).ends()),
    "crowded out of a queue with room": (
        "NoConfirmedMessageLost",
        lambda: _crowd(confirmed("lossy"), 5).ends(),
    ),
    "under way to a consumer without acks": (
        NOTHING,
        lambda: _automatic(confirmed("telegrams")).then(told.SessionOver("w", WORKER)).ends(),
    ),
    "of a queue whose consumers without acks are all there": (
        "NoConfirmedMessageLost",
        lambda: _automatic(confirmed("telegrams")).ends(),
    ),
    "on its way to a consumer with automatic acks, whose broker notices its end late": (
        NOTHING,
        lambda: (
            _automatic(Story())
            .then(told.SessionOver("w", WORKER))
            .sends("p/1", "telegrams")
            .confirmed("p/1")
            .then(told.ConnectionLetGo(EDGE, WORKER))
            .ends()
        ),
    ),
    "sent when a consumer with automatic acks was gone": (
        "NoConfirmedMessageLost",
        lambda: (
            _automatic(Story())
            .then(told.SessionOver("w", WORKER))
            .then(told.ConnectionLetGo(EDGE, WORKER))
            .sends("p/1", "telegrams")
            .confirmed("p/1")
            .then(told.ConnectionLetGo(EDGE, OTHER))
            .ends()
        ),
    ),
    "a duplicate of one that was consumed": (
        NOTHING,
        lambda: (
            Story()
            .sends("p/1", "once", message_id="m")
            .comes("p/1", "once")
            .settles()
            .confirmed("p/1")
            .sends("p/2", "once", message_id="m")
            .confirmed("p/2")
            .ends()
        ),
    ),
    "a duplicate of one that is lost": (
        "NoConfirmedMessageLost",
        lambda: (
            Story()
            .sends("p/1", "once", message_id="m")
            .sends("p/2", "once", message_id="m")
            .confirmed("p/2")
            .dies(HOME)
            .ends()
        ),
    ),
    "on a disk that was damaged": (
        NOTHING,
        lambda: confirmed().then(told.Struck("damage", HOME)).ends(),
    ),
    "on a disk that was damaged, with copies": (
        "NoConfirmedMessageLost",
        lambda: confirmed(copies=2).then(told.Struck("damage", HOME)).ends(),
    ),
    "transient": ("ToldLevelIsKept", lambda: confirmed(persistent=False).ends()),
    "transient, its home killed": (NOTHING, lambda: confirmed(persistent=False).dies(HOME).ends()),
    "transient, another broker killed": (
        "ToldLevelIsKept",
        lambda: confirmed(persistent=False).dies(EDGE).ends(),
    ),
    "transient, with copies, its home killed": (
        "ToldLevelIsKept",
        lambda: _with_standby(copies=2).dies(HOME).ends(),
    ),
    "transient, with copies, its home killed while it was alone": (
        NOTHING,
        lambda: confirmed(persistent=False, copies=2).dies(HOME).ends(),
    ),
    "transient, with copies, its home killed while it was alone, which others did not know": (
        NOTHING,
        lambda: (
            confirmed(persistent=False, copies=2)
            .then(told.GroupAt(1, HOME, "1", 1, 0, "b3:whole"))
            .dies(HOME)
            .ends()
        ),
    ),
    "transient, with copies, both killed": (
        NOTHING,
        lambda: _with_standby(copies=2).dies(HOME).dies("b3").ends(),
    ),
    "transient, with copies, its home killed, and somebody who had none": (
        "ToldLevelIsKept",
        lambda: _with_standby(copies=2).dies(HOME).dies("b4").ends(),
    ),
    "transient, its home was deposed, and the successor killed before it was known": (
        NOTHING,
        lambda: _with_standby(copies=2).dies("b3").taken_over("b3", 2).taken_over("b3", 3).ends(),
    ),
    "transient, its home was deposed, and the successor killed with nobody whole soon": (
        NOTHING,
        lambda: (
            _with_standby(copies=2)
            .then(told.GroupAt(1, "b3", "1", 2, 2, "b4:whole"))
            .dies("b3")
            .then(told.GroupAt(1, "b3", "1", 2, 3, "b4:disk"))
            .taken_over("b3", 3)
            .ends()
        ),
    ),
    "transient, its home was deposed, and the successor killed with somebody whole": (
        "ToldLevelIsKept",
        lambda: (
            _with_standby(copies=2)
            .then(told.GroupAt(1, "b3", "1", 2, 2, "b4:whole"))
            .dies("b3")
            .taken_over("b3", 3)
            .ends()
        ),
    ),
    "transient, its home comes back from disk, though somebody whole is there": (
        "ToldLevelIsKept",
        lambda: _with_standby(copies=2).dies(HOME).taken_over(HOME, 2).ends(),
    ),
    "transient, its home comes back from disk, as who is whole has no lease": (
        NOTHING,
        lambda: (
            _with_standby(copies=2)
            .then(told.Disturbed("isolated", f"b3 {lease('b3')}"))
            .dies(HOME)
            .taken_over(HOME, 2)
            .ends()
        ),
    ),
    "transient, its home was deposed, and the standby killed before that": (
        "ToldLevelIsKept",
        lambda: (
            _paired(copies=2)
            .dies("b3")
            .sends("p/1", persistent=False)
            .confirmed("p/1")
            .taken_over("b3", 2)
            .taken_over("b3", 3)
            .ends()
        ),
    ),
    "transient, the standby killed, and its home replaced by it when the lease was lost": (
        NOTHING,
        lambda: _from_disk(_with_standby(copies=2).dies("b3")).ends(),
    ),
    "transient, the home alone, and replaced by a disk when the lease was lost": (
        NOTHING,
        lambda: _from_disk(_sent(_disk_only(_paired(copies=2)))).ends(),
    ),
    "transient, sent when the standby was killed but still listed, and the home replaced by it": (
        NOTHING,
        lambda: _from_disk(_sent(_paired(copies=2).dies("b3"))).ends(),
    ),
    "transient, the standby killed, and its home replaced by it though it had its lease": (
        "ToldLevelIsKept",
        lambda: _from_disk(_with_standby(copies=2).dies("b3"), isolated="b2").ends(),
    ),
    "transient, its home replaced by a standby that was not killed and is no longer whole": (
        "ToldLevelIsKept",
        lambda: _from_disk(_with_standby(copies=2)).ends(),
    ),
    "transient, its home replaced by a standby that was killed before it was whole": (
        "ToldLevelIsKept",
        lambda: _from_disk(_sent(_paired(Story(copies=2).dies("b3")))).ends(),
    ),
    "transient, sent to a home without a lease, which its killed standby replaced": (
        "ToldLevelIsKept",
        lambda: (
            _sent(_paired(copies=2).dies("b3").then(_no_lease(HOME)))
            .then(told.GroupAt(1, HOME, "1", 1, 3, "b3:disk"))
            .then(told.GroupAt(1, "b3", "2", 2, 4, ""))
            .ends()
        ),
    ),
    "transient, the last of two standbys killed, and its home replaced when the lease was lost": (
        NOTHING,
        lambda: _from_disk(
            _sent(Story(copies=2).then(told.GroupAt(1, HOME, "1", 1, 2, "b3:whole b4:whole")))
            .dies("b3")
            .then(told.GroupAt(1, HOME, "1", 1, 3, "b3:whole"))
        ).ends(),
    ),
    "transient, sent to a home that was killed before, lost its lease and began anew": (
        "ToldLevelIsKept",
        lambda: _sent(Story(copies=2).dies(HOME)).then(_no_lease(HOME)).taken_over(HOME, 2).ends(),
    ),
    "transient, sent after a home was replaced by a disk": (
        "ToldLevelIsKept",
        lambda: _sent(_from_disk(_paired(copies=2).dies("b3"))).ends(),
    ),
    "in a queue that is not durable": ("ToldLevelIsKept", lambda: confirmed("notes").ends()),
    "committed": (
        "NoConfirmedMessageLost",
        lambda: _committed(Story().sends("p/1", transaction=1)).ends(),
    ),
    "committed to a queue that was full": (
        NOTHING,
        lambda: _committed(Story().sends("p/1", "narrow", transaction=1)).ends(),
    ),
}

TOO_OFTEN: dict[str, tuple[str, Tell]] = {
    "acked, and again": ("NoAckedMessageRedelivered", lambda: done().comes("p/1", again=True)),
    "rejected, and again": (
        "NoAckedMessageRedelivered",
        lambda: held().settles(told.REJECT).comes("p/1", again=True),
    ),
    "given back, and again": (NOTHING, lambda: held().settles(told.REQUEUE).comes("p/1")),
    "acked, and the home died at once": (
        NOTHING,
        lambda: done().wait(-0.5).dies(HOME).comes("p/1"),
    ),
    "acked, and what a broker had sent comes late that has ended since": (
        NOTHING,
        lambda: (
            Story()
            .then(told.SessionOpened("u", 9, "b3"))
            .sends("p/1")
            .dies("b3")
            .comes("p/1")
            .settles()
            .wait(3)
            .then(told.Delivered("u", 9, 1, "d", 1, "orders", "p/1", 0, 0, 1))
        ),
    ),
    "acked, and what a broker has sent that ends later comes": (
        "NoAckedMessageRedelivered",
        lambda: (
            Story()
            .then(told.SessionOpened("u", 9, "b3"))
            .sends("p/1")
            .comes("p/1")
            .settles()
            .wait(3)
            .dies("b3")
            .then(told.Delivered("u", 9, 1, "d", 1, "orders", "p/1", 0, 0, 1))
        ),
    ),
    "acked, and what a broker had sent in a session that it has ended since comes late": (
        NOTHING,
        lambda: (
            Story(resumes=True)
            .sends("p/1")
            .then(told.ConnectionLetGo(EDGE, OTHER))
            .comes("p/1")
            .settles()
            .wait(3)
            .comes("p/1", to=OTHER)
        ),
    ),
    "acked, and what a broker has sent in a session that it ends later comes": (
        "NoAckedMessageRedelivered",
        lambda: (
            done(resumes=True)
            .wait(3)
            .then(told.ConnectionLetGo(EDGE, OTHER))
            .comes("p/1", to=OTHER)
        ),
    ),
    "held, and what a broker had sent in a session that it has ended since comes late": (
        NOTHING,
        lambda: (
            Story(resumes=True)
            .sends("p/1")
            .then(told.ConnectionLetGo(EDGE, OTHER))
            .comes("p/1")
            .comes("p/1", to=OTHER)
        ),
    ),
    "acked, and the home died much later": (
        "NoAckedMessageRedelivered",
        lambda: done().wait(3).dies(HOME).comes("p/1"),
    ),
    "acked while the home's disk hung, which then died": (
        NOTHING,
        lambda: (
            held()
            .then(told.Disturbed("stall", HOME))
            .settles()
            .wait(20)
            .dies(HOME)
            .then(told.Undisturbed("stall"))
            .comes("p/1")
        ),
    ),
    "acked after the link was reset": (
        NOTHING,
        lambda: held().strikes(LINK).settles().comes("p/1"),
    ),
    "acked after the link was reset, and the edge resumes": (
        "NoAckedMessageRedelivered",
        lambda: held(resumes=True).strikes(LINK).settles().comes("p/1"),
    ),
    "acked, when its broker had ended the session": (
        NOTHING,
        lambda: held(resumes=True).then(told.ConnectionLetGo(EDGE, WORKER)).settles().comes("p/1"),
    ),
    "held, and its broker has ended the session": (
        NOTHING,
        lambda: held(resumes=True).then(told.ConnectionLetGo(EDGE, WORKER)).comes("p/1", to=OTHER),
    ),
    "held, and its broker has ended another session": (
        "ExactlyOnceBetweenEdgeAndHome",
        lambda: held(resumes=True).then(told.ConnectionLetGo(EDGE, OTHER)).comes("p/1", to=OTHER),
    ),
    "acked, the home dies, and the edge resumes": (
        "NoAckedMessageRedelivered",
        lambda: done(resumes=True).wait(-0.5).dies(HOME).comes("p/1"),
    ),
    "acked, and its broker dies at once, which resumes": (
        NOTHING,
        lambda: done(resumes=True).wait(-0.5).dies(EDGE).comes("p/1"),
    ),
    "acked, and the session is over at once": (
        NOTHING,
        lambda: done().wait(-0.5).then(told.SessionOver("w", WORKER)).comes("p/1", to=OTHER),
    ),
    "stored twice by a home that died before it confirmed": (
        NOTHING,
        lambda: (
            Story().sends("p/1").dies(HOME).confirmed("p/1").comes("p/1").settles().comes("p/1")
        ),
    ),
    "stored twice, although edges resume": (
        "NoAckedMessageRedelivered",
        lambda: (
            _paired(resumes=True, copies=2)
            .sends("p/1")
            .dies(HOME)
            .confirmed("p/1")
            .comes("p/1")
            .settles()
            .comes("p/1")
        ),
    ),
    "stored twice, although edges resume, by homes that were the last to have it": (
        NOTHING,
        lambda: (
            _paired(resumes=True, copies=2)
            .sends("p/1")
            .dies(HOME)
            .dies("b3")
            .confirmed("p/1")
            .comes("p/1")
            .settles()
            .comes("p/1")
        ),
    ),
    "stored twice by a home without a standby, which shows what is on its disk": (
        "NoAckedMessageRedelivered",
        lambda: _twice_at_a_lone_home("orders"),
    ),
    "stored twice by a home without a standby, as it was in memory only": (
        NOTHING,
        lambda: _twice_at_a_lone_home(persistent=False),
    ),
    "stored twice by a home without a standby, in a queue that isn't durable": (
        NOTHING,
        lambda: _twice_at_a_lone_home("notes"),
    ),
    "delayed, held, and all end who have it while its letter may be in the post": (
        NOTHING,
        lambda: _both_die(_released()).comes("p/1", to=OTHER),
    ),
    "delayed, acked, and all end who had it while its letter may be in the post": (
        NOTHING,
        lambda: _both_die(_released().wait(-0.9).settles()).comes("p/1", to=OTHER),
    ),
    "delayed, held, and all end who have it while letters wait for a disk": (
        NOTHING,
        lambda: _both_die(
            _released(before=told.Disturbed("full", "b4")).wait(20).then(told.Undisturbed("full"))
        ).comes("p/1", to=OTHER),
    ),
    "delayed, held, and all end who have it when its letter has left the post": (
        "ExactlyOnceBetweenEdgeAndHome",
        lambda: _both_die(_released().wait(3)).comes("p/1", to=OTHER),
    ),
    "delayed, held after it was long in its queue, and all end who have it": (
        "ExactlyOnceBetweenEdgeAndHome",
        lambda: _both_die(_released(waits=10)).comes("p/1", to=OTHER),
    ),
    "delayed, held, and one of those ends who have it": (
        "ExactlyOnceBetweenEdgeAndHome",
        lambda: _released().wait(-0.9).dies(HOME).comes("p/1", to=OTHER),
    ),
    "delayed, held, and those end who had the letter in the post": (
        "ExactlyOnceBetweenEdgeAndHome",
        lambda: _released().wait(-0.9).dies("b4").wait(-0.9).dies("b5").comes("p/1", to=OTHER),
    ),
    "delayed, held, and one of those ended before it was forwarded who would have it": (
        "ExactlyOnceBetweenEdgeAndHome",
        lambda: (
            _released(before=told.ProgramEnded("b3")).wait(-0.9).dies(HOME).comes("p/1", to=OTHER)
        ),
    ),
    "not delayed, held, and all end who have it": (
        "ExactlyOnceBetweenEdgeAndHome",
        lambda: _both_die(_released(exchange="work")).comes("p/1", to=OTHER),
    ),
    "delayed in its own group, held, and all end who have it before that is on disk": (
        NOTHING,
        lambda: _both_die(_released(group=1, persistent=True)).comes("p/1", to=OTHER),
    ),
    "delayed in its own group, in memory only, held, and all end who have it": (
        "ExactlyOnceBetweenEdgeAndHome",
        lambda: _both_die(_released(group=1)).comes("p/1", to=OTHER),
    ),
    "acked in a transaction in doubt": (
        NOTHING,
        lambda: (
            held()
            .settles(transaction=1)
            .then(told.TransactionEnds(1, told.COMMIT))
            .comes("p/1", to=OTHER)
        ),
    ),
    "acked in a transaction that was committed": (
        "NoAckedMessageRedelivered",
        lambda: _committed(held().settles(transaction=1)).comes("p/1", to=OTHER),
    ),
    "acked in a transaction that was rolled back": (
        NOTHING,
        lambda: (
            held()
            .settles(transaction=1)
            .then(told.TransactionEnds(1, told.ROLLBACK))
            .then(told.TransactionEnded(1, told.ROLLBACK))
            .then(told.ChannelGone(WORKER, 1))
            .comes("p/1", to=OTHER)
        ),
    ),
    "held, and to another": (
        "ExactlyOnceBetweenEdgeAndHome",
        lambda: held().comes("p/1", to=OTHER),
    ),
    "held, and to the same again": (
        "ExactlyOnceBetweenEdgeAndHome",
        lambda: held().comes("p/1", again=True),
    ),
    "held, after a takeover": (NOTHING, lambda: held().dies(HOME).taken_over("b3", 2).comes("p/1")),
    "held, after a takeover, and the edge resumes": (
        "ExactlyOnceBetweenEdgeAndHome",
        lambda: held(resumes=True).dies(HOME).taken_over("b3", 2).comes("p/1", to=OTHER),
    ),
    "held by a channel that was closed": (
        NOTHING,
        lambda: held().then(told.ChannelGone(WORKER, 1)).comes("p/1", to=OTHER),
    ),
    "held at a broker that is out of reach, for a moment": (
        "ExactlyOnceBetweenEdgeAndHome",
        lambda: _cut_off(held(resumes=True), 5).comes("p/1", to=OTHER),
    ),
    "held at a broker that is out of reach, for long": (
        NOTHING,
        lambda: _cut_off(held(resumes=True), 15).comes("p/1", to=OTHER),
    ),
    "two of one message id": (
        "DuplicatesAreDropped",
        lambda: _same_twice(Story()),
    ),
    "two of one message id, the home died": (NOTHING, lambda: _same_twice(Story(), HOME)),
    "two of one message id, the home died and remembers": (
        "DuplicatesAreDropped",
        lambda: _same_twice(Story(remembers=True), HOME),
    ),
    "two of one message id, of a queue that keeps both": (
        NOTHING,
        lambda: _same_twice(Story(), queue="orders"),
    ),
}

ODD: dict[str, tuple[str, Tell]] = {
    "never sent": ("NothingMadeUp", lambda: Story().comes("p/9")),
    "another body": ("NothingMadeUp", lambda: Story().sends("p/1").comes("p/1", intact=False)),
    "another queue": ("NothingMadeUp", lambda: Story().sends("p/1").comes("p/1", "bills")),
    "dead of a queue that buries": (
        NOTHING,
        lambda: Story().sends("p/1", "brief").comes("p/1", "graves"),
    ),
    "dead of a queue that doesn't": (
        "NothingMadeUp",
        lambda: Story().sends("p/1").comes("p/1", "graves"),
    ),
    "not committed yet": (
        "NothingMadeUp",
        lambda: Story().sends("p/1", transaction=1).comes("p/1"),
    ),
    "rolled back": (
        "NothingMadeUp",
        lambda: (
            Story()
            .sends("p/1", transaction=1)
            .then(told.TransactionEnds(1, told.ROLLBACK))
            .comes("p/1")
        ),
    ),
    "returned although there is a queue": (
        "NothingMadeUp",
        lambda: Story().sends("p/1").then(told.Returned("p/1")),
    ),
    "done in part": (
        "TransactionsAllOrNothing",
        lambda: _in_doubt(Story(atomic=True)).comes("p/1").settles().ends(),
    ),
    "done in full": (
        NOTHING,
        lambda: (
            _in_doubt(Story(atomic=True)).comes("p/1").settles().comes("p/2").settles()
        ).ends(),
    ),
    "not done at all": (NOTHING, lambda: _in_doubt(Story(atomic=True)).ends()),
    "done in part, in one group": (
        "TransactionsAllOrNothing",
        lambda: _in_doubt(Story()).comes("p/1").settles().ends(),
    ),
    "done in part, in two groups, which nobody promises": (
        NOTHING,
        lambda: (
            _in_doubt(Story().then(told.QueueIn("bills", 2)), "bills").comes("p/1").settles().ends()
        ),
    ),
    "done in part, in two groups": (
        "TransactionsAllOrNothing",
        lambda: (
            _in_doubt(Story(atomic=True).then(told.QueueIn("bills", 2)), "bills")
            .comes("p/1")
            .settles()
            .ends()
        ),
    ),
    "published, but the ack was not done": (
        "TransactionsAllOrNothing",
        lambda: (
            Story(atomic=True)
            .sends("p/0")
            .comes("p/0")
            .settles(transaction=1)
            .sends("p/1", transaction=1)
            .then(told.TransactionEnds(1, told.COMMIT))
            .then(told.SessionOver("w", WORKER))
            .comes("p/1", to=OTHER)
            .settles(by=OTHER)
            .comes("p/0", to=OTHER)
            .settles(by=OTHER)
            .then(over())
            .ends()
        ),
    ),
    "published, and the ack took the message from another who had it": (
        NOTHING,
        lambda: (
            Story(atomic=True)
            .sends("p/0")
            .comes("p/0")
            .settles(transaction=1)
            .sends("p/1", transaction=1)
            .then(told.TransactionEnds(1, told.COMMIT))
            .then(told.SessionOver("w", WORKER))
            .comes("p/0", to=OTHER)
            .comes("p/1", to=OTHER)
            .settles(by=OTHER)
            .then(over())
            .ends()
        ),
    ),
    "acked, but what was published is not there": (
        "TransactionsAllOrNothing",
        lambda: _acked_in_doubt(Story(atomic=True).sends("p/0")).ends(),
    ),
    "gone, as another settles it too, whose broker had no lease": (
        NOTHING,
        lambda: _acked_in_doubt(_isolated(_at_b3())).settles(by=9, tag=NINE).ends(),
    ),
    "gone, as another rejects it too, whose broker had no lease": (
        NOTHING,
        lambda: _acked_in_doubt(_isolated(_at_b3())).settles(told.REJECT, by=9, tag=NINE).ends(),
    ),
    "gone, as another has settled it before, whose broker had no lease": (
        NOTHING,
        lambda: _acked_in_doubt(_isolated(_at_b3()).settles(by=9, tag=NINE)).ends(),
    ),
    "gone, as another settles it too, whose broker was out of reach for long": (
        NOTHING,
        lambda: (
            _acked_in_doubt(_at_b3().then(told.Disturbed("link", "b1~b3")).wait(12))
            .settles(by=9, tag=NINE)
            .ends()
        ),
    ),
    "gone, and another holds it too, whose broker had no lease": (
        "TransactionsAllOrNothing",
        lambda: _acked_in_doubt(_isolated(_at_b3())).ends(),
    ),
    "gone, and another gives it back, whose broker had no lease": (
        "TransactionsAllOrNothing",
        lambda: _acked_in_doubt(_isolated(_at_b3())).settles(told.REQUEUE, by=9, tag=NINE).ends(),
    ),
    "gone, and another has settled it before, whose broker had no lease and ended": (
        "TransactionsAllOrNothing",
        lambda: _acked_in_doubt(
            _isolated(_at_b3()).settles(by=9, tag=NINE).dies("b3").wait(2)
        ).ends(),
    ),
    "gone, as another has settled it before, whose broker had no lease and ended later": (
        NOTHING,
        lambda: _acked_in_doubt(_isolated(_at_b3()).settles(by=9, tag=NINE)).dies("b3").ends(),
    ),
    "gone, and another settles it too, whose broker had ended": (
        "TransactionsAllOrNothing",
        lambda: _acked_in_doubt(_isolated(_at_b3())).dies("b3").settles(by=9, tag=NINE).ends(),
    ),
    "gone, and another settles it too, whose broker had ended the session": (
        "TransactionsAllOrNothing",
        lambda: (
            _acked_in_doubt(_isolated(_at_b3()))
            .then(told.ConnectionLetGo("b3", 9))
            .settles(by=9, tag=NINE)
            .ends()
        ),
    ),
    "gone, and another has settled it before, over a connection that broke": (
        "TransactionsAllOrNothing",
        lambda: _acked_in_doubt(_at_b3().settles(by=9, tag=NINE).strikes("b3~u")).ends(),
    ),
    "gone, and another has settled it before, whose broker had no lease later": (
        "TransactionsAllOrNothing",
        lambda: _isolated(_acked_in_doubt(_at_b3().settles(by=9, tag=NINE).strikes("b3~u"))).ends(),
    ),
    "gone, as another has settled it before, in a transaction in doubt": (
        NOTHING,
        lambda: _acked_in_doubt(
            _at_b3()
            .settles(by=9, tag=NINE, transaction=2)
            .then(told.TransactionEnds(2, told.COMMIT))
        ).ends(),
    ),
    "gone, and another has settled it before, in a transaction that was rolled back": (
        "TransactionsAllOrNothing",
        lambda: _acked_in_doubt(
            _isolated(_at_b3())
            .settles(by=9, tag=NINE, transaction=2)
            .then(told.TransactionEnds(2, told.ROLLBACK))
            .then(told.TransactionEnded(2, told.ROLLBACK))
        ).ends(),
    ),
    "gone, as it came late to who acks it in a transaction": (
        NOTHING,
        lambda: _acked_in_doubt(
            Story(atomic=True, resumes=True)
            .then(told.SessionOpened("u", 9, "b3"))
            .sends("p/0")
            .dies(EDGE)
            .then(told.Delivered("u", 9, 1, "d", NINE, "orders", "p/0", 0, 0, 1))
            .settles(by=9, tag=NINE)
        ).ends(),
    ),
    "gone, as a client has come back that has settled it": (
        NOTHING,
        lambda: (
            _acked_in_doubt(_isolated(_at_b3()))
            .then(told.SessionOpened("u", 10, "b4"))
            .then(told.SettledAway("u", 10, "orders", "p/0", told.ACK))
            .ends()
        ),
    ),
    "published, but the ack was not done, and another has settled it too": (
        "TransactionsAllOrNothing",
        lambda: (
            _acked_in_doubt(_isolated(_at_b3()))
            .settles(by=9, tag=NINE)
            .comes("p/1", to=OTHER)
            .settles(by=OTHER)
            .comes("p/0", to=OTHER)
            .settles(by=OTHER)
            .ends()
        ),
    ),
    "in order": (NOTHING, lambda: Story().sends("p/1").sends("p/2").comes("p/1").comes("p/2")),
    "out of order": (
        "OrderPerPublisherAndQueue",
        lambda: Story().sends("p/1").sends("p/2").comes("p/2").comes("p/1"),
    ),
    "out of order, said to come again": (
        NOTHING,
        lambda: Story().sends("p/1").sends("p/2").comes("p/2").comes("p/1", again=True),
    ),
    "out of order, of two priorities": (
        NOTHING,
        lambda: (
            Story()
            .sends("p/1", "urgent", priority=1)
            .sends("p/2", "urgent", priority=3)
            .comes("p/2", "urgent")
            .comes("p/1", "urgent")
        ),
    ),
    "out of order, to two consumers": (
        NOTHING,
        lambda: Story().sends("p/1").sends("p/2").comes("p/2").comes("p/1", to=OTHER),
    ),
    "out of order, another consumer was cancelled": (
        NOTHING,
        lambda: _out_of_order(_cancels("orders"), told.ConsumerGone(OTHER, 1, "d")),
    ),
    "out of order, another consumer was cancelled, and has no answer yet": (
        NOTHING,
        lambda: _out_of_order(
            Story().then(told.Consuming(OTHER, 1, "d", "orders", 0)),
            told.CancelSent(OTHER, 1, "d"),
        ),
    ),
    "out of order, another consumer had asked long before, and has no answer yet": (
        NOTHING,
        lambda: _out_of_order(_cancels("orders").wait(5), told.Undisturbed("x")),
    ),
    "out of order, another consumer was cancelled and its channel closed": (
        NOTHING,
        lambda: _out_of_order(_cancels("orders"), told.ChannelGone(OTHER, 1)),
    ),
    "out of order, another consumer was cancelled and its session over": (
        NOTHING,
        lambda: _out_of_order(_cancels("orders"), told.SessionOver("v", OTHER)),
    ),
    "out of order, another consumer was cancelled, its session over, and the way there slow": (
        NOTHING,
        lambda: _out_of_order(
            _cancels("orders")
            .then(told.Disturbed("x", "b2~v"))
            .then(told.SessionOver("v", OTHER))
            .wait(5),
            told.Undisturbed("x"),
        ),
    ),
    "out of order, another consumer had been cancelled, and its application asks for more": (
        "OrderPerPublisherAndQueue",
        lambda: _out_of_order(
            _cancels("orders")
            .then(told.ConsumerGone(OTHER, 1, "d"))
            .then(told.Disturbed("asks", "b2~v"))
            .wait(5),
            told.Undisturbed("x"),
        ),
    ),
    "out of order, another consumer had been cancelled and its channel closed long before": (
        "OrderPerPublisherAndQueue",
        lambda: _out_of_order(
            _cancels("orders").then(told.ChannelGone(OTHER, 1)).wait(5), told.Undisturbed("x")
        ),
    ),
    "out of order, another consumer had been cancelled and its session over long before": (
        "OrderPerPublisherAndQueue",
        lambda: _out_of_order(
            _cancels("orders").then(told.SessionOver("v", OTHER)).wait(5), told.Undisturbed("x")
        ),
    ),
    "out of order, another consumer was told to be no more": (
        "OrderPerPublisherAndQueue",
        lambda: _out_of_order(
            Story().then(told.Consuming(OTHER, 1, "d", "orders", 0)),
            told.Cancelled(OTHER, 1, "d"),
        ),
    ),
    "out of order, to a consumer that was cancelled itself": (
        "OrderPerPublisherAndQueue",
        lambda: _out_of_order(
            Story().then(told.Consuming(WORKER, 1, "c", "orders", 0)),
            told.CancelSent(WORKER, 1, "c"),
        ),
    ),
    "out of order, another consumer was cancelled, and the home stood still": (
        NOTHING,
        lambda: _out_of_order(
            _cancels("orders")
            .then(told.Disturbed("x", HOME))
            .then(told.ConsumerGone(OTHER, 1, "d"))
            .wait(5),
            told.Undisturbed("x"),
        ),
    ),
    "out of order, another consumer had been cancelled long before": (
        "OrderPerPublisherAndQueue",
        lambda: _out_of_order(
            _cancels("orders").then(told.ConsumerGone(OTHER, 1, "d")).wait(5),
            told.Undisturbed("x"),
        ),
    ),
    "out of order, a consumer of another queue was cancelled": (
        "OrderPerPublisherAndQueue",
        lambda: _out_of_order(_cancels("bills"), told.ConsumerGone(OTHER, 1, "d")),
    ),
    "out of order, a consumer of another queue was cancelled, and has no answer yet": (
        "OrderPerPublisherAndQueue",
        lambda: _out_of_order(_cancels("bills"), told.Undisturbed("x")),
    ),
    "out of order, the broker of another consumer had no lease": (
        NOTHING,
        lambda: _out_of_order(
            _consumed_at_b3("orders"), told.Disturbed("isolated", f"b3 {lease('b3')}")
        ),
    ),
    "out of order, the broker of all consumers had no lease": (
        "OrderPerPublisherAndQueue",
        lambda: _out_of_order(
            Story().then(told.Takes(OTHER, 1, "orders")),
            told.Disturbed("isolated", f"{EDGE} {lease(EDGE)}"),
        ),
    ),
    "out of order, the broker of a consumer of another queue had no lease": (
        "OrderPerPublisherAndQueue",
        lambda: _out_of_order(
            _consumed_at_b3("bills"), told.Disturbed("isolated", f"b3 {lease('b3')}")
        ),
    ),
    "out of order, the home was replaced, and had given messages to another broker": (
        NOTHING,
        lambda: _taken_over_between(_consumed_at_b3("orders")),
    ),
    "out of order, the home was replaced, and had been asked for one by another broker": (
        NOTHING,
        lambda: _taken_over_between(_asked_at_b3("orders")),
    ),
    "out of order, the home was replaced, and all consumers are at one broker": (
        "OrderPerPublisherAndQueue",
        lambda: _taken_over_between(
            Story().then(told.Takes(OTHER, 1, "orders")).then(told.Takes(WORKER, 1, "orders"))
        ),
    ),
    "out of order, the home was replaced, and the channel of another at that broker was closed": (
        NOTHING,
        lambda: _taken_over_between(
            Story().then(told.Takes(OTHER, 1, "orders")), told.ChannelGone(OTHER, 1)
        ),
    ),
    "out of order, the home was replaced, and the session of another at that broker was over": (
        NOTHING,
        lambda: _taken_over_between(
            Story().then(told.Takes(OTHER, 1, "orders")), told.SessionOver("v", OTHER)
        ),
    ),
    "out of order, the home was replaced, and another at that broker was gone long before": (
        "OrderPerPublisherAndQueue",
        lambda: _taken_over_between(
            Story()
            .then(told.Takes(OTHER, 1, "orders"))
            .then(told.ChannelGone(OTHER, 1))
            .then(told.SessionOver("v", OTHER))
            .wait(5)
        ),
    ),
    "out of order, the home was replaced, and another broker consumes another queue": (
        "OrderPerPublisherAndQueue",
        lambda: _taken_over_between(_consumed_at_b3("bills")),
    ),
    "out of order, the home was replaced before the first was sent": (
        "OrderPerPublisherAndQueue",
        lambda: _out_of_order(_consumed_at_b3("orders").taken_over("b4", 2), told.Undisturbed("x")),
    ),
    "out of order, the home was replaced before it sent the second": (
        "OrderPerPublisherAndQueue",
        lambda: (
            _consumed_at_b3("orders")
            .sends("p/1")
            .sends("p/2")
            .taken_over("b4", 2)
            .wait(2)
            .comes("p/2")
            .comes("p/1")
        ),
    ),
    "out of order, the home was replaced while the second was under way": (
        NOTHING,
        lambda: (
            _consumed_at_b3("orders")
            .sends("p/1")
            .sends("p/2")
            .then(told.Disturbed("x", EDGE))
            .taken_over("b4", 2)
            .wait(2)
            .comes("p/2")
            .comes("p/1")
        ),
    ),
    "out of order, another broker had asked for a message, and had no lease": (
        NOTHING,
        lambda: _out_of_order(
            _asked_at_b3("orders"), told.Disturbed("isolated", f"b3 {lease('b3')}")
        ),
    ),
    "out of order, the link was reset": (
        NOTHING,
        lambda: Story().sends("p/1").sends("p/2").comes("p/2").strikes(LINK).comes("p/1"),
    ),
    "two active consumers": (
        "OneActiveConsumer",
        lambda: _two_active(Story()).comes("p/2", "letters", to=OTHER, consumer="d"),
    ),
    "another active consumer, as the first was cancelled": (
        NOTHING,
        lambda: (
            _two_active(Story())
            .then(told.CancelSent(WORKER, 1, "c"))
            .comes("p/2", "letters", to=OTHER, consumer="d")
        ),
    ),
    "another active consumer, as the first was told to be no more": (
        NOTHING,
        lambda: (
            _two_active(Story())
            .then(told.Cancelled(WORKER, 1, "c"))
            .comes("p/2", "letters", to=OTHER, consumer="d")
        ),
    ),
    "another active consumer, as the first is gone": (
        NOTHING,
        lambda: (
            _two_active(Story())
            .then(told.SessionOver("w", WORKER))
            .comes("p/2", "letters", to=OTHER, consumer="d")
        ),
    ),
    "another active consumer, as its broker has ended the session of the first": (
        NOTHING,
        lambda: _turn_over(Story(resumes=True)),
    ),
    "another active consumer, as its broker has ended a session that is not the first's": (
        "OneActiveConsumer",
        lambda: (
            _two_active(Story(resumes=True))
            .then(told.ConnectionLetGo(EDGE, OTHER))
            .comes("p/2", "letters", to=OTHER, consumer="d")
        ),
    ),
    "to the consumer whose turn it was, sent before its broker ended its session": (
        NOTHING,
        lambda: _turn_over(Story(resumes=True)).comes("p/3", "letters"),
    ),
    "to the consumer whose turn it was, published when its broker had ended its session": (
        "OneActiveConsumer",
        lambda: (
            _two_active(Story(resumes=True))
            .then(told.ConnectionLetGo(EDGE, WORKER))
            .sends("p/3", "letters")
            .comes("p/2", "letters", to=OTHER, consumer="d")
            .comes("p/3", "letters")
        ),
    ),
    "to the consumer whose turn it was, sent before its broker ended": (
        NOTHING,
        lambda: (
            _two_active(Story(resumes=True))
            .then(told.SessionOpened("u", 9, "b3"))
            .sends("p/3", "letters")
            .dies(EDGE)
            .then(told.Delivered("u", 9, 1, "d", 1, "letters", "p/2", 0, 0, 1))
            .comes("p/3", "letters")
        ),
    ),
    "two active consumers, after what was sent before the end of a session": (
        "OneActiveConsumer",
        lambda: (
            _turn_over(Story(resumes=True))
            .comes("p/3", "letters")
            .then(told.SessionOpened("u", 9, "b3"))
            .sends("p/4", "letters")
            .then(told.Delivered("u", 9, 1, "e", 1, "letters", "p/4", 0, 0, 1))
        ),
    ),
    "another active consumer, as the link to the edge of the first broke for a moment": (
        "OneActiveConsumer",
        lambda: (
            _two_active(Story(resumes=True))
            .then(told.Disturbed("cut", LINK))
            .wait(0.2)
            .then(told.Undisturbed("cut"))
            .comes("p/2", "letters", to=OTHER, consumer="d")
        ),
    ),
    "another active consumer, as the link to the edge of the first was away for long": (
        NOTHING,
        lambda: (
            _two_active(Story(resumes=True))
            .then(told.Disturbed("cut", LINK))
            .wait(2)
            .comes("p/2", "letters", to=OTHER, consumer="d")
        ),
    ),
    "another active consumer, as the home has died": (
        "OneActiveConsumer",
        lambda: (
            _two_active(Story(resumes=True))
            .dies(HOME)
            .taken_over("b3", 2)
            .comes("p/2", "letters", to=OTHER, consumer="d")
        ),
    ),
    "another active consumer, as the edge of the first has no lease": (
        NOTHING,
        lambda: (
            _two_active(Story(resumes=True))
            .then(told.Disturbed("isolated", f"{EDGE} {lease(EDGE)}"))
            .comes("p/2", "letters", to=OTHER, consumer="d")
        ),
    ),
    "to the consumer whose turn it was, through a broker that stood still": (
        NOTHING,
        lambda: (
            _two_active(Story(resumes=True))
            .then(told.SessionOpened("u", 9, "b3"))
            .then(told.Disturbed("pause", "b3"))
            .wait(3)
            .sends("p/3", "letters")
            .comes("p/3", "letters")
            .then(told.Undisturbed("pause"))
            .wait(-0.9)
            .then(told.Delivered("u", 9, 1, "d", 1, "letters", "p/2", 0, 0, 1))
        ),
    ),
    "beyond the prefetch": ("PrefetchIsKept", lambda: _one_too_many(Story())),
    "beyond the prefetch, the link was reset": (
        NOTHING,
        lambda: _one_too_many(Story(), LINK),
    ),
    "beyond the prefetch, the link was reset, the edge resumes": (
        "PrefetchIsKept",
        lambda: _one_too_many(Story(resumes=True), LINK),
    ),
    "beyond the prefetch, as another settles some in a transaction that is open": (
        "PrefetchIsKept",
        lambda: _settled_late(Story(resumes=True)).sends("p/2").comes("p/2"),
    ),
    "beyond the prefetch, as another has settled some in a transaction": (
        NOTHING,
        lambda: _committed(_settled_late(Story(resumes=True))).sends("p/2").comes("p/2"),
    ),
    "beyond the prefetch, as another has settled some": (
        NOTHING,
        lambda: _settled_late(Story(resumes=True), 0).sends("p/2").comes("p/2"),
    ),
    "never confirmed": ("NoMessageStuck", lambda: Story().sends("p/1").ends()),
    "nothing at all": ("NoMessageStuck", lambda: Story().ends()),
    "left in its queue": ("NoMessageStuck", lambda: confirmed().ends(orders=["p/1"])),
    "a commit without an answer": (
        "NoMessageStuck",
        lambda: (
            Story().sends("p/1", transaction=1).then(told.TransactionEnds(1, told.COMMIT)).ends()
        ),
    ),
    "a commit that closed its channel": (
        NOTHING,
        lambda: (
            Story()
            .sends("p/1", transaction=1)
            .then(told.TransactionEnds(1, told.COMMIT))
            .then(told.ChannelGone(PUBLISHER, 1))
            .ends()
        ),
    ),
}


def over() -> told.SessionOver:
    return told.SessionOver("p", PUBLISHER)


def _crowd(story: Story, others: int) -> Story:
    for number in range(2, 2 + others):
        story.sends(f"p/{number}", "lossy").confirmed(f"p/{number}")
        story.comes(f"p/{number}", "lossy").settles()
    return story


def _automatic(story: Story) -> Story:
    """The worker consumes without acks."""
    return story.then(told.TakesUnseen(WORKER, 1, "telegrams"))


def _paired(begun: Story | None = None, **promises: object) -> Story:
    """The home has a whole standby."""
    story = Story(**promises) if begun is None else begun
    return story.then(told.GroupAt(1, HOME, "1", 1, 2, "b3:whole"))


def _sent(story: Story) -> Story:
    return story.sends("p/1", persistent=False).confirmed("p/1")


def _with_standby(**promises: object) -> Story:
    return _sent(_paired(**promises))


def _disk_only(story: Story) -> Story:
    """The standby counts with its disk only, for whatever reason."""
    return story.then(told.GroupAt(1, HOME, "1", 1, 3, "b3:disk"))


def _no_lease(broker: str) -> told.Disturbed:
    return told.Disturbed(f"isolated {broker}", f"{broker} {lease(broker)}")


def _from_disk(story: Story, isolated: str = HOME) -> Story:
    """The standby counts with its disk only, somebody loses the lease, the standby becomes home."""
    return (
        story.then(told.GroupAt(1, HOME, "1", 1, 4, "b3:disk"))
        .then(_no_lease(isolated))
        .then(told.GroupAt(1, "b3", "2", 2, 5, ""))
    )


def _released(
    group: int = 2,
    persistent: bool = False,
    exchange: str = LATER,
    before: Observation | None = None,
    waits: int = 1,
) -> Story:
    """A message whose time is over has come; delayed ones are in a group at b4, copied to b5."""
    story = _paired(resumes=True, copies=2)
    story.then(told.GroupAt(2, "b4", "1", 1, 1, "b5:whole")).then(told.QueueIn(HELD, group))
    story.sends("p/1", persistent=persistent, exchange=exchange).confirmed("p/1")
    if before is not None:
        story.then(before)
    return story.wait(waits).comes("p/1")


def _twice_at_a_lone_home(queue: str = "orders", persistent: bool = True) -> Story:
    """Nobody has copies, the home ends before it confirms, and a message comes twice."""
    story = Story(resumes=True, copies=2).sends("p/1", queue, persistent).comes("p/1", queue)
    return story.settles().dies(HOME).confirmed("p/1").comes("p/1", queue)


def _both_die(story: Story) -> Story:
    """The home and its standby, one soon after the other."""
    return story.wait(-0.9).dies(HOME).wait(-0.9).dies("b3")


def _committed(story: Story) -> Story:
    return story.then(told.TransactionEnds(1, told.COMMIT)).then(
        told.TransactionEnded(1, told.COMMIT)
    )


def _out_of_order(story: Story, meanwhile: Observation) -> Story:
    return story.sends("p/1").sends("p/2").then(meanwhile).comes("p/2").comes("p/1")


def _cancels(queue: str) -> Story:
    """Another consumer, of that queue, asks to be no more."""
    story = Story().then(told.Consuming(OTHER, 1, "d", queue, 0))
    return story.then(told.CancelSent(OTHER, 1, "d"))


def _asked_at_b3(queue: str) -> Story:
    story = Story().then(told.SessionOpened("u", 9, "b3"))
    return story.then(told.Takes(9, 1, queue))


def _consumed_at_b3(queue: str) -> Story:
    return _asked_at_b3(queue).then(told.Consuming(9, 1, "d", queue, 0))


def _taken_over_between(story: Story, *then: Observation) -> Story:
    """The second of two messages comes from one home, the first from the next."""
    story.sends("p/1").sends("p/2").comes("p/2").taken_over("b4", 2)
    for each in then:
        story.then(each)
    return story.comes("p/1")


def _in_doubt(story: Story, second: str = "orders") -> Story:
    return (
        story.sends("p/1", transaction=1)
        .sends("p/2", second, transaction=1)
        .then(told.TransactionEnds(1, told.COMMIT))
        .then(over())
    )


def _acked_in_doubt(story: Story) -> Story:
    """What has been sent comes to the worker, which acks it in a transaction that is in doubt."""
    return (
        story.comes("p/0", again=True)
        .settles(transaction=1)
        .sends("p/1", transaction=1)
        .then(told.TransactionEnds(1, told.COMMIT))
        .then(told.SessionOver("w", WORKER))
        .then(over())
    )


def _at_b3() -> Story:
    """A message that somebody at b3 has."""
    story = Story(atomic=True, resumes=True).then(told.SessionOpened("u", 9, "b3", 9)).sends("p/0")
    return story.then(told.Delivered("u", 9, 1, "d", NINE, "orders", "p/0", 0, 0, 1))


def _isolated(story: Story) -> Story:
    return story.then(told.Disturbed("isolated", f"b3 {lease('b3')}"))


def _cut_off(story: Story, seconds: int) -> Story:
    return (
        story.then(told.Disturbed("link", LINK))
        .strikes(LINK)
        .wait(seconds)
        .then(told.Undisturbed("link"))
    )


def _same_twice(story: Story, dies: str = "", queue: str = "once") -> Story:
    story.sends("p/1", queue, message_id="m").comes("p/1", queue).settles()
    if dies:
        story.dies(dies)
    return story.sends("p/2", queue, message_id="m").comes("p/2", queue)


def _two_active(story: Story) -> Story:
    return story.sends("p/1", "letters").sends("p/2", "letters").comes("p/1", "letters").settles()


def _turn_over(story: Story) -> Story:
    """The broker of the active consumer ends its session, and another one gets the next message."""
    _two_active(story).sends("p/3", "letters").then(told.ConnectionLetGo(EDGE, WORKER))
    return story.comes("p/2", "letters", to=OTHER, consumer="d")


def _one_too_many(story: Story, struck: str = "") -> Story:
    story.then(told.Consuming(WORKER, 1, "c", "orders", 1))
    story.sends("p/1").sends("p/2").comes("p/1")
    if struck:
        story.strikes(struck)
    return story.comes("p/2")


def _settled_late(story: Story, transaction: int = 1) -> Story:
    """Somebody whose broker was out of reach settles what the worker has been given, too."""
    story.then(told.Consuming(WORKER, 1, "c", "orders", 1))
    story.then(told.SessionOpened("u", 9, "b3")).sends("p/1")
    story.then(told.Delivered("u", 9, 1, "d", 1, "orders", "p/1", 0, 0, 1))
    story.then(told.Disturbed("link", "b1~b3")).wait(12).comes("p/1", again=True)
    return story.settles(by=9, tag=1, transaction=transaction)


def _published(queue: str = "orders", persistent: bool = True, exchange: str = "") -> Story:
    """A transaction with one message is about to be committed; its home serves an empty queue."""
    empty: dict[str, list[str]] = {queue: []}
    story = Story(atomic=True, resumes=True).serves(HOME, 1, **empty)
    return story.sends("p/1", queue, persistent, transaction=1, exchange=exchange)


TOO_EARLY: dict[str, tuple[str, Tell]] = {
    "committed, and in its queue": (
        NOTHING,
        lambda: _committed(_published().serves(HOME, 1, orders=["p/0", "p/1"])),
    ),
    "committed, and not in its queue": (
        "CommitIsDoneWhenAnswered",
        lambda: _committed(_published()),
    ),
    "committed, and delivered before that was answered": (
        NOTHING,
        lambda: (
            _published()
            .then(told.TransactionEnds(1, told.COMMIT))
            .comes("p/1")
            .settles()
            .then(told.TransactionEnded(1, told.COMMIT))
        ),
    ),
    "committed, and in its queue no more, as it was delivered later": (
        NOTHING,
        lambda: (
            _committed(_published().taken_over("b3", 2))
            .comes("p/1")
            .settles()
            .serves("b3", 2, orders=[])
        ),
    ),
    "committed while a home that was replaced still serves": (
        NOTHING,
        lambda: _committed(_published().taken_over("b3", 2)).serves("b3", 2, orders=["p/1"]),
    ),
    "committed while nobody serves, and the next home doesn't have it": (
        "CommitIsDoneWhenAnswered",
        lambda: _committed(_published().taken_over("b3", 2)).serves("b3", 2, orders=[]),
    ),
    "committed while nobody serves, and a home of an earlier epoch doesn't have it": (
        NOTHING,
        lambda: (
            _committed(_published().taken_over("b3", 3))
            .serves("b3", 2, orders=[])
            .serves("b3", 3, orders=["p/1"])
        ),
    ),
    "rolled back, and not in its queue": (
        NOTHING,
        lambda: (
            _published()
            .then(told.TransactionEnds(1, told.ROLLBACK))
            .then(told.TransactionEnded(1, told.ROLLBACK))
        ),
    ),
    "committed, and in memory only": (NOTHING, lambda: _committed(_published(persistent=False))),
    "committed, and expired": (NOTHING, lambda: _committed(_published("brief"))),
    "committed, and on its way without an ack": (
        NOTHING,
        lambda: _committed(_published("telegrams")),
    ),
    "committed, and held": (NOTHING, lambda: _committed(_published(exchange=LATER))),
}


STORIES = {**LOST, **TOO_OFTEN, **ODD, **TOO_EARLY}


@pytest.mark.parametrize("name", STORIES)
def test_a_story_is_seen_for_what_it_is(name: str) -> None:
    expected, tell = STORIES[name]
    assert seen_by(tell) == expected


def test_no_two_stories_have_one_name() -> None:
    assert len(STORIES) == len(LOST) + len(TOO_OFTEN) + len(ODD) + len(TOO_EARLY)
