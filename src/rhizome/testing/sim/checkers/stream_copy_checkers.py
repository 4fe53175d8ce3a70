"""The checker that compares copies of streams with their homes."""

from __future__ import annotations

from rhizome.testing.sim.brokers.stream_contents import StreamContents
from rhizome.testing.sim.checkers.stream_checkers import StreamChecker
from rhizome.testing.sim.checkers.stream_history import StreamHistories


class StreamCopiesAgree(StreamChecker):
    """G2, G6, L2: every copy of a stream that counts has on its disk all that the home has
    committed, and a copy with anything of the home's epoch has the same bytes, up to there, in
    segments of the same numbers.

    Copies of an older epoch are not compared unless they count, nor are those of a later epoch,
    which have what this home lacks. Nothing excuses a difference.
    """

    holds_after_loss = True

    def __init__(self, book: StreamHistories) -> None:
        super().__init__(book)
        self.compared = 0
        self._same: dict[tuple[str, int, str, str, int], int] = {}

    def glance(self) -> None:
        holdings = list(self.book.holdings())
        for home in holdings:
            if home.is_home and home.shows:
                for copy in holdings:
                    if copy.stream == home.stream and copy.broker != home.broker:
                        self._compare(home, copy)

    def final(self) -> None:
        self.glance()

    def _compare(self, home: StreamContents, copy: StreamContents) -> None:
        if copy.log.epoch > home.epoch:
            return
        member = next((each for each in home.members if each.broker == copy.broker), None)
        counts = member is not None and member.incarnation == copy.incarnation
        # A broker that knows that its copy no longer counts may have dropped it.
        counts = counts and copy.counts_in == home.epoch
        committed = (home.log.committed_segment, home.log.committed_position)
        if counts and (copy.log.durable_segment, copy.log.durable_position) < committed:
            self._fail(
                home,
                copy,
                f"counts, and has on disk what is before "
                f"{copy.log.durable_segment}:{copy.log.durable_position} of what is "
                f"committed before {committed[0]}:{committed[1]}",
            )
        if copy.log.epoch < home.epoch:
            return
        segments = [int(each.number) for each in copy.log.segments]
        for segment in home.log.segments:
            if segment.number in segments:
                self._compare_segment(home, copy, int(segment.number))

    def _compare_segment(self, home: StreamContents, copy: StreamContents, segment: int) -> None:
        key = (home.stream, home.epoch, copy.broker, copy.incarnation, segment)
        end = int(home.log.end_of(segment))
        start = self._same.get(key, 0)
        if end <= start:
            return
        there = home.log.files.read(home.log.id, segment, start, end - start)
        here = copy.log.files.read(copy.log.id, segment, start, end - start)
        self.compared += 1
        if here != there[: len(here)]:
            self._fail(home, copy, f"has other bytes in segment {segment}, after {start}")
        self._same[key] = start + len(here)

    def _fail(self, home: StreamContents, copy: StreamContents, text: str) -> None:
        self.fail(
            f"{home.stream} in epoch {home.epoch}: the copy at {copy.broker} of the home "
            f"{home.broker} {text}"
        )
