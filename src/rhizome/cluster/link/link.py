"""Link: one end of the connection between two brokers.

Stages, in order; only ``OPEN`` links are told to the handler:

    DIALLING   an address is being connected to
    OPENING    the handshake is under way
    OPEN       frames go both ways
    CLOSED     nothing more is read; the driver closes the connection once the output is written

DIALLING to OPENING: ``connected``. OPENING to OPEN: the peer opened the connection, or it answered
with open-ok. Any to CLOSED: ``close``, ``lost``, a fault in what the peer sent, silence.

Two lanes lead out. Urgent frames (elections, leases, heartbeats) overtake bulk ones (messages) that
wait for the socket, so a lease is not lost because of a backlog; within a lane order is kept.
Nothing on a link may rely on the order between lanes.

A link is never paused: what is behind a frame that has to wait may be what it waits for. A handler
keeps a frame that it can't handle yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64, mypyc_attr

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import ConnectionClose, decode_method
from rhizome.amqp.spec import FRAME_HEARTBEAT
from rhizome.broker.connection.outbox import Outbox
from rhizome.cluster.link.frame_codec import (
    HEARTBEAT_FRAME,
    FrameSink,
    LinkReader,
    put_frame,
    put_frame_of,
)
from rhizome.cluster.link.mac_records import Guard, MacReader, MacWriter
from rhizome.cluster.protocol.catalogue import FRAME_NUMBERS
from rhizome.cluster.protocol.frame_dispatch import LAST_NUMBER, FrameHandler, FrameTable
from rhizome.errors import AmqpError, CommandInvalid, ConnectionForced, InternalFault

if TYPE_CHECKING:
    from rhizome.cluster.link.broker_hello import Hello
    from rhizome.cluster.link.death_certificate import DeathCertificate

DIALLING: Final = 0
OPENING: Final = 1
OPEN: Final = 2
CLOSED: Final = 3

HANDSHAKE_FRAME_MAX: Final = 64 * 1024
BATCH_BYTES: Final = 48 * 1024
"""Bulk frames are written in pieces of about this size, and urgent ones go out between them. It is
below what an outbox keeps of its writer, so that the next batch need not grow one again."""


@mypyc_attr(allow_interpreted_subclasses=True)
class LinkHandler:
    """The user of the links, which hears of them. ``frames`` has the handlers of the frames of a
    link that is opened; ``link_up`` may give it others.

    Called in the middle of a wake-up, never from ``Link.send``. It may send on any open link.
    """

    frames: FrameTable

    def __init__(self) -> None:
        self.frames = FrameTable()

    def link_up(self, link: Link) -> None:
        """A link is open. There was none with this peer, or ``link_down`` came first."""
        raise NotImplementedError

    def link_down(self, link: Link, reason: str) -> None:
        """A link that was up is gone; what was sent on it may or may not have arrived."""
        raise NotImplementedError

    def link_congested(self, link: Link) -> None:
        """``link.congested`` has changed: hold back, or release, publishers to this peer."""

    def peer_changed(self, link: Link) -> None:
        """``link.peer`` is a new hello of the same incarnation."""

    def refusal(self, hello: Hello) -> str:
        """Why a broker may not link with this one, if the links themselves see no reason."""
        return ""

    def died(self, certificate: DeathCertificate, payload: bytes) -> None:
        """Somebody has brought a certificate of death, which was verified (R15)."""

    def link_problem(self, name: str, address: str, reason: str) -> None:
        """A link could not be made; called once per reason, not once per attempt."""

    def bug(self, error: BaseException, where: str) -> None:
        """A bug of our own while a frame was handled; its link is closed."""


@mypyc_attr(allow_interpreted_subclasses=True)
class LinkOwner:
    """The owner of a link: ``LinkTable``."""

    now_ms: i64
    handler: LinkHandler
    touched: list[Link]

    def __init__(self, handler: LinkHandler, now_ms: i64) -> None:
        self.now_ms = now_ms
        self.handler = handler
        self.touched = []

    def closed(self, link: Link, reason: str) -> None:
        """A link is CLOSED. Called once."""
        raise NotImplementedError

    def hello_came(self, link: Link, payload: bytes) -> None:
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Opener:
    """The dialling side's handshake."""

    def begin(self, link: Link) -> None:
        raise NotImplementedError

    def step(self, link: Link, payload: bytes) -> None:
        """The payload of a method frame came."""
        raise NotImplementedError


@final
class Link(FrameSink):
    """One end of the connection between two brokers.

    Invariant: ``peer`` is nobody until a dialled peer has proved itself and is asked for the link;
    with ``version`` it is that of the handshake once the stage is OPEN. The link is in
    ``owner.touched`` if and only if ``marked``. Everything that is sent and received on the open
    link is in records with MACs if ``guard`` has them. ``handlers`` has the handler of each frame
    at its number; ``sent_kinds`` and ``received_kinds`` count frames alike. The last entries are
    for all larger numbers.
    """

    owner: LinkOwner
    number: i64
    name: str
    address: str
    dialled: bool
    peer: Hello
    told: Hello
    version: i64
    stage: i64
    reason: str
    opener: Opener | None
    handlers: list[FrameHandler]
    reader: LinkReader
    guard: Guard
    urgent: Outbox
    outbox: Outbox
    batches: list[list[bytes]]
    batch_at: i64
    batch_bytes: i64
    marked: bool
    writable: bool
    congested: bool
    congested_bytes: i64
    backlog_bytes_max: i64
    begun_ms: i64
    opened_ms: i64
    last_received_ms: i64
    last_sent_ms: i64
    sent_frames: i64
    sent_bytes: i64
    received_frames: i64
    received_bytes: i64
    sent_kinds: list[int]
    received_kinds: list[int]
    port: object

    def __init__(
        self,
        owner: LinkOwner,
        number: i64,
        name: str,
        address: str,
        dialled: bool,
        peer: Hello,
        told: Hello,
        congested_bytes: i64,
        backlog_bytes_max: i64,
    ) -> None:
        """``name``: of the broker that is expected at ``address``; ``told``: what the peer knows of
        this one.

        Above ``congested_bytes`` of backlog the link is congested, until it is half of that; above
        ``backlog_bytes_max`` it is closed, because its peer takes nothing.
        """
        self.owner = owner
        self.number = number
        self.name = name
        self.address = address
        self.dialled = dialled
        self.peer = peer
        self.told = told
        self.version = 0
        self.stage = DIALLING
        self.reason = ""
        self.opener = None
        self.handlers = owner.handler.frames.handlers
        self.reader = LinkReader(self, HANDSHAKE_FRAME_MAX)
        self.guard = Guard()
        self.urgent = Outbox()
        self.outbox = Outbox()
        self.batches = []
        self.batch_at = 0
        self.batch_bytes = 0
        self.marked = False
        self.writable = True
        self.congested = False
        self.congested_bytes = congested_bytes
        self.backlog_bytes_max = backlog_bytes_max
        self.begun_ms = owner.now_ms
        self.opened_ms = 0
        self.last_received_ms = owner.now_ms
        self.last_sent_ms = owner.now_ms
        self.sent_frames = 0
        self.sent_bytes = 0
        self.received_frames = 0
        self.received_bytes = 0
        self.sent_kinds = [0] * FRAME_NUMBERS
        self.received_kinds = [0] * FRAME_NUMBERS
        self.port = None

    # ---- sending --------------------------------------------------------------------------------

    def send(self, method: i64, payload: bytes) -> None:
        """Send a bulk frame; on a link that isn't open it is lost, as if the link had broken."""
        if self.stage == OPEN:
            put_frame(self.outbox, method, payload)
            self._sent(method)

    def send_of(self, method: i64, fields: bytes, content: bytes) -> None:
        """Send a bulk frame of fields and a content, which isn't copied if it is large."""
        if self.stage == OPEN:
            put_frame_of(self.outbox, method, fields, content)
            self._sent(method)

    def send_urgent(self, method: i64, payload: bytes) -> None:
        """Send a frame that overtakes bulk frames."""
        if self.stage == OPEN:
            put_frame(self.urgent, method, payload)
            self._count(method)
            self.touch()

    def _sent(self, method: i64) -> None:
        self._count(method)
        if self.outbox.size() >= BATCH_BYTES:
            self._seal()
        self.touch()

    def _count(self, method: i64) -> None:
        self.sent_frames += 1
        self.sent_kinds[method if method < LAST_NUMBER else LAST_NUMBER] += 1

    def _seal(self) -> None:
        """Make a batch of whole frames: urgent frames go between batches, never into one."""
        self.batch_bytes += self.outbox.size()
        self.batches.append(self.outbox.take())

    def touch(self) -> None:
        """Ask for a flush at the end of this wake-up."""
        if not self.marked:
            self.marked = True
            self.owner.touched.append(self)

    def backlog(self) -> i64:
        """Bytes that wait for the socket."""
        return self.urgent.size() + self.batch_bytes + self.outbox.size()

    def is_full(self) -> bool:
        """Whether nothing should be added now, though the handler has not been told yet."""
        return self.congested or self.backlog() > self.congested_bytes

    # ---- what the driver uses -------------------------------------------------------------------

    def connected(self) -> None:
        """The address is connected to: begin the handshake."""
        if self.stage == DIALLING:
            self.stage = OPENING
            self.last_received_ms = self.owner.now_ms
            if self.opener is not None:
                self.opener.begin(self)

    def receive(self, data: bytes) -> None:
        """Take bytes from the connection."""
        if self.stage == CLOSED:
            return
        self.received_bytes += len(data)
        # One name per clause: a variable of compiled code has one type.
        try:
            checked = self.guard.reader
            if checked is None:
                self._receive_plain(data)
            elif checked.receive(data):
                # Bytes without a right MAC are no sign of life: anybody might have sent them.
                self.last_received_ms = self.owner.now_ms
        except AmqpError as fault:
            self.fail(fault)
        except Exception as bug:
            self.owner.handler.bug(bug, f"link with {self.name}")
            self.fail(InternalFault("the broker made a mistake; its log has the details"))

    def _receive_plain(self, data: bytes) -> None:
        self.last_received_ms = self.owner.now_ms
        reader = self.reader
        reader.receive(data)
        checked = self.guard.reader
        if checked is not None and self.stage == OPEN:
            # The link was opened by one of the frames: what is behind that has MACs.
            checked.receive(reader.rest)

    def next_output(self) -> list[bytes]:
        """The next output, in chunks of whole frames; empty if there is nothing."""
        size: i64 = self.urgent.size()
        guard = self.guard
        if len(guard.plain) > 0:
            chunks = guard.plain
            guard.plain = []
            return chunks
        if size > 0:
            chunks = self.urgent.take()
        elif self.batch_at < len(self.batches):
            chunks = self.batches[self.batch_at]
            self.batch_at += 1
            for chunk in chunks:
                size += len(chunk)
            self.batch_bytes -= size
            if self.batch_at == len(self.batches):
                self.batches = []
                self.batch_at = 0
        else:
            size = self.outbox.size()
            chunks = self.outbox.take()
        if size > 0:
            self.sent_bytes += size
            self.last_sent_ms = self.owner.now_ms
            if guard.writer is not None:
                return guard.writer.records(chunks)
        return chunks

    def flushed(self) -> None:
        """The driver has written what the socket takes now."""
        self.marked = False
        if self.stage != OPEN:
            return
        backlog = self.backlog()
        if backlog > self.backlog_bytes_max:
            self.close(f"{backlog} bytes wait for {self.name}, which takes nothing")
        elif self.congested:
            if backlog <= self.congested_bytes // 2:
                self.congested = False
                self.owner.handler.link_congested(self)
        elif backlog > self.congested_bytes:
            self.congested = True
            self.owner.handler.link_congested(self)

    def set_writable(self, writable: bool) -> None:
        """The driver's write buffer has passed its high or low mark."""
        self.writable = writable
        if writable:
            self.touch()

    def lost(self, reason: str) -> None:
        """The connection is gone, or could not be made."""
        self._leave(reason)

    # ---- frames ---------------------------------------------------------------------------------

    def frame(self, method: i64, data: bytes, start: i64, end: i64) -> None:
        if self.stage != OPEN:
            raise CommandInvalid(f"frame {method} of a link before it is open")
        self.received_frames += 1
        at: i64 = method if method < LAST_NUMBER else LAST_NUMBER
        self.received_kinds[at] += 1
        self.handlers[at].take(self, method, data, start, end)

    def other_frame(self, kind: i64, data: bytes, start: i64, end: i64) -> None:
        if kind == FRAME_HEARTBEAT:
            return
        payload = data[start:end]
        if self.opener is not None:
            self.opener.step(self, payload)
            return
        method = decode_method(payload)
        if not isinstance(method, ConnectionClose):
            raise CommandInvalid(f"{method.name()} on a link")
        self._leave(f"closed by {self.name}: {method.reply_text}")

    # ---- opening, time, closing -----------------------------------------------------------------

    def opened(self, peer: Hello, version: i64, frame_max: i64) -> None:
        """The handshake is over. The caller tells the handler."""
        self.peer = peer
        self.name = peer.name
        self.version = version
        self.stage = OPEN
        self.opener = None
        self.opened_ms = self.owner.now_ms
        self.begin_macs()
        self.reader.frame_max = frame_max

    def begin_macs(self) -> None:
        """Open-ok was sent or has come: what follows has MACs, if both ends agreed on them."""
        guard = self.guard
        keys = guard.keys
        if keys is not None:
            guard.keys = None
            guard.plain = self.urgent.take()
            guard.writer = MacWriter(keys[0])
            self.reader.stop()
            self.reader = LinkReader(self, self.reader.frame_max)
            guard.reader = MacReader(self.reader, keys[1])

    def heartbeat(self) -> None:
        self.urgent.put(HEARTBEAT_FRAME)
        self.last_sent_ms = self.owner.now_ms
        self.touch()

    def close(self, reason: str) -> None:
        """End the link and tell the peer why."""
        self.fail(ConnectionForced(reason))

    def fail(self, error: AmqpError) -> None:
        if self.stage == OPENING or self.stage == OPEN:
            self.urgent.put(method_frame(0, ConnectionClose(error.code, error.reply_text(), 0, 0)))
        self._leave(error.text)

    def _leave(self, reason: str) -> None:
        if self.stage == CLOSED:
            return
        self.stage = CLOSED
        self.reason = reason
        self.opener = None
        self.reader.stop()
        self.outbox = Outbox()
        self.batches = []
        self.batch_at = 0
        self.batch_bytes = 0
        self.touch()
        self.owner.closed(self, reason)
