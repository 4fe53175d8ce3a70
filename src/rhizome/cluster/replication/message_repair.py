"""Message repair: a home asks other brokers for messages that it can't read from its own disk.
Compiled.

The queue waits for the answers, so that the message keeps its place in the order. It doesn't wait
long, for one damaged message must not stop it. A message that nobody had is set aside. Each broker
that links later is asked for it once: it may be the former home, whose copy is whole and which is
about to be told that its copy isn't needed.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rhizome.cluster.protocol.catalogue import FETCH
from rhizome.cluster.protocol.replication_codec import fetch
from rhizome.cluster.replication.replicable_log import ReplicableLog
from rhizome.cluster.replication.replicator_port import ReplicatorPort

PATIENCE_MS: Final = 2000
"""After this time a queue goes on without a message that nobody has sent."""
ASKED_AT_ONCE_MAX: Final = 1000


@final
class MessageRepair:
    """The messages that a home asks other brokers for.

    Invariant: ``_open`` has the messages that a queue waits for, with the brokers that have yet to
    answer and the time when it goes on; none of the lists of brokers is empty. ``_brokers`` are
    linked and know FETCH.
    """

    _log: ReplicableLog
    _port: ReplicatorPort
    _brokers: dict[str, None]
    _open: dict[tuple[int, int], list[str]]
    _until_ms: dict[tuple[int, int], int]
    _now_ms: i64

    def __init__(self, log: ReplicableLog, port: ReplicatorPort, now_ms: i64) -> None:
        self._log = log
        self._port = port
        self._brokers = {}
        self._open = {}
        self._until_ms = {}
        self._now_ms = now_ms

    def link_up(self, name: str) -> None:
        """A broker that knows FETCH is linked: it may have what nobody else had."""
        self._brokers[name] = None
        for queue_id, index in self._port.damaged()[:ASKED_AT_ONCE_MAX]:
            self._send(name, queue_id, index)

    def link_down(self, name: str) -> None:
        self._brokers.pop(name, None)
        for key in list(self._open):
            self._without(key, name)

    def knows(self, name: str) -> bool:
        """Whether a broker is linked and knows these frames."""
        return name in self._brokers

    def ask(self, queue_id: i64, index: i64) -> bool:
        """Ask every broker that may have a message; False if there is none."""
        asked = [name for name in self._brokers if self._send(name, queue_id, index)]
        if len(asked) == 0:
            return False
        key = (int(queue_id), int(index))
        self._open[key] = asked
        self._until_ms[key] = int(self._now_ms + PATIENCE_MS)
        return True

    def answered(self, name: str, queue_id: i64, index: i64, record: bytes) -> None:
        key = (int(queue_id), int(index))
        if len(record) > 0:
            self._forget(key)
            self._port.fetched(queue_id, index, record)
        else:
            self._without(key, name)

    def tick(self, now_ms: i64) -> None:
        """Go on without the brokers that are silent."""
        self._now_ms = now_ms
        for key in list(self._open):
            if now_ms >= i64(self._until_ms[key]):
                self._give_up(key)

    def _send(self, name: str, queue_id: i64, index: i64) -> bool:
        log = self._log
        payload = fetch(log.group, log.epoch, queue_id, index, log.epoch_of(index))
        return self._port.send(name, FETCH, [payload])

    def _without(self, key: tuple[int, int], name: str) -> None:
        """A broker that was asked doesn't have the message, or can't answer."""
        waiting = self._open.get(key)
        if waiting is not None and name in waiting:
            waiting.remove(name)
            if len(waiting) == 0:
                self._give_up(key)

    def _give_up(self, key: tuple[int, int]) -> None:
        self._forget(key)
        self._port.fetched(key[0], key[1], b"")

    def _forget(self, key: tuple[int, int]) -> None:
        self._open.pop(key, None)
        self._until_ms.pop(key, None)
