"""Frames that a client may send: mostly sensible methods with mostly sensible arguments, contents
in one or many frames, and every way to get one of these wrong.
"""

from __future__ import annotations

from typing import Final

from rhizome.amqp import methods as m
from rhizome.amqp.frames import frame, method_frame
from rhizome.amqp.properties import Properties, encode_header
from rhizome.amqp.spec import FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD
from rhizome.amqp.values import Timestamp

from .choices import Choices

BAD_UTF8: Final = "\udcff\udcfe\udc80"
QUEUES: Final = ("q0", "q1", "q2", "q3", "", "nope", "amq.delayed", BAD_UTF8, "n" * 255, "good")
EXCHANGES: Final = (
    "",
    "x0",
    "x1",
    "amq.direct",
    "amq.topic",
    "amq.headers",
    "amq.fanout",
    "nope",
    BAD_UTF8,
)
KINDS: Final = (
    "direct",
    "fanout",
    "topic",
    "headers",
    "x-delayed-message",
    "x-consistent-hash",
    "",
    "zz",
)
KEYS: Final = ("q0", "q1", "q2", "a.b", "a.#", "*", "", "1", "amq.rabbitmq.reply-to", BAD_UTF8)
TAGS: Final = ("", "t0", "t1", BAD_UTF8)
REPLY_TO: Final = "amq.rabbitmq.reply-to"
ARGUMENT_NAMES: Final = (
    "x-message-ttl",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-overflow",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-priority",
    "x-single-active-consumer",
    "x-queue-mode",
    "x-queue-type",
    "x-delivery-limit",
    "x-last-value-key",
    "x-dedup",
    "x-match",
    "x-delayed-type",
    "alternate-exchange",
    "hash-header",
    "hash-property",
    "x-priority",
    "x-consumer-timeout",
    "x-replicate",
    "x-unknown",
    BAD_UTF8,
)
HEADER_NAMES: Final = ("CC", "BCC", "x-delay", "x-death", "k", "x-producer", BAD_UTF8)
LENGTHS: Final = (0x7FFFFFFF, 0xFFFFFFFF, 131073, 131072 - 7, 1 << 20)
DEPTHS: Final = (3, 127, 128, 129, 400)


def nested_table(depth: int) -> bytes:
    """The wire bytes of a table in a table in a table."""
    entry = b""
    for _ in range(depth):
        entry = b"\x01kF" + len(entry).to_bytes(4, "big") + entry
    return len(entry).to_bytes(4, "big") + entry


class Traffic:
    """Makes the bytes of one client's frames from choices."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices

    # --- values

    def value(self) -> object:
        pick = self.choices.below(14)
        if pick < 5:
            return self.choices.pick((0, 1, 2, 5, 30, 1000))
        strings = ("", "x0", "q1", "amq.fanout", "any", "all-with-x", "drop-head")
        more = ("reject-publish", "reject-publish-dlx", "direct", "quorum", "message-id", "k")
        if pick < 9:
            return self.choices.pick(strings + more)
        odd: tuple[object, ...] = (-1, 1 << 40, True, None, b"\xff", 1.5, Timestamp(0), [], {})
        if pick < 13:
            return self.choices.pick(odd)
        return {"a": [{"b": self.value()}]}

    def arguments(self) -> dict[str, object]:
        found: dict[str, object] = {}
        for _ in range(self.choices.below(4)):
            found[self.choices.pick(ARGUMENT_NAMES)] = self.value()
        return found

    def headers(self) -> dict[str, object]:
        found: dict[str, object] = {}
        for _ in range(self.choices.below(3)):
            name = self.choices.pick(HEADER_NAMES)
            value = self.value()
            found[name] = [self.choices.pick(KEYS)] if self.choices.chance(2) else value
        return found

    def properties(self) -> Properties:
        choices = self.choices
        mode = choices.pick((None, 2, 1, 2, None, 0, 7, 255))
        found = Properties(delivery_mode=mode)
        if choices.chance(2):
            found.headers = self.headers()
        if choices.chance(3):
            found.expiration = choices.pick(("10", "0", "500", "", "-1", "x", "9" * 30))
        if choices.chance(3):
            found.priority = choices.pick((0, 1, 9, 255))
        if choices.chance(4):
            found.reply_to = choices.pick((REPLY_TO, "q0", BAD_UTF8, f"{REPLY_TO}.nobody"))
        if choices.chance(4):
            found.message_id = choices.pick(("1", "2", BAD_UTF8))
        if choices.chance(6):
            found.user_id = choices.pick(("guest", "somebody", ""))
        return found

    # --- frames

    def channel(self) -> int:
        return self.choices.pick((1, 1, 1, 2, 2, 3, 0, 9, 65535))

    def method(self) -> m.Method:
        group = self.choices.below(8)
        if group < 3:
            return self._consuming()
        if group < 5:
            return self._queues()
        if group < 6:
            return self._exchanges()
        return self._rest()

    def _consuming(self) -> m.Method:
        c = self.choices
        queue = c.pick(QUEUES)
        tag = c.pick((1, 2, 3, 0, 9, -1, 1 << 40))
        return c.pick(
            (
                lambda: m.BasicConsume(
                    queue, c.pick(TAGS), False, c.chance(2), c.chance(8), c.chance(8), {}
                ),
                lambda: m.BasicConsume(queue, c.pick(TAGS), arguments=self.arguments()),
                lambda: m.BasicConsume(REPLY_TO, "r", no_ack=not c.chance(5)),
                lambda: m.BasicGet(queue, c.chance(2)),
                lambda: m.BasicGet(queue, c.chance(2)),
                lambda: m.BasicAck(tag, c.chance(2)),
                lambda: m.BasicAck(tag, c.chance(2)),
                lambda: m.BasicNack(tag, c.chance(2), c.chance(2)),
                lambda: m.BasicReject(tag, c.chance(2)),
                lambda: m.BasicCancel(c.pick(TAGS), c.chance(4)),
                lambda: m.BasicQos(c.pick((0, 0, 0, 5)), c.below(4), c.chance(3)),
                lambda: m.BasicRecover(not c.chance(5)),
                lambda: m.BasicRecoverAsync(not c.chance(5)),
            )
        )()

    def _queues(self) -> m.Method:
        c = self.choices
        queue = c.pick(QUEUES)
        flags = c.below(32)
        declare = m.QueueDeclare(queue, durable=flags & 1 == 1, arguments=self.arguments())
        if c.chance(4):
            declare.passive = flags & 2 == 2
            declare.exclusive = flags & 4 == 4
            declare.auto_delete = flags & 8 == 8
            declare.no_wait = flags & 16 == 16
        exchange = c.pick(EXCHANGES)
        return c.pick(
            (
                lambda: declare,
                lambda: declare,
                lambda: declare,
                lambda: m.QueueBind(queue, exchange, c.pick(KEYS), c.chance(6), self.arguments()),
                lambda: m.QueueUnbind(queue, exchange, c.pick(KEYS), self.arguments()),
                lambda: m.QueuePurge(queue, c.chance(6)),
                lambda: m.QueueDelete(queue, c.chance(4), c.chance(4), c.chance(6)),
            )
        )()

    def _exchanges(self) -> m.Method:
        c = self.choices
        name = c.pick(EXCHANGES)
        flags = c.below(16)
        declare = m.ExchangeDeclare(name, c.pick(KINDS), arguments=self.arguments())
        declare.durable = flags & 1 == 1
        declare.auto_delete = flags & 2 == 2
        declare.internal = flags & 4 == 4
        declare.passive = flags == 15
        other = c.pick(EXCHANGES)
        return c.pick(
            (
                lambda: declare,
                lambda: declare,
                lambda: m.ExchangeBind(name, other, c.pick(KEYS), c.chance(6), self.arguments()),
                lambda: m.ExchangeUnbind(name, other, c.pick(KEYS), c.chance(6), self.arguments()),
                lambda: m.ExchangeDelete(name, c.chance(3), c.chance(6)),
            )
        )()

    def _rest(self) -> m.Method:
        c = self.choices
        return c.pick(
            (
                lambda: m.ChannelOpen(),
                lambda: m.ChannelOpen(),
                lambda: m.TxSelect(),
                lambda: m.TxCommit(),
                lambda: m.TxRollback(),
                lambda: m.ConfirmSelect(c.chance(3)),
                lambda: m.ChannelClose(200, "bye", 0, 0),
                lambda: m.ChannelCloseOk(),
                lambda: m.ChannelFlow(not c.chance(3)),
                lambda: m.ChannelFlowOk(True),
                lambda: m.ConnectionClose(200, "bye", 0, 0),
                lambda: m.ConnectionCloseOk(),
                lambda: m.ConnectionOpen("/"),
                lambda: m.ConnectionTuneOk(0, 0, 0),
                lambda: m.ConnectionStartOk({}, "PLAIN", b"", "en_US"),
                lambda: m.ConnectionUpdateSecret(b"s", "r"),
                lambda: m.BasicDeliver("t", 1, False, "", "q0"),
                lambda: m.QueueDeclareOk("q0", 1, 1),
                lambda: m.BasicGetEmpty(),
                lambda: m.ConnectionBlocked("because"),
            )
        )()

    def publish(self, channel: int) -> list[bytes]:
        """The frames of a publish, most often right ones."""
        c = self.choices
        key = c.pick(KEYS)
        exchange = c.pick(EXCHANGES)
        method = m.BasicPublish(exchange, key, c.chance(3), c.chance(20))
        length = c.pick((0, 5, 5, 5, 5, 300, 5000, 140_000))
        announced = c.pick((length,) * 8 + (length + 3, max(length - 3, 0), 1 << 31, 1 << 63))
        header = self._header(announced)
        frames = [method_frame(channel, method), frame(FRAME_HEADER, channel, header)]
        body = (b"%d." % c.below(1000)).ljust(length, b"x")[:length]
        piece = 131072 - 8 if c.chance(2) else max(length // (1 + c.below(5)), 1)
        frames += [frame(FRAME_BODY, channel, body[a : a + piece]) for a in range(0, length, piece)]
        return frames

    def _header(self, announced: int) -> bytes:
        c = self.choices
        signed = announced - (1 << 64) if announced >= 1 << 63 else announced
        if c.chance(12):
            flags = c.below(65536)
            start = b"\x00\x3c\x00\x00" + announced.to_bytes(8, "big")
            return start + flags.to_bytes(2, "big") + c.raw(c.below(40))
        header = encode_header(signed, self.properties())
        if c.chance(20):
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
        kind = c.below(24)
        if kind < 10:
            return [method_frame(channel, self.method())]
        if kind < 20:
            return self.publish(channel)
        if kind == 20:
            return [frame(FRAME_HEARTBEAT, c.pick((0, 0, 0, 1)), c.pick((b"", b"", b"x")))]
        if kind == 21:
            return [self.deep(channel)]
        if kind == 22:
            return [method_frame(n, m.ChannelOpen()) for n in range(1, 2 + c.below(40))]
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
        if c.chance(5):
            frames = self.interleave(frames, self.unit())
        if c.chance(6):
            frames = self.break_frames(frames)
        data = b"".join(frames)
        if c.chance(40):
            data += c.raw(c.below(30))
        return data
