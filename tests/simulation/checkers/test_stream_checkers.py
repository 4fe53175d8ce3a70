"""The checkers of streams, on histories that never happened."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rhizome.amqp.frames import content_frames
from rhizome.cluster.state.cluster_commands import WHOLE, Member
from rhizome.journal.files import MemoryFiles
from rhizome.journal.journal import SegmentWrite
from rhizome.journal.streams.stream_log import StreamLog
from rhizome.journal.streams.stream_store import StreamStore
from rhizome.journal.writer import WriterStatistics
from rhizome.testing.sim.apps.app_program import body_of
from rhizome.testing.sim.apps.app_topology import StreamPlan
from rhizome.testing.sim.brokers.stream_contents import StreamContents
from rhizome.testing.sim.checkers.checker import Watch
from rhizome.testing.sim.checkers.fault_timeline import lease
from rhizome.testing.sim.events import application_events
from rhizome.testing.sim.events import stream_events as told
from rhizome.testing.sim.events.broker_events import Observation
from rhizome.testing.sim.scenarios.stream_workload import stream_checkers
from rhizome.testing.sim.world.event_scheduler import SECOND, World
from tests.simulation.story import seen_by

NOTHING = ""
HOME, STANDBY = "b1", "b2"
APPENDER, READER = 1, 2
GROUP = 32768
EPOCH = 1
SEGMENT_BYTES = 4096
NAMES = [f"a/{n}" for n in range(1, 600)]


class _Writer:
    """Has everything on disk at once, or nothing."""

    def __init__(self, store: StreamStore) -> None:
        self.statistics = WriterStatistics()
        self.backlog_bytes = 0
        self.store = store

    def submit(self, chunks: list[SegmentWrite], token: int) -> None:
        for chunk in chunks:
            files = self.store.segment_files()
            if chunk.offset == 0:
                files.create(int(chunk.segment), 0)
            files.write(int(chunk.segment), int(chunk.offset), chunk.pieces)

    def congested(self) -> bool:
        return False

    def settle(self) -> None:
        pass

    def close(self) -> None:
        pass


class Log:
    """A stream's log in memory, with these messages."""

    def __init__(self, *messages: str, body: str = "", epoch: int = EPOCH) -> None:
        self.store = StreamStore(MemoryFiles(), lambda work: work())
        self.store.writer = _Writer(self.store)
        self.log: StreamLog = self.store.open(1)
        self.log.segment_bytes_max = SEGMENT_BYTES
        self.log.begin_epoch(epoch)
        self.log.mark_epoch()
        for at, message in enumerate(messages):
            content = content_frames(1, bytes(14), body_of(body or message, 20), 4096)
            self.log.append(b"\x00\x06events", content, 0, 4096, 1_000 + at // 10)
        self.store.touch(self.log)
        self.store.submit()

    def safe(self) -> Log:
        self.log.synced(self.store.submitted)
        return self


class FakeBroker:
    """A broker with one stream, as home or as a copy that counts."""

    def __init__(
        self, broker: str, stream: str, log: Log, is_home: bool, epoch: int = EPOCH
    ) -> None:
        members = (Member(STANDBY, "1", WHOLE),)
        self.holding = StreamContents(
            broker, "1", stream, is_home, is_home, epoch, members, log.log, 0 if is_home else epoch
        )

    def streams(self) -> list[StreamContents]:
        return [self.holding]


class Story:
    """Tells checkers what did not happen, second by second: a appends to a stream, r reads it."""

    def __init__(
        self, stream: str = "events", retained_bytes: int = 0, dedup: bool = False
    ) -> None:
        self.world = World(0)
        self.stream = stream
        plan = StreamPlan(stream, SEGMENT_BYTES, retained_bytes, dedup)
        self.watch = Watch(self.world, stream_checkers({stream: plan}))
        self.consumers = 0

    def then(self, observation: Observation) -> Story:
        self.world.now_us += SECOND
        self.watch.see(observation)
        return self

    def sends(self, *messages: str, channel: int = 1, message_id: str = "") -> Story:
        for message in messages:
            self.then(
                told.Appended("a", APPENDER, channel, message, self.stream, 20, 0, message_id)
            )
        return self

    def confirmed(self, *messages: str) -> Story:
        for message in messages:
            self.then(told.AppendConfirmed(message))
        return self

    def reads(self, start: str = told.FIRST, name: str = "") -> Story:
        self.consumers += 1
        consumer = f"c{self.consumers}"
        return self.then(told.Subscribed("r", READER, 1, consumer, self.stream, start, name))

    def shown(self, **messages: int) -> Story:
        """Messages by their ids, with `_` for the stroke, and their offsets."""
        for message, offset in messages.items():
            self.shows(message.replace("_", "/"), offset)
        return self

    def shows(self, message: str, offset: int, intact: bool = True) -> Story:
        consumer = f"c{self.consumers}"
        return self.then(
            told.Shown("r", READER, 1, consumer, self.stream, offset, message, int(intact))
        )

    def acks(self, *offsets: int) -> Story:
        for offset in offsets:
            self.then(told.DoneWith(READER, 1, f"c{self.consumers}", self.stream, offset))
        return self

    def home(self, *messages: str, body: str = "", at: str = HOME, epoch: int = EPOCH) -> Story:
        """The home has committed these."""
        return self.at(at, Log(*messages, body=body, epoch=epoch).safe(), True, epoch)

    def at(self, broker: str, log: Log, is_home: bool, epoch: int = EPOCH) -> Story:
        self.watch.brokers[broker] = FakeBroker(  # type: ignore[assignment]
            broker, self.stream, log, is_home, epoch
        )
        return self

    def begins(self, broker: str, epoch: int) -> Story:
        """A broker becomes the home, which others know before it shows anything."""
        self.then(application_events.GroupAt(GROUP, broker, "1", epoch, 1, ""))
        return self.then(application_events.QueueIn(self.stream, GROUP))

    def notes(self, name: str, offset: int, committed: bool = True) -> Story:
        """The home notes how far a reader has acked, which it can or can't commit."""
        log = Log("a/1", "a/2").safe()
        log.log.note_offset(name.encode(), offset)
        log.store.touch(log.log)
        log.store.submit()
        return self.at(HOME, log.safe() if committed else log, True).glance()

    def dies(self, broker: str) -> Story:
        del self.watch.brokers[broker]
        return self.then(application_events.ProgramEnded(broker))

    def glance(self) -> Story:
        for checker in self.watch.checkers:
            checker.glance()
        return self

    def ends(self) -> Story:
        """The end of a run, a minute later."""
        self.world.now_us += 60 * SECOND
        self.watch.final()
        return self


def two(**changed: str) -> Story:
    """Two appends, confirmed and read."""
    story = Story(**changed).sends("a/1", "a/2").confirmed("a/1", "a/2").reads()  # type: ignore[arg-type]
    return story.shown(a_1=0, a_2=1)


def taken_over() -> Story:
    """Two appends that a home has committed, which is then paused; it never learns of its
    successor, where a third one is sent."""
    return two().home("a/1", "a/2").glance().begins("b3", EPOCH + 1).sends("a/3")


def went_back(story: Story, noted: int, committed: bool) -> Story:
    """A named reader acks the first message and begins with the second, then, at another home, with
    the first again."""
    story.reads(name="n").shown(a_1=0).acks(0).notes("n", noted, committed)
    story.reads(name="n").shown(a_2=1).dies(HOME).begins("b3", EPOCH + 1)
    return story.reads(name="n").shown(a_1=0)


def booked(verdict: str, at: str = HOME) -> Story:
    """Two appends of one transaction, which was to end so, at a broker."""
    story = Story().home().then(application_events.SessionOpened("a", APPENDER, at, APPENDER))
    for message in ("a/1", "a/2"):
        story.then(told.Appended("a", APPENDER, 7, message, story.stream, 20, 1))
    return story.then(application_events.TransactionEnds(1, verdict)) if verdict else story


def over(story: Story) -> Story:
    """Nobody is told what became of it."""
    return story.then(application_events.SessionOver("a", APPENDER))


def retired(segments: int) -> Story:
    """Many appends to a stream that keeps the last ones: the home has dropped some segments."""
    story = Story("ticks", retained_bytes=24_000).sends(*NAMES).confirmed(*NAMES)
    return drop(story, segments)


def drop(story: Story, segments: int) -> Story:
    log = Log(*NAMES).safe()
    story.at(HOME, log, True).glance()
    log.log.keep_from(1 + segments)
    return story


Tell = Callable[[], object]

STORIES: dict[str, tuple[str, Tell]] = {
    "all is well": (NOTHING, lambda: two().home("a/1", "a/2").ends()),
    "nobody ever sent it": ("OneMessagePerOffset", lambda: Story().reads().shows("a/1", 0)),
    "not what was sent": (
        "OneMessagePerOffset",
        lambda: Story().sends("a/1").reads().shows("a/1", 0, intact=False),
    ),
    "not what was sent, at the home": (
        "OneMessagePerOffset",
        lambda: Story().sends("a/1").home("a/1", body="a/11").glance(),
    ),
    "another message at an offset, later": (
        "OneMessagePerOffset",
        lambda: two().reads("1").shows("a/1", 1),
    ),
    "another message at an offset that nobody reads": (
        "OneMessagePerOffset",
        lambda: Story().sends("a/1", "a/2").home("a/1").glance().home("a/2", at="b3").glance(),
    ),
    "shown before it is committed": (
        "ShownIsCommitted",
        lambda: two().home("a/1", "a/2").sends("a/3").shown(a_3=2),
    ),
    "shown by a home that died, while an earlier one goes on": (
        NOTHING,
        lambda: (
            taken_over()
            .home("a/1", "a/2", "a/3", at="b3", epoch=EPOCH + 1)
            .glance()
            .dies("b3")
            .shown(a_3=2)
        ),
    ),
    "shown by a home that died before it was looked at": (
        NOTHING,
        lambda: taken_over().shown(a_3=2),
    ),
    "shown before it is committed, by a home that died": (
        "ShownIsCommitted",
        lambda: (
            taken_over()
            .home("a/1", "a/2", at="b3", epoch=EPOCH + 1)
            .glance()
            .dies("b3")
            .shown(a_3=2)
        ),
    ),
    "shown before it is committed, by the only home, which died": (
        "ShownIsCommitted",
        lambda: two().home("a/1", "a/2").glance().dies(HOME).sends("a/3").shown(a_3=2),
    ),
    "a message at two offsets": (
        "AppendedOnce",
        lambda: Story().sends("a/1").home("a/1", "a/1").glance(),
    ),
    "the same twice": (
        "DuplicateAppendsAreDropped",
        lambda: Story(dedup=True).sends("a/1", "a/2", message_id="m").home("a/1", "a/2").glance(),
    ),
    "the same twice, and no dedup": (
        NOTHING,
        lambda: Story().sends("a/1", "a/2", message_id="m").home("a/1", "a/2").glance(),
    ),
    "the same confirmed twice, and there once": (
        NOTHING,
        lambda: (
            Story(dedup=True)
            .sends("a/1", "a/2", message_id="m")
            .confirmed("a/1", "a/2")
            .home("a/1")
            .reads()
            .shown(a_1=0)
            .ends()
        ),
    ),
    "confirmed, and nowhere": (
        "NoConfirmedAppendLost",
        lambda: two().sends("a/3").confirmed("a/3").home("a/1", "a/2").ends(),
    ),
    "not confirmed, and nowhere": (
        NOTHING,
        lambda: (
            two()
            .sends("a/3")
            .then(application_events.ChannelGone(APPENDER, 1))
            .home("a/1", "a/2")
            .ends()
        ),
    ),
    "shown, and gone": (
        "NoConfirmedAppendLost",
        lambda: two().sends("a/3").shown(a_3=2).home("a/1", "a/2").ends(),
    ),
    "no home at the end": ("NoConfirmedAppendLost", lambda: two().ends()),
    "an offset twice": ("EachOffsetOnceAndInOrder", lambda: two().shown(a_2=1)),
    "an offset passed over": (
        "EachOffsetOnceAndInOrder",
        lambda: Story().sends("a/1", "a/2", "a/3").reads().shown(a_1=0, a_3=2),
    ),
    "the first ones passed over": (
        "EachOffsetOnceAndInOrder",
        lambda: Story().sends("a/1", "a/2").reads().shown(a_2=1),
    ),
    "goes on with its offset": (NOTHING, lambda: two().sends("a/3").reads("2").shown(a_3=2)),
    "begins before its offset": ("EachOffsetOnceAndInOrder", lambda: two().reads("1").shown(a_1=0)),
    "what is new is not": ("EachOffsetOnceAndInOrder", lambda: two().reads("next").shown(a_2=1)),
    "what is new is not, at a broker without a lease": (
        NOTHING,
        lambda: (
            two()
            .then(application_events.SessionOpened("r", READER, "b3", READER))
            .then(application_events.Disturbed("isolated", lease("b3")))
            .reads("next")
            .shown(a_2=1)
        ),
    ),
    "what is new is not, at a broker that has a lease again": (
        "EachOffsetOnceAndInOrder",
        lambda: (
            two()
            .then(application_events.SessionOpened("r", READER, "b3", READER))
            .then(application_events.Disturbed("isolated", lease("b3")))
            .then(application_events.Undisturbed("isolated"))
            .reads("next")
            .shown(a_2=1)
        ),
    ),
    "what is new": (NOTHING, lambda: two().sends("a/3").reads("next").shown(a_3=2)),
    "out of order": (
        "OrderPerAppender",
        lambda: Story().sends("a/1", "a/2").reads().shown(a_2=0, a_1=1).glance(),
    ),
    "out of order on two channels": (
        NOTHING,
        lambda: Story().sends("a/1").sends("a/2", channel=2).reads().shown(a_2=0, a_1=1).glance(),
    ),
    "a transaction": (
        NOTHING,
        lambda: booked(application_events.COMMIT).home("a/1", "a/2").glance(),
    ),
    "a transaction that was never committed": (
        "StreamTransactionsWhole",
        lambda: booked("").home("a/1").glance(),
    ),
    "a transaction that was rolled back": (
        "StreamTransactionsWhole",
        lambda: booked(application_events.ROLLBACK).home("a/1").glance(),
    ),
    "a transaction done in part": (
        "StreamTransactionsWhole",
        lambda: over(booked(application_events.COMMIT)).home("a/1").reads().shown(a_1=0).ends(),
    ),
    "a transaction done in part elsewhere": (
        NOTHING,
        lambda: (
            over(booked(application_events.COMMIT, at="b9")).home("a/1").reads().shown(a_1=0).ends()
        ),
    ),
    "a transaction in doubt that was not done": (
        NOTHING,
        lambda: (
            over(booked(application_events.COMMIT))
            .sends("a/3")
            .confirmed("a/3")
            .home("a/3")
            .reads()
            .shown(a_3=0)
            .ends()
        ),
    ),
    "a transaction with something in between": (
        "StreamTransactionsWhole",
        lambda: (
            over(booked(application_events.COMMIT))
            .sends("a/3")
            .home("a/1", "a/3", "a/2")
            .reads()
            .shown(a_1=0, a_3=1, a_2=2)
            .ends()
        ),
    ),
    "a name goes on": (
        NOTHING,
        lambda: (
            Story()
            .sends("a/1", "a/2", "a/3")
            .reads(name="n")
            .shown(a_1=0, a_2=1)
            .acks(0)
            .reads(name="n")
            .shown(a_2=1)
        ),
    ),
    "a name misses something": (
        "NamedReadersGoOn",
        lambda: (
            Story()
            .sends("a/1", "a/2", "a/3")
            .reads(name="n")
            .shown(a_1=0, a_2=1)
            .acks(1)
            .reads(name="n")
            .shown(a_3=2)
        ),
    ),
    "a name goes back": (
        "NamedReadersGoOn",
        lambda: (
            two()
            .reads(name="n")
            .shown(a_1=0)
            .acks(0)
            .reads(name="n")
            .shown(a_2=1)
            .reads(name="n")
            .shown(a_1=0)
        ),
    ),
    "a name goes back at a new home, to what was committed": (
        NOTHING,
        lambda: went_back(two().begins(HOME, 1), 0, committed=False),
    ),
    "a name goes back at a new home, behind what was committed": (
        "NamedReadersGoOn",
        lambda: went_back(two().begins(HOME, 1), 0, committed=True),
    ),
    "a name goes back where it had begun": (
        "NamedReadersGoOn",
        lambda: (
            two()
            .begins(HOME, 1)
            .reads(name="n")
            .shown(a_1=0)
            .acks(0)
            .reads(name="n")
            .shown(a_2=1)
            .reads(name="n")
            .shown(a_1=0)
        ),
    ),
    "retention": (NOTHING, lambda: retired(5).reads().shown(a_301=300).glance()),
    "retention, and a reader that passes over more": (
        "EachOffsetOnceAndInOrder",
        lambda: retired(5).reads().shown(a_302=301),
    ),
    "retention takes too much": ("RetentionTakesTheFrontOnly", lambda: retired(6).glance()),
    "a stream without a limit has lost its front": (
        "RetentionTakesTheFrontOnly",
        lambda: drop(Story().sends(*NAMES), 1).glance(),
    ),
    "a copy that counts lacks something": (
        "StreamCopiesAgree",
        lambda: two().home("a/1", "a/2").at(STANDBY, Log("a/1", "a/2"), False).glance(),
    ),
    "a copy is behind its home, which has not committed yet": (
        NOTHING,
        lambda: (
            Story()
            .sends("a/1")
            .at(HOME, Log("a/1"), True)
            .at(STANDBY, Log().safe(), False)
            .glance()
        ),
    ),
    "a copy has something else": (
        "StreamCopiesAgree",
        lambda: two().home("a/1", "a/2").at(STANDBY, Log("a/1", "a/3").safe(), False).glance(),
    ),
    "never answered": (
        "NoReaderStuck",
        lambda: two().sends("a/3").home("a/1", "a/2").ends(),
    ),
    "a reader that is stuck": (
        "NoReaderStuck",
        lambda: Story().sends("a/1").confirmed("a/1").reads("0").home("a/1").ends(),
    ),
    "a reader that never came back": (
        "NoReaderStuck",
        lambda: two().then(application_events.SessionOver("r", READER)).home("a/1", "a/2").ends(),
    ),
    "nobody did anything": ("NoReaderStuck", lambda: Story().home().ends()),
}


@pytest.mark.parametrize("name", STORIES)
def test_a_story_is_seen_for_what_it_is(name: str) -> None:
    expected, tell = STORIES[name]
    assert seen_by(tell) == expected


def test_each_checker_has_a_story_of_its_own() -> None:
    named = {expected for expected, _ in STORIES.values()}
    checkers = [type(each).__name__ for each in stream_checkers({})]
    assert [each for each in checkers if each not in named] == ["StreamHistories"]
