"""Copies of streams, compared with their homes."""

from __future__ import annotations

from rhizome.testing.sim.stream_promises import StreamChecker
from rhizome.testing.sim.streambook import StreamBook
from rhizome.testing.sim.streamholdings import StreamHolding


class StreamCopiesAgree(StreamChecker):
    """G2, G6, L2: whoever counts as a copy of a stream has on its disk all that the home has
    committed, and a copy with anything of the home's epoch has the same bytes, up to there, in
    segments of the same numbers.

    Copies of an older history are left alone, unless they count; those of a younger one know what
    this home doesn't. Nothing excuses a difference.
    """

    def __init__(self, book: StreamBook) -> None:
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

    def _compare(self, home: StreamHolding, copy: StreamHolding) -> None:
        if copy.log.epoch > home.epoch:
            return
        member = next((each for each in home.members if each.broker == copy.broker), None)
        counts = member is not None and member.incarnation == copy.incarnation
        # One that knows that it doesn't count any more may have dropped what it had.
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

    def _compare_segment(self, home: StreamHolding, copy: StreamHolding, segment: int) -> None:
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

    def _fail(self, home: StreamHolding, copy: StreamHolding, text: str) -> None:
        self.fail(
            f"{home.stream} in epoch {home.epoch}: the copy at {copy.broker} of the home "
            f"{home.broker} {text}"
        )
