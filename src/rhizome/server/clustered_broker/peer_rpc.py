"""Peer RPC: brokers of a cluster send each other the requests that their HTTP APIs need.

Requests go over the links. These exist already, know who is at the other end, and are as safe as
anything between brokers, so no second connection with addresses, passwords and certificates of its
own is needed. Secondaries have no link with each other; a primary forwards their requests.

A broker of the cluster may ask in the name of any user, because it has the cluster key, and whoever
has the key is the cluster. So the audit log names the broker that each change has come from.

Peer requests are HTTP_REQUEST frames, and responses come in pieces as HTTP_RESPONSE frames. Pieces
are sent only while the link has room, so that a long response never holds up messages.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rhizome.broker.queue.queue import Queue
from rhizome.cluster.link.broker_hello import SECONDARY
from rhizome.cluster.link.link import OPEN, Link
from rhizome.cluster.node import Node
from rhizome.cluster.protocol.catalogue import HTTP_REQUEST, HTTP_RESPONSE
from rhizome.cluster.protocol.frame_dispatch import PayloadHandler
from rhizome.management.peers.peer_requests import PeerRequest, PeerResponse, PeerUnreachable
from rhizome.server.event_loop.broker_driver import Shell

logger = logging.getLogger("rhizome.management")

PIECE_BYTES: Final = 48 * 1024
ANSWER_BYTES_MAX: Final = 128 << 20
QUESTIONS_MAX: Final = 64
"""Of one broker, at the same time."""

ROOM_POLL_SECONDS: Final = 0.005
ROOM_SECONDS_MAX: Final = 30.0

_NUMBER: Final = struct.Struct(">Q")
_PIECE: Final = struct.Struct(">QB")
_LENGTH: Final = struct.Struct(">I")

Answerer = Callable[[PeerRequest], Awaitable[PeerResponse]]


@dataclass(slots=True)
class PendingPeerRequest:
    """A peer request that waits for its response."""

    link: Link
    broker: str
    answer: asyncio.Future[bytes]
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0


async def starting(question: PeerRequest) -> PeerResponse:
    """The response of a broker whose API has not started yet."""
    return refusal("this broker is starting")


class PeerRpc:
    """Implements ``PeerBrokers``. Invariant: ``_open`` has every waiting request, by its number.

    It exists before the first link, since an unknown frame ends a link; ``answer`` is set when the
    API has started.
    """

    def __init__(self, shell: Shell, node: Node) -> None:
        self._shell = shell
        self._node = node
        self.answer: Answerer = starting
        self._numbers = 0
        self._open: dict[int, PendingPeerRequest] = {}
        self._answering: dict[asyncio.Task[None], Link] = {}
        node.frames.register(HTTP_REQUEST, PayloadHandler(self.asked))
        node.frames.register(HTTP_RESPONSE, PayloadHandler(self.told))
        node.when_down.append(self.link_down)

    # ---- Others ---------------------------------------------------------------------------------

    def names(self) -> list[str]:
        node = self._node
        linked = [link.name for link in node.links.open_links()]
        found = [
            record.name
            for record in node.state.registry.view()
            if record.name != node.me.name and record.incarnation and self._way_to(record.name)
        ]
        return list(dict.fromkeys([*found, *linked]))

    def home_of(self, queue: Queue) -> str:
        group = self._node.state.group_of(queue.definition)
        return "" if group is None else group.home

    def links(self) -> list[dict[str, object]]:
        return [
            {
                "broker": each.name,
                "open_ms": each.open_ms,
                "silent_ms": each.silent_ms,
                "backlog_bytes": each.backlog_bytes,
                "congested": each.congested,
                "sent_bytes": each.sent_bytes,
                "received_bytes": each.received_bytes,
            }
            for each in self._node.links.statistics()
        ]

    async def ask(self, broker: str, question: PeerRequest, seconds: float) -> PeerResponse:
        link = self._way_to(broker)
        if link is None:
            raise PeerUnreachable(f"broker '{broker}' can't be reached")
        self._numbers += 1
        number = self._numbers
        asked = PendingPeerRequest(link, broker, asyncio.get_running_loop().create_future())
        self._open[number] = asked
        try:
            async with asyncio.timeout(seconds):
                self._shell.begin_turn()
                link.send(HTTP_REQUEST, encode_question(number, broker, question))
                return decode_reply(await asked.answer)
        except TimeoutError:
            raise PeerUnreachable(
                f"broker '{broker}' has not answered within {seconds:g} s"
            ) from None
        finally:
            del self._open[number]

    def _way_to(self, broker: str) -> Link | None:
        """The link with a broker; from one secondary to another, the link with a primary."""
        links = self._node.links
        link = links.link_to(broker)
        record = self._node.state.registry.brokers.get(broker)
        if link is not None or record is None:
            return link
        if record.role != SECONDARY or self._node.me.role != SECONDARY:
            return None
        through = links.link_to(self._node.consensus.root)
        return through or next(iter(links.open_links()), None)

    # ---- frames ---------------------------------------------------------------------------------

    def asked(self, link: Link, payload: bytes) -> None:
        """A peer request has come."""
        number, to, question = decode_question(payload)
        question = replace(question, origin=origin_of(link.name, question.origin))
        count = sum(1 for each in self._answering.values() if each is link)
        if count >= QUESTIONS_MAX:
            self._shell.begin_turn()
            link.send(HTTP_RESPONSE, _PIECE.pack(number, 1) + encode_reply(busy()))
            return
        task = asyncio.get_running_loop().create_task(self._tell(link, number, to, question))
        self._answering[task] = link
        task.add_done_callback(self._answering.pop)

    def told(self, link: Link, payload: bytes) -> None:
        """A piece of a response has come."""
        number, is_last = _PIECE.unpack_from(payload)
        asked = self._open.get(number)
        if asked is None or asked.answer.done():
            return
        asked.pieces.append(payload[_PIECE.size :])
        asked.size += len(payload)
        if asked.size > ANSWER_BYTES_MAX:
            asked.answer.set_exception(
                PeerUnreachable(f"broker '{asked.broker}' answers with more than can be passed on")
            )
        elif is_last:
            asked.answer.set_result(b"".join(asked.pieces))

    def link_down(self, link: Link) -> None:
        for asked in self._open.values():
            if asked.link is link and not asked.answer.done():
                asked.answer.set_exception(PeerUnreachable(f"the link with {link.name} is down"))

    # ---- answering ------------------------------------------------------------------------------

    async def _tell(self, link: Link, number: int, to: str, question: PeerRequest) -> None:
        try:
            reply = await self._reply(link, to, question)
            await self._send(link, number, encode_reply(reply))
        except Exception:
            logger.exception("%s %s, asked by %s", question.method, question.target, link.name)

    async def _reply(self, link: Link, to: str, question: PeerRequest) -> PeerResponse:
        if to == self._node.me.name:
            return await self.answer(question)
        if self._node.links.link_to(to) is None or link.peer.role != SECONDARY:
            return refusal(f"broker '{to}' can't be reached from '{self._node.me.name}'")
        try:
            return await self.ask(to, question, ROOM_SECONDS_MAX)
        except PeerUnreachable as error:
            return refusal(error.reason)

    async def _send(self, link: Link, number: int, answer: bytes) -> None:
        async with asyncio.timeout(ROOM_SECONDS_MAX):
            for at in range(0, len(answer), PIECE_BYTES):
                while link.is_full():  # noqa: ASYNC110 - a link tells its handler, not its users
                    await asyncio.sleep(ROOM_POLL_SECONDS)
                if link.stage != OPEN:
                    return
                is_last = at + PIECE_BYTES >= len(answer)
                piece = answer[at : at + PIECE_BYTES]
                self._shell.begin_turn()
                link.send(HTTP_RESPONSE, _PIECE.pack(number, int(is_last)) + piece)
                await asyncio.sleep(0)


# ---- the wire -----------------------------------------------------------------------------------


def encode_question(number: int, to: str, question: PeerRequest) -> bytes:
    head: dict[str, object] = {
        "to": to,
        "method": question.method,
        "target": question.target,
        "user": question.user,
        "reason": question.reason,
    }
    for name in ("token", "address", "origin"):
        if getattr(question, name):
            head[name] = getattr(question, name)
    return _NUMBER.pack(number) + _packed(head, question.body)


def decode_question(payload: bytes) -> tuple[int, str, PeerRequest]:
    (number,) = _NUMBER.unpack_from(payload)
    head, body = _unpacked(payload[_NUMBER.size :])
    question = PeerRequest(
        head["method"],
        head["target"],
        head["user"],
        body,
        head["reason"],
        head.get("token", ""),
        head.get("address", ""),
        head.get("origin", ""),
    )
    return number, head["to"], question


def origin_of(link: str, told: str) -> str:
    """Who asks, for the audit log: the broker at the other end, which has proved its name, and if
    that broker forwards a request, the broker that it comes from."""
    return f"{told} through {link}" if told else link


def encode_reply(reply: PeerResponse) -> bytes:
    head: dict[str, object] = {"status": reply.status, "type": reply.content_type}
    if reply.checksum:
        head["crc32c"] = reply.checksum
    return _packed(head, reply.body)


def decode_reply(payload: bytes) -> PeerResponse:
    head, body = _unpacked(payload)
    return PeerResponse(head["status"], head["type"], body, head.get("crc32c", ""))


def _packed(head: dict[str, object], body: bytes) -> bytes:
    text = json.dumps(head).encode()
    return _LENGTH.pack(len(text)) + text + body


def _unpacked(payload: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = _LENGTH.unpack_from(payload)
    end = _LENGTH.size + length
    return json.loads(payload[_LENGTH.size : end]), payload[end:]


def refusal(reason: str) -> PeerResponse:
    body = json.dumps({"error": "service_unavailable", "reason": reason}).encode()
    return PeerResponse(503, "application/json", body)


def busy() -> PeerResponse:
    return refusal("too many questions at once; ask again")
