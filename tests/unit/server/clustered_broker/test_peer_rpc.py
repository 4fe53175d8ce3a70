"""Questions between brokers: the wire, pieces, and what happens when somebody doesn't answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.cluster.link.broker_hello import Hello
from rhizome.cluster.link.link import OPEN
from rhizome.cluster.protocol.catalogue import HTTP_RESPONSE
from rhizome.cluster.protocol.frame_dispatch import FrameTable, PayloadHandler
from rhizome.management.peers.peer_requests import PeerRequest, PeerResponse, PeerUnreachable
from rhizome.server.clustered_broker.peer_rpc import (
    PIECE_BYTES,
    QUESTIONS_MAX,
    PeerRpc,
    decode_question,
    decode_reply,
    encode_question,
    encode_reply,
)

QUESTION = PeerRequest("GET", "/api/queues?x=1", "guest")


@given(st.text(), st.text(), st.text(), st.binary(), st.text())
def test_questions_come_over_as_they_are(
    target: str, user: str, to: str, body: bytes, reason: str
) -> None:
    question = PeerRequest("POST", target, user, body, reason)
    assert decode_question(encode_question(7, to, question)) == (7, to, question)


@given(st.integers(100, 599), st.text(), st.binary())
def test_replies_come_over_as_they_are(status: int, kind: str, body: bytes) -> None:
    reply = PeerResponse(status, kind, body)
    assert decode_reply(encode_reply(reply)) == reply


class FakeLink:
    """Hands frames to the handler of the other end, in the next iteration of the loop."""

    def __init__(self, name: str, role: str) -> None:
        self.name = name
        self.peer = Hello(name, "0" * 32, "1", role=role)
        self.stage = OPEN
        self.full = False
        self.deliver: Callable[[int, bytes], None] = lambda method, payload: None
        self.sent: list[int] = []

    def send(self, method: int, payload: bytes) -> None:
        self.sent.append(len(payload))
        asyncio.get_running_loop().call_soon(self.deliver, method, payload)

    def is_full(self) -> bool:
        return self.full


class FakeLinks:
    def __init__(self) -> None:
        self.links: dict[str, FakeLink] = {}

    def link_to(self, name: str) -> FakeLink | None:
        return self.links.get(name)

    def open_links(self) -> list[FakeLink]:
        return list(self.links.values())

    def statistics(self) -> list[object]:
        return []


class Shell:
    def begin_turn(self) -> None:
        pass


ROLES = {"b1": "primary", "b2": "primary", "s1": "secondary", "s2": "secondary"}


class World:
    """Four brokers, linked as a cluster links them."""

    def __init__(self) -> None:
        self.brokers: dict[str, PeerRpc] = {}
        self.links: dict[str, FakeLinks] = {name: FakeLinks() for name in ROLES}
        self.frames = {name: FrameTable() for name in ROLES}
        for name in ROLES:
            self.brokers[name] = PeerRpc(Shell(), self._node(name))  # type: ignore[arg-type]
            self.brokers[name].answer = self._answerer(name)
        for one, role in ROLES.items():
            for other, other_role in ROLES.items():
                if one != other and "primary" in (role, other_role):
                    self._link(one, other)

    def _node(self, name: str) -> Any:
        records = {
            each: SimpleNamespace(name=each, role=role, incarnation="1")
            for each, role in ROLES.items()
        }
        registry = SimpleNamespace(brokers=records, view=lambda: list(records.values()))
        return SimpleNamespace(
            me=SimpleNamespace(name=name, role=ROLES[name]),
            links=self.links[name],
            state=SimpleNamespace(registry=registry),
            consensus=SimpleNamespace(root="b1"),
            frames=self.frames[name],
            when_down=[],
        )

    def _link(self, one: str, other: str) -> None:
        """The end of ``one``."""
        link = FakeLink(other, ROLES[other])
        self.links[one].links[other] = link

        def deliver(method: int, payload: bytes) -> None:
            end = self.links[other].links[one]
            handler = self.frames[other].handlers[method]
            assert isinstance(handler, PayloadHandler)
            handler.function(end, payload)  # type: ignore[arg-type]

        link.deliver = deliver

    def _answerer(self, name: str) -> Callable[[PeerRequest], Coroutine[Any, Any, PeerResponse]]:
        async def answer(question: PeerRequest) -> PeerResponse:
            return PeerResponse(200, "text/plain", f"{name} says {question.target}".encode())

        return answer


def run(work: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(10):
            await work(World())

    asyncio.run(limited())


@pytest.mark.parametrize("asker", ROLES)
def test_everybody_can_ask_everybody_secondaries_through_a_primary(asker: str) -> None:
    async def scenario(world: World) -> None:
        names = world.brokers[asker].names()
        assert sorted(names) == sorted(set(ROLES) - {asker})
        for name in names:
            reply = await world.brokers[asker].ask(name, QUESTION, 5)
            assert reply.body == f"{name} says /api/queues?x=1".encode()

    run(scenario)


@pytest.mark.parametrize(
    ("asker", "asked", "origin"),
    [("b1", "b2", "b1"), ("s1", "b2", "s1"), ("s1", "s2", "s1 through b1")],
)
def test_who_answers_knows_which_broker_asks(asker: str, asked: str, origin: str) -> None:
    """By its link, which has proved it: no question can name another broker instead."""

    async def scenario(world: World) -> None:
        seen: list[str] = []

        async def answer(question: PeerRequest) -> PeerResponse:
            seen.append(question.origin)
            return PeerResponse(200, "x", b"")

        world.brokers[asked].answer = answer
        await world.brokers[asker].ask(asked, QUESTION, 5)
        await world.brokers[asker].ask(asked, replace(QUESTION, origin="b9"), 5)
        assert seen[0] == origin
        assert origin.rsplit(maxsplit=1)[-1] in seen[1]

    run(scenario)


def test_a_long_answer_comes_in_pieces_while_the_link_has_room() -> None:
    async def scenario(world: World) -> None:
        body = bytes(range(256)) * 4000

        async def answer(question: PeerRequest) -> PeerResponse:
            return PeerResponse(200, "x", body)

        world.brokers["b2"].answer = answer
        back = world.links["b2"].links["b1"]
        back.full = True
        asking = asyncio.create_task(world.brokers["b1"].ask("b2", QUESTION, 5))
        await asyncio.sleep(0.05)
        assert back.sent == []
        back.full = False
        assert (await asking).body == body
        assert max(back.sent) <= PIECE_BYTES + 16
        assert len(back.sent) == len(body) // PIECE_BYTES + 1

    run(scenario)


def test_nobody_waits_for_a_broker_that_does_not_answer() -> None:
    async def scenario(world: World) -> None:
        world.links["b1"].links["b2"].deliver = lambda method, payload: None
        with pytest.raises(PeerUnreachable, match=r"'b2' has not answered within 0\.05 s"):
            await world.brokers["b1"].ask("b2", QUESTION, 0.05)

    run(scenario)


def test_a_question_ends_with_its_link() -> None:
    async def scenario(world: World) -> None:
        link = world.links["b1"].links["b2"]
        link.deliver = lambda method, payload: None
        asking = asyncio.create_task(world.brokers["b1"].ask("b2", QUESTION, 5))
        await asyncio.sleep(0)
        world.brokers["b1"].link_down(link)  # type: ignore[arg-type]
        with pytest.raises(PeerUnreachable, match="the link with b2 is down"):
            await asking

    run(scenario)


def test_a_broker_without_a_link_can_not_be_asked() -> None:
    async def scenario(world: World) -> None:
        del world.links["b1"].links["b2"]
        assert "b2" not in world.brokers["b1"].names()
        with pytest.raises(PeerUnreachable, match="can't be reached"):
            await world.brokers["b1"].ask("b2", QUESTION, 5)

    run(scenario)


def test_a_primary_passes_on_for_secondaries_only() -> None:
    async def scenario(world: World) -> None:
        end = world.links["b1"].links["b2"]
        told: list[bytes] = []
        end.deliver = lambda method, payload: told.append(payload)
        world.brokers["b1"].asked(end, encode_question(1, "s1", QUESTION))  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        assert decode_reply(told[0][9:]).status == 503

    run(scenario)


def test_too_many_questions_at_once_are_refused() -> None:
    async def scenario(world: World) -> None:
        never = asyncio.Event()

        async def answer(question: PeerRequest) -> PeerResponse:
            await never.wait()
            return PeerResponse(200, "x", b"")

        world.brokers["b2"].answer = answer
        asking = [
            asyncio.create_task(world.brokers["b1"].ask("b2", QUESTION, 5))
            for _ in range(QUESTIONS_MAX + 1)
        ]
        done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result().status for task in done] == [503]
        never.set()
        await asyncio.gather(*asking)

    run(scenario)


def test_an_answer_that_comes_too_late_is_dropped() -> None:
    async def scenario(world: World) -> None:
        late = b"\0" * 7 + b"\x63" + b"\x01" + encode_reply(PeerResponse(200, "", b""))
        world.links["b2"].links["b1"].deliver(HTTP_RESPONSE, late)

    run(scenario)
