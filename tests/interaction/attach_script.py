"""The script of what an edge and the homes of one queue's group say to each other about messages.

Pipes between brokers deliver at once; times are those of the cluster's clock. Credit, routes,
answers to calls and what concerns other groups are left out.
"""

from __future__ import annotations

import pytest
from librt.strings import read_i64_be

from rhizome.amqp.field_table import read_table
from rhizome.amqp.primitives import u16_at
from rhizome.broker.channel.unacked import ACK, REJECT
from rhizome.cluster.link.frame_codec import FrameSink, LinkReader
from rhizome.cluster.protocol.call_table_codec import TAKE_BACK
from rhizome.cluster.protocol.catalogue import (
    ATTACH,
    ATTACH_BEGIN,
    ATTACH_END,
    ATTACHED_TO,
    CONFIRM,
    DELIVER,
    DETACH,
    END_SESSION,
    FENCE,
    HAS_SETTLED,
    HELD,
    PUBLISH,
    REFUSE,
    ROUTE,
    SETTLE,
    SETTLED,
)
from rhizome.cluster.protocol.edge_home_codec import (
    FLAG_REDELIVERED,
    HAS_SETTLED_FIXED,
    HELD_FIXED,
    HELD_RANGE_BYTES,
    PUBLISH_FIXED,
    RANGE_BYTES,
    SETTLE_FIXED,
)
from rhizome.testing.in_memory_cluster import CoreCluster, PipeEnd

FRAME_MAX = 1 << 24
HEADER = b"AMQP"
KINDS = {ACK: "acks", REJECT: "rejects", TAKE_BACK: "never showed"}
TABLES = (ATTACH, DETACH, END_SESSION, ATTACH_BEGIN, ATTACH_END, ATTACHED_TO)


class Script:
    """Writes down what is said from now on."""

    def __init__(
        self, cluster: CoreCluster, queue: str, cast: list[str], patch: pytest.MonkeyPatch
    ) -> None:
        self.cluster = cluster
        self.cast = cast
        self.group = int(cluster[cast[0]].queue(queue).definition.group)
        self.lines: list[str] = []
        self._began_ms = cluster.elapsed_ms
        self._ears: dict[PipeEnd, Ear] = {}
        write = PipeEnd.write
        script = self

        def overheard(end: PipeEnd, chunks: list[bytes]) -> None:
            script.hear(end, chunks)
            write(end, chunks)

        patch.setattr(PipeEnd, "write", overheard)

    def hear(self, end: PipeEnd, chunks: list[bytes]) -> None:
        if end.other is None or not {end.owner.name, end.other.owner.name} <= set(self.cast):
            return
        ear = self._ears.get(end)
        if ear is None:
            ear = Ear(self, end.owner.name, end.other.owner.name)
            self._ears[end] = ear
        ear.hear(b"".join(chunks))

    def say(self, line: str) -> None:
        line = f"{self.cluster.elapsed_ms - self._began_ms:5}  {line}"
        self.lines.append(line)

    def reads(self, script: str) -> None:
        lines = script.strip("\n").rstrip().split("\n")
        assert "\n".join(self.lines) == "\n".join(line.removeprefix(" " * 8) for line in lines)
        self.lines = []


class Ear(FrameSink):
    """One direction of a link."""

    def __init__(self, script: Script, sender: str, receiver: str) -> None:
        super().__init__()
        self.script = script
        self.sender = sender
        self.receiver = receiver
        self.slots: dict[int, list[int]] = {}
        self.reader = LinkReader(self, FRAME_MAX)

    def hear(self, data: bytes) -> None:
        self.reader.receive(data[8:] if data.startswith(HEADER) else data)

    def other_frame(self, kind: int, data: bytes, start: int, end: int) -> None:
        pass

    def frame(self, method: int, data: bytes, start: int, end: int) -> None:
        payload = data[start:end]
        words = self._table(method, payload) if method in TABLES else self._words(method, payload)
        if words:
            self.script.say(f"{self.sender} -> {self.receiver}  {words}")

    def _table(self, method: int, payload: bytes) -> str:
        table, _ = read_table(payload, 0)
        if table["group"] != self.script.group:
            return ""
        return {
            ATTACH_BEGIN: "I attach, in epoch {epoch}; my publishes go on from {first}",
            ATTACH: "consumer {tag}",
            ATTACH_END: "that is all",
            ATTACHED_TO: "you are attached, in epoch {epoch}; I have your publishes up to {last}",
            DETACH: "a consumer is gone",
            END_SESSION: "a channel is closed",
        }[method].format(**table)

    def _words(self, method: int, payload: bytes) -> str:
        if method == ROUTE:
            self._route(payload)
        elif method == PUBLISH:
            return self._publish(payload)
        elif method == DELIVER:
            again = " again" if payload[20] & FLAG_REDELIVERED else ""
            return f"message {read_i64_be(payload, 12)}{again}"
        elif method in (CONFIRM, REFUSE, FENCE, SETTLE, SETTLED, HELD, HAS_SETTLED):
            if u16_at(payload, 0) == self.script.group:
                return self._of_group(method, payload)
        return ""

    def _of_group(self, method: int, payload: bytes) -> str:
        if method == HELD:
            held = _ranges(payload, HELD_FIXED + 12, HELD_RANGE_BYTES)
            return f"held: messages {held}" if held else ""
        if method == HAS_SETTLED:
            settled = _ranges(payload, HAS_SETTLED_FIXED, RANGE_BYTES)
            return f"{KINDS.get(payload[2], 'gives back')} messages {settled}"
        if method == SETTLE:
            tags = _ranges(payload, SETTLE_FIXED, RANGE_BYTES)
            return f"{KINDS.get(payload[6], 'gives back')} deliveries {tags}"
        number = read_i64_be(payload, 2)
        return {
            CONFIRM: f"safe: your publishes up to {number}",
            REFUSE: f"refused: your publish {number}",
            FENCE: f"number {number}, without a message",
            SETTLED: f"safe: what you settled, up to {number}",
        }[method]

    def _route(self, payload: bytes) -> None:
        """Remember the groups of a slot."""
        at = 11 + payload[10]
        at += 1 + payload[at]
        at += 1 + payload[at]
        groups = []
        for _ in range(payload[at]):
            groups.append(int(u16_at(payload, at + 1)))
            at += 4 + 8 * u16_at(payload, at + 3)
            if groups[-1] == 0:
                break
        self.slots[int(u16_at(payload, 8))] = groups

    def _publish(self, payload: bytes) -> str:
        groups = self.slots.get(int(u16_at(payload, 0)), [])
        if self.script.group not in groups:
            return ""
        number_at = PUBLISH_FIXED + 8 * groups.index(self.script.group)
        return f"publish {read_i64_be(payload, number_at)}"


def _ranges(payload: bytes, at: int, step: int) -> str:
    found = []
    while at + 16 <= len(payload):
        first, last = read_i64_be(payload, at), read_i64_be(payload, at + 8)
        found.append(f"{first}" if first == last else f"{first} to {last}")
        at += step
    return ", ".join(found)
