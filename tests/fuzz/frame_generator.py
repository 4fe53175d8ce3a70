"""Frames that a client may send: mostly sensible methods with mostly sensible arguments, contents
in one or many frames, and every way to get one of these wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rhizome.amqp import methods as m
from rhizome.amqp.field_table import Timestamp
from rhizome.amqp.frames import frame, method_frame
from rhizome.amqp.properties import Properties, encode_header
from rhizome.amqp.spec import FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD
from tests.fuzz.choices import Choices

if TYPE_CHECKING:
    from tests.fuzz.attacked_core import RawClient

BAD_UTF8: Final = "\udcff\udcfe\udc80"
QUEUES: Final = ("q0", "q1", "q2", "q3")
ODD_QUEUES: Final = ("", "nope", "amq.delayed", BAD_UTF8, "n" * 255, "good", "q4")
EXCHANGES: Final = ("x0", "x1", "amq.direct", "amq.topic", "amq.headers", "amq.fanout")
ODD_EXCHANGES: Final = ("", "nope", BAD_UTF8, "amq.nope", "n" * 255, "x9")
KINDS: Final = ("direct", "fanout", "topic", "headers", "x-delayed-message", "x-consistent-hash")
KEYS: Final = ("q0", "q1", "q2", "q3", "a.b", "a.#", "*", "1")
REPLY_TO: Final = "amq.rabbitmq.reply-to"
ODD_KEYS: Final = ("", REPLY_TO, f"{REPLY_TO}.nobody", BAD_UTF8, "n" * 255)
TAGS: Final = ("t0", "t1", "t2", "t3", "")
QUEUE_ARGUMENTS: Final[tuple[tuple[str, tuple[object, ...]], ...]] = (
    ("x-message-ttl", (0, 20, 1000)),
    ("x-expires", (1, 60, 20_000)),
    ("x-max-length", (0, 1, 3)),
    ("x-max-length-bytes", (0, 10, 6000)),
    ("x-overflow", ("drop-head", "reject-publish", "reject-publish-dlx")),
    ("x-dead-letter-exchange", ("", "x0", "amq.fanout", "amq.headers", "nope")),
    ("x-dead-letter-routing-key", ("q0", "q1", "q2", "nope")),
    ("x-max-priority", (1, 5, 255)),
    ("x-single-active-consumer", (True, False)),
    ("x-queue-mode", ("lazy", "default")),
    ("x-queue-type", ("classic", "quorum", "quorum")),
    ("x-delivery-limit", (0, 1, 2)),
    ("x-last-value-key", ("k",)),
    ("x-dedup", ("message-id",)),
    ("x-consumer-timeout", (1000, 60_000)),
)
EXCHANGE_ARGUMENTS: Final[tuple[tuple[str, tuple[object, ...]], ...]] = (
    ("x-delayed-type", ("direct", "fanout", "topic")),
    ("alternate-exchange", ("x0", "amq.fanout", "nope")),
    ("hash-header", ("k",)),
    ("hash-property", ("message_id", "correlation_id")),
)
BIND_ARGUMENTS: Final[tuple[tuple[str, tuple[object, ...]], ...]] = (
    ("x-match", ("any", "all", "any-with-x", "all-with-x")),
    ("k", (1, "v", True)),
)
HEADERS: Final[tuple[tuple[str, tuple[object, ...]], ...]] = (
    ("CC", (["q1"], ["q2", "q3"], [])),
    ("BCC", (["q0"], ["nope"])),
    ("x-delay", (0, 10, 5000)),
    ("x-death", ([], [{"queue": "q0", "reason": "expired", "count": 1}], "what")),
    ("k", (1, "v", True, "w")),
)
ODD_VALUES: Final[tuple[object, ...]] = (
    -1,
    1 << 40,
    None,
    b"\xff",
    1.5,
    Timestamp(0),
    [],
    {},
    "",
    ["x", 1, BAD_UTF8],
    {"a": [{"b": {}}]},
)
LENGTHS: Final = (0x7FFFFFFF, 0xFFFFFFFF, 131073, 131072 - 7, 1 << 20)
DEPTHS: Final = (3, 127, 128, 129, 400)


def nested_table(depth: int) -> bytes:
    """The wire bytes of a table in a table in a table."""
    entry = b""
    for _ in range(depth):
        entry = b"\x01kF" + len(entry).to_bytes(4, "big") + entry
    return len(entry).to_bytes(4, "big") + entry


class Traffic:
    """Makes the bytes of one client's frames from choices.

    About one decision in `malice` is a wrong one.
    """

    def __init__(self, choices: Choices, malice: int) -> None:
        self.choices = choices
        self.malice = malice
        self.client: RawClient | None = None

    # --- values

    def wrong(self) -> bool:
        return self.choices.chance(self.malice)

    def name(self, usual: tuple[str, ...], odd: tuple[str, ...]) -> str:
        return self.choices.pick(odd if self.wrong() else usual)

    def queue(self) -> str:
        return self.name(QUEUES, ODD_QUEUES)

    def exchange(self) -> str:
        return self.name(EXCHANGES, ODD_EXCHANGES)

    def key(self) -> str:
        return self.name(KEYS, ODD_KEYS)

    def table(
        self, known: tuple[tuple[str, tuple[object, ...]], ...], count_max: int
    ) -> dict[str, object]:
        found: dict[str, object] = {}
        for _ in range(self.choices.below(count_max + 1)):
            name, values = self.choices.pick(known)
            if self.wrong():
                name = self.choices.pick((name, "x-unknown", BAD_UTF8, ""))
                values = ODD_VALUES
            found[name] = self.choices.pick(values)
        return found

    def properties(self) -> Properties:
        choices = self.choices
        found = Properties(delivery_mode=choices.pick((None, 2, 1, 2)))
        if self.wrong():
            found.delivery_mode = choices.pick((0, 7, 255))
        if choices.chance(3):
            found.headers = self.table(HEADERS, 3)
        if choices.chance(4):
            found.expiration = self.name(("10", "0", "500", "1000000"), ("", "-1", "x", "9" * 30))
        if choices.chance(4):
            found.priority = choices.pick((0, 1, 9, 255))
        if choices.chance(8):
            found.reply_to = self.name(("q0",), (REPLY_TO, BAD_UTF8, f"{REPLY_TO}.nobody"))
        if choices.chance(4):
            found.message_id = choices.pick(("1", "2", BAD_UTF8))
        if choices.chance(12):
            found.user_id = self.name(("guest",), ("somebody", ""))
        return found

    # --- frames

    def channel(self) -> int:
        if self.wrong() or self.client is None:
            return self.choices.pick((0, 9, 65535, 1, 2))
        return self.choices.pick(self.client.open_channels() or [1])

    def tag(self, channel: int) -> int:
        """A delivery tag, most often one that the channel holds."""
        held = [] if self.client is None else self.client.held_tags(channel)
        if not held or self.wrong():
            return self.choices.pick((1, 0, 2, 9, -1, 1 << 40))
        return self.choices.pick(held)

    def one_of(self, *makers: Callable[[], m.Method]) -> m.Method:
        return self.choices.pick(makers)()

    def method(self, channel: int) -> m.Method:
        if self.wrong():
            return self._odd()
        group = self.choices.below(10)
        if group < 5:
            return self._consuming(channel)
        if group < 7:
            return self._queues()
        if group < 8:
            return self._exchanges()
        return self._modes(channel)

    def _consuming(self, channel: int) -> m.Method:
        c = self.choices
        if self.client is not None and self.client.held_tags(channel) and not c.chance(3):
            return self._settling(channel)
        return self.one_of(
            lambda: m.BasicConsume(self.queue(), c.pick(TAGS), False, c.chance(3)),
            lambda: m.BasicConsume(
                self.queue(), "", exclusive=c.chance(4), arguments={"x-priority": c.below(3)}
            ),
            lambda: m.BasicConsume(REPLY_TO, "r", no_ack=not self.wrong()),
            lambda: m.BasicGet(self.queue(), c.chance(2)),
            lambda: m.BasicGet(self.queue(), False),
            lambda: m.BasicCancel(c.pick(TAGS), c.chance(4)),
            lambda: m.BasicQos(0, c.below(4), c.chance(3)),
        )

    def _settling(self, channel: int) -> m.Method:
        c = self.choices
        return self.one_of(
            lambda: m.BasicAck(self.tag(channel), c.chance(3)),
            lambda: m.BasicNack(self.tag(channel), c.chance(3), c.chance(2)),
            lambda: m.BasicReject(self.tag(channel), c.chance(2)),
            lambda: m.BasicRecover(True),
            lambda: m.BasicRecoverAsync(True),
        )

    def _queues(self) -> m.Method:
        c = self.choices
        return self.one_of(
            self.declare,
            self.declare,
            lambda: m.QueueBind(
                self.queue(), self.exchange(), self.key(), False, self.table(BIND_ARGUMENTS, 2)
            ),
            lambda: m.QueueUnbind(self.queue(), self.exchange(), self.key(), {}),
            lambda: m.QueuePurge(self.queue(), c.chance(6)),
            lambda: m.QueueDelete(self.queue(), c.chance(4), c.chance(4), c.chance(6)),
        )

    def declare(self) -> m.QueueDeclare:
        c = self.choices
        found = m.QueueDeclare(self.queue(), arguments=self.table(QUEUE_ARGUMENTS, 3))
        found.durable = c.chance(2)
        if c.chance(6):
            flags = c.below(16)
            found.passive = flags & 1 == 1
            found.exclusive = flags & 2 == 2
            found.auto_delete = flags & 4 == 4
            found.no_wait = flags & 8 == 8
        return found

    def declare_exchange(self) -> m.ExchangeDeclare:
        c = self.choices
        kind = self.name(KINDS, ("", "zz", BAD_UTF8))
        arguments = self.table(EXCHANGE_ARGUMENTS, 2)
        if kind == "x-delayed-message" and not self.wrong():
            arguments["x-delayed-type"] = "direct"
        found = m.ExchangeDeclare(self.name(("x0", "x1"), ODD_EXCHANGES), kind, arguments=arguments)
        flags = c.below(64)
        found.durable = flags & 1 == 1
        found.auto_delete = flags & 6 == 6
        found.internal = flags & 56 == 56
        return found

    def _exchanges(self) -> m.Method:
        c = self.choices
        return self.one_of(
            self.declare_exchange,
            self.declare_exchange,
            lambda: m.ExchangeBind(self.exchange(), self.exchange(), self.key(), c.chance(6), {}),
            lambda: m.ExchangeUnbind(self.exchange(), self.exchange(), self.key(), c.chance(6), {}),
            lambda: m.ExchangeDelete(self.exchange(), c.chance(3), c.chance(6)),
        )

    def _modes(self, channel: int) -> m.Method:
        c = self.choices
        if self.client is not None and self.client.is_transactional(channel) and not c.chance(3):
            return self.one_of(m.TxCommit, m.TxRollback)
        return self.one_of(
            m.TxSelect,
            lambda: m.ConfirmSelect(c.chance(3)),
            lambda: m.ChannelClose(200, "bye", 0, 0),
            lambda: m.ChannelFlow(True),
        )

    def _odd(self) -> m.Method:
        return self.one_of(
            m.ChannelOpen,
            m.ChannelCloseOk,
            m.TxCommit,
            lambda: m.ConnectionUpdateSecret(b"s", "r"),
            lambda: m.ChannelFlow(False),
            lambda: m.ChannelFlowOk(True),
            lambda: m.ConnectionClose(200, "bye", 0, 0),
            m.ConnectionCloseOk,
            lambda: m.ConnectionOpen("/"),
            lambda: m.ConnectionTuneOk(0, 0, 0),
            lambda: m.ConnectionStartOk({}, "PLAIN", b"", "en_US"),
            lambda: m.BasicDeliver("t", 1, False, "", "q0"),
            lambda: m.QueueDeclareOk("q0", 1, 1),
            m.BasicGetEmpty,
            lambda: m.ConnectionBlocked("because"),
            lambda: m.BasicQos(5, 0, False),
            lambda: m.BasicRecover(False),
            lambda: m.BasicPublish("", "q0"),
        )

    def publish(self, channel: int) -> list[bytes]:
        """The frames of a publish, most often right ones."""
        c = self.choices
        exchange = "" if c.below(3) else self.exchange()
        key = c.pick(QUEUES) if exchange == "" else self.key()
        method = m.BasicPublish(exchange, key, c.chance(3), self.wrong())
        length = c.pick((5, 5, 5, 5, 5, 0, 300, 5000, 140_000))
        announced = length
        if self.wrong():
            announced = c.pick((length + 3, max(length - 3, 0), 1 << 31, 1 << 63))
        frames = [
            method_frame(channel, method),
            frame(FRAME_HEADER, channel, self._header(announced)),
        ]
        body = (b"%d." % c.below(1000)).ljust(length, b"x")[:length]
        piece = 4096 - 8
        if c.chance(2):
            piece = max(length // (1 + c.below(5)), 1)
        if not self.wrong():
            piece = min(piece, 4096 - 8)
        frames += [frame(FRAME_BODY, channel, body[a : a + piece]) for a in range(0, length, piece)]
        return frames

    def _header(self, announced: int) -> bytes:
        c = self.choices
        if self.wrong():
            start = b"\x00\x3c\x00\x00" + announced.to_bytes(8, "big")
            return start + c.raw(2).ljust(2, b"\0") + c.raw(c.below(40))
        signed = announced - (1 << 64) if announced >= 1 << 63 else announced
        header = encode_header(signed, self.properties())
        if self.wrong():
            header = c.pick((header[:5], header[:-1], b"\x00\x0a" + header[2:], header + b"zz"))
        return header

    def deep(self, channel: int) -> bytes:
        """A declare whose arguments are nested so many times."""
        arguments = nested_table(self.choices.pick(DEPTHS))
        payload = m.QueueDeclare("q0").encode()[:-4] + arguments
        return frame(FRAME_METHOD, channel, payload)

    def unit(self) -> list[bytes]:
        """A method, a publish or something that stands alone; one or more frames."""
        c = self.choices
        channel = self.channel()
        if self.wrong():
            return self._odd_unit(channel)
        kind = c.below(20)
        if kind < 10:
            return [method_frame(channel, self.method(channel))]
        if kind < 19:
            return self.publish(channel)
        return [frame(FRAME_HEARTBEAT, 0, b"")]

    def _odd_unit(self, channel: int) -> list[bytes]:
        c = self.choices
        kind = c.below(4)
        if kind == 0:
            return [frame(FRAME_HEARTBEAT, c.below(2), c.pick((b"", b"x")))]
        if kind == 1:
            return [self.deep(channel)]
        if kind == 2:
            return [method_frame(10 + n, m.ChannelOpen()) for n in range(c.below(60))]
        return [frame(c.below(16), channel, c.raw(c.below(30)))]

    # --- wrong ones

    def break_frames(self, frames: list[bytes]) -> list[bytes]:
        """Make one of the frames wrong, or their order."""
        c = self.choices
        at = c.below(len(frames))
        one = bytearray(frames[at])
        how = c.below(9)
        if how == 0:
            one[c.below(len(one))] ^= 1 << c.below(8)
        elif how == 1:
            one = one[: c.below(len(one))]
        elif how == 2:
            one[1:3] = c.below(65536).to_bytes(2, "big")
        elif how == 3:
            one[3:7] = c.pick(LENGTHS).to_bytes(4, "big")
        elif how == 4:
            one[0] = c.below(12)
        elif how == 5:
            one[-1] = c.below(256)
        elif how == 6:
            payload = bytes(one[7:-1])
            shorter = payload[: c.below(len(payload) + 1)]
            one = bytearray(frame(one[0], int.from_bytes(one[1:3], "big"), shorter))
        elif how == 7:
            return frames[:at] + frames[at + 1 :]
        else:
            other = c.below(len(frames))
            frames[at], frames[other] = frames[other], frames[at]
            return frames
        return [*frames[:at], bytes(one), *frames[at + 1 :]]

    def interleave(self, first: list[bytes], second: list[bytes]) -> list[bytes]:
        """Frames of two units, each in its order."""
        merged: list[bytes] = []
        first, second = list(first), list(second)
        while first and second:
            merged.append((first if self.choices.chance(2) else second).pop(0))
        return merged + first + second

    def input(self) -> bytes:
        """What a client sends next."""
        c = self.choices
        frames = self.unit()
        while c.chance(4):
            frames += self.unit()
        if c.chance(8):
            frames = self.interleave(frames, self.unit())
        if frames and self.wrong():
            frames = self.break_frames(frames)
        data = b"".join(frames)
        if self.wrong():
            data += c.raw(c.below(30))
        return data
