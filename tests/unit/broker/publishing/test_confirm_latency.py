"""How long publishes waited for their confirms is counted, each once, by what they waited for."""

from __future__ import annotations

from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.publishing.confirm_latency import BOUNDS_MS, ConfirmLatencies, LatencyHistogram
from rhizome.broker.publishing.forward_port import Forward
from rhizome.broker.publishing.publisher_confirms import Confirms


def counted(times: LatencyHistogram) -> dict[int, int]:
    """Counts by upper bound; -1: beyond all."""
    return {bound: n for bound, n in zip([*BOUNDS_MS, -1], times.counts, strict=True) if n}


def publish(confirms: Confirms, count: int, now_ms: int) -> None:
    confirms.published += count
    confirms.now_ms = now_ms


def test_each_publish_counts_once_by_what_it_waited_for() -> None:
    times = ConfirmLatencies()
    confirms = Confirms(times)
    log = GroupLog(1, 1, 1)
    log.committed_disk = log.committed_memory = 0
    forward = Forward("b2", 1)
    publish(confirms, 3, 1000)  # nobody wants these
    confirms.close_turn()
    publish(confirms, 5, 1001)
    confirms.need(log, 5, True)
    confirms.close_turn()
    publish(confirms, 2, 1002)
    confirms.wait_for(forward, 7)
    confirms.close_turn()
    assert confirms.ready() == 3
    confirms.sent = 3
    confirms.now_ms = 1031
    log.committed_disk = 5
    assert confirms.ready() == 8
    confirms.sent = 8
    confirms.now_ms = 90_000
    forward.confirmed = 7
    assert confirms.ready() == 10
    assert counted(times.memory) == {2: 3}
    assert counted(times.disk) == {50: 5}
    assert times.disk.total_ms == 150
    assert counted(times.forwarded) == {-1: 2}


def test_confirms_of_nobody_are_not_counted() -> None:
    confirms = Confirms()
    publish(confirms, 1, 5)
    confirms.close_turn()
    assert confirms.ready() == 1
    assert confirms.closed_ms == []


def test_a_clock_that_is_set_back_counts_as_no_time() -> None:
    times = LatencyHistogram()
    times.add(-5, 2)
    assert counted(times) == {1: 2}
    assert times.total_ms == 0
