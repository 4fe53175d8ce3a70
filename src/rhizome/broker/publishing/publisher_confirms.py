"""Confirms: which publishes of a channel may be confirmed, in batches per turn.

The publishes of one turn on a channel share one entry per log that they go to. The entry's ``tag``
may be confirmed once two conditions hold. The log has persistent messages on disk and the others in
memory, on all copies that count. Every other broker that got one of the messages has it equally
safe. So confirming costs nothing per message, and the frames sent say multiple=true.
`reliability_levels.py` notes levels for publishers that want to know them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import final

from mypy_extensions import i64

from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.publishing.confirm_latency import ConfirmLatencies
from rhizome.broker.publishing.forward_port import Forward
from rhizome.broker.publishing.reliability_levels import SEVERAL, Levels


@final
class Confirms:
    """Invariant: ``tags`` rise; tags <= ``sent`` are confirmed. An entry says what must be safe
    before its tag, and all later ones, may be confirmed: ``disks`` and ``memories`` in the log in
    ``logs`` (None: nothing), and ``elsewhere``, what other brokers must have confirmed. ``way`` is
    the last forward queue that something was sent on since; ``sent_on`` has the ones before it.
    With ``levels``, ``at_most`` is called for each publish once it is counted.

    ``runs`` has a list per entry, of (first tag, its index in the entry's log, how many): tags and
    indexes of a run have no gap. ``run_tag``, ``run_index`` and ``run_size`` are the open run,
    ``open_runs`` the runs before it in the open entry.
    """

    published: i64
    sent: i64
    log: GroupLog | None
    need_disk: i64
    need_memory: i64
    tags: list[int]
    logs: list[GroupLog | None]
    disks: list[int]
    memories: list[int]
    elsewhere: list[dict[Forward, int] | None]
    runs: list[list[tuple[int, int, int]]]
    open_runs: list[tuple[int, int, int]]
    run_tag: i64
    run_index: i64
    run_size: i64
    sent_on: dict[Forward, int] | None
    way: Forward | None
    way_number: i64
    waiting: bool
    now_ms: i64
    closed_ms: list[int]
    times: ConfirmLatencies | None
    levels: Levels | None

    def __init__(self, times: ConfirmLatencies | None = None) -> None:
        """``times`` collects how long each publish waited; a caller that passes it keeps ``now_ms``
        right."""
        self.published = 0
        self.sent = 0
        self.log = None
        self.need_disk = 0
        self.need_memory = 0
        self.tags = []
        self.logs = []
        self.disks = []
        self.memories = []
        self.elsewhere = []
        self.runs = []
        self.open_runs = []
        self.run_tag = 0
        self.run_index = 0
        self.run_size = 0
        self.sent_on = None
        self.way = None
        self.way_number = 0
        self.waiting = False
        self.now_ms = 0
        self.closed_ms = []
        self.times = times
        self.levels = None

    def at_most(self, ceiling: i64) -> None:
        """The last publish may reach this level; all publishes of an entry have the same."""
        levels = self.levels
        assert levels is not None
        last: i64 = self.tags[-1] if len(self.tags) > 0 else self.sent
        if self.published - 1 > last and (ceiling != levels.ceiling or ceiling & SEVERAL != 0):
            self._close(self.published - 1)
        levels.ceiling = ceiling

    def need(self, log: GroupLog, index: i64, on_disk: bool) -> None:
        """The last publish, which is counted already, has this index in a log."""
        if log is not self.log:
            self._use(log)
        if on_disk:
            self.need_disk = index
        else:
            self.need_memory = index
        size = self.run_size
        if index - self.run_index == size and self.published - self.run_tag == size:
            self.run_size = size + 1
        else:
            self._begin_run(index)

    def _begin_run(self, index: i64) -> None:
        self._end_run()
        self.run_tag = self.published
        self.run_index = index
        self.run_size = 1

    def _end_run(self) -> None:
        if self.run_size > 0:
            self.open_runs.append((self.run_tag, self.run_index, self.run_size))
            self.run_size = 0

    def _use(self, log: GroupLog) -> None:
        if log is not self.log:
            if self.log is not None:
                # This publish may wait for both logs; the publishes before it do not.
                self._close(self.published - 1)
            self.log = log

    def need_again(self, log: GroupLog, disk: i64, memory: i64) -> None:
        """The last publish is a duplicate of one at or below these indexes of a log."""
        if disk <= log.committed_disk and memory <= log.committed_memory:
            if self.levels is None:
                return
        self._use(log)
        if disk > self.need_disk:
            self.need_disk = disk
        if memory > self.need_memory:
            self.need_memory = memory

    def wait_for(self, forward: Forward, number: i64) -> None:
        """The last publish also went to another broker, under this number."""
        if forward is not self.way:
            self._note_way()
            self.way = forward
        self.way_number = number
        if self.levels is not None:
            self.levels.sent(forward, number, self.published)

    def _note_way(self) -> None:
        if self.way is not None:
            if self.sent_on is None:
                self.sent_on = {}
            self.sent_on[self.way] = self.way_number
            self.way = None

    def close_turn(self) -> None:
        """Put what was published in this turn into one entry."""
        last: i64 = self.tags[-1] if len(self.tags) > 0 else self.sent
        if self.published > last:
            self._close(self.published)

    def _close(self, tag: i64) -> None:
        self._note_way()
        self._end_run()
        self.tags.append(tag)
        self.logs.append(self.log)
        self.disks.append(self.need_disk)
        self.memories.append(self.need_memory)
        self.elsewhere.append(self.sent_on)
        self.runs.append(self.open_runs)
        self.open_runs = []
        self.closed_ms.append(self.now_ms)
        if self.levels is not None:
            self.levels.close(tag)
        self.log = None
        self.need_disk = 0
        self.need_memory = 0
        self.sent_on = None

    def wait_elsewhere(
        self, log: GroupLog, forward: Forward, indexes: list[int], numbers: list[int]
    ) -> list[tuple[int, int]]:
        """Wait for another broker instead of for a log. The broker was sent what the log has under
        ``indexes``, under these numbers; both rise. Returns (number, tag) of each publish among
        them, because a publisher must be told of what that broker refuses."""
        self.close_turn()
        sent: list[tuple[int, int]] = []
        for at, waited in enumerate(self.logs):
            if waited is not log:
                continue
            for tag, first, size in self.runs[at]:
                for place in range(bisect_left(indexes, first), len(indexes)):
                    if indexes[place] >= first + size:
                        break
                    sent.append((numbers[place], tag + indexes[place] - first))
            self.runs[at] = []
            found = bisect_right(indexes, max(self.disks[at], self.memories[at]))
            self.logs[at] = None
            if found > 0:
                others = self.elsewhere[at]
                if others is None:
                    others = {}
                    self.elsewhere[at] = others
                others[forward] = max(others.get(forward, 0), numbers[found - 1])
                if self.levels is not None:
                    self.levels.moved(at, forward, numbers[0])
        return sent

    def ready(self) -> i64:
        """The highest tag that may be confirmed now; 0 if none beyond those sent."""
        count: i64 = 0
        while count < len(self.tags):
            log = self.logs[count]
            if log is not None and (
                self.disks[count] > log.committed_disk
                or self.memories[count] > log.committed_memory
            ):
                break
            others = self.elsewhere[count]
            if others is not None and not are_safe(others):
                break
            count += 1
        if count == 0:
            return 0
        tag: i64 = self.tags[count - 1]
        times = self.times
        if times is not None:
            self._note_times(times, count)
        if self.levels is not None:
            self._note_levels(self.levels, count)
        del self.tags[:count]
        del self.logs[:count]
        del self.disks[:count]
        del self.memories[:count]
        del self.elsewhere[:count]
        del self.runs[:count]
        del self.closed_ms[:count]
        return tag if tag > self.sent else 0

    def _note_times(self, times: ConfirmLatencies, count: i64) -> None:
        """The first entries are safe: note how long their publishes waited."""
        before = self.sent
        at: i64 = 0
        while at < count:
            tag: i64 = self.tags[at]
            closed_ms: i64 = self.closed_ms[at]
            if self.elsewhere[at] is not None:
                noted = times.forwarded
            elif self.disks[at] > 0:
                noted = times.disk
            else:
                noted = times.memory
            noted.add(self.now_ms - closed_ms, tag - before)
            before = tag
            at += 1

    def _note_levels(self, levels: Levels, count: i64) -> None:
        """The first entries are safe: note which levels their publishes reached."""
        before = self.sent
        at: i64 = 0
        while at < count:
            tag: i64 = self.tags[at]
            levels.reached(tag, before, self.logs[at], self.disks[at], self.memories[at])
            before = tag
            at += 1


def are_safe(others: dict[Forward, int]) -> bool:
    """Whether each of these brokers has confirmed what it was sent."""
    return all(forward.confirmed >= number for forward, number in others.items())
