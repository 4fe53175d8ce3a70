"""Long answers are made a little at a time: messages never wait for them.

Measured is the time on the processor between two turns of the event loop, in units of what a piece
of work takes just then: a machine may be busy, or slow.
"""

from __future__ import annotations

import asyncio
import gc
import json
from base64 import b64encode
from collections.abc import Iterator
from time import thread_time
from typing import Final

import pytest

from rhizome.broker.access.auth_interface import Peer
from rhizome.broker.connection.connection_states import RUNNING
from rhizome.broker.metadata.metadata_commands import DeclareQueue
from rhizome.management.direct_channel import open_channel
from rhizome.management.http.auth import Caller
from rhizome.management.metrics.queue_history import SAMPLES_MAX
from rhizome.management.peers.peer_request_handler import respond
from rhizome.management.peers.peer_requests import PeerRequest
from rhizome.security.permissions import UserIdentity
from rhizome.server.alarms_and_compaction import FROZEN_STATE_BYTES, Maintenance
from rhizome.server.broker_server import GC_THRESHOLDS
from rhizome.server.config.broker_config import Config
from tests.unit.management.conftest import Answer, Api, Core, call, make_scope
from tests.unit.management.peers.test_cluster_wide_queries import FakeOthers

QUEUES: Final = 1000
CONNECTIONS: Final = 1000
UNIT_ROUNDS: Final = 8_000
PAUSE_UNITS_MAX: Final = 25.0
"""A unit is about a millisecond of a processor that is free."""

BODY_UNITS_MAX: Final = 100.0
"""Of a long body: one string of it is read at once."""

MANY_UNITS_MAX: Final = 60.0
"""Of a hundred requests that come in the same moment."""


@pytest.fixture
def full(core: Core) -> Iterator[Core]:
    """A broker with a thousand queues and a thousand connections. As in a broker's process, what
    was there before is none of the collector's business."""
    gc.collect()
    gc.freeze()
    yield fill(core)
    gc.unfreeze()


def fill(core: Core, prefix: str = "queue") -> Core:
    queues = [
        {"vhost": "/", "name": f"{prefix}-{number:05}", "durable": True, "arguments": {}}
        for number in range(QUEUES)
    ]
    document = json.dumps({"queues": queues}).encode()
    assert Api(core).ask("POST", "/api/definitions", document).status == 204
    broker = core.broker
    vhost = broker.state.vhosts["/"]
    identity = UserIdentity("guest", "application", (), broker.state, broker.access_epoch)
    for number in range(CONNECTIONS):
        channel = open_channel(broker, vhost, Caller(identity, core_peer(number)))
        connection = channel.connection
        connection.name = f"127.0.0.1:{number} -> 127.0.0.1:5672"
        connection.stage = RUNNING
        connection.client_properties = {"product": "test", "capabilities": {"basic.nack": True}}
        connection.channels[1] = channel
        broker.connections[number] = connection
    return core


def core_peer(number: int) -> Peer:
    return Peer("127.0.0.1", number, loopback=True)


def unit_seconds() -> float:
    """What a unit of work takes now, at the least."""
    taken = []
    for _ in range(5):
        before = thread_time()
        for number in range(UNIT_ROUNDS):
            str(number)
        taken.append(thread_time() - before)
    return min(taken)


def longest_pause(
    core: Core,
    target: str,
    user: str = "guest",
    method: str = "GET",
    body: bytes = b"",
    times: int = 1,
) -> tuple[float, Answer]:
    """Ask so many ``times`` at once, and note how many units of work the loop was held at most."""
    login = "Basic " + b64encode(f"{user}:{user}".encode()).decode()
    scope = make_scope(method, target, {"authorization": login}, "127.0.0.1")

    async def scenario() -> tuple[float, Answer]:
        longest = 0.0
        asked = asyncio.gather(*(call(core.application, scope, body) for _ in range(times)))
        while not asked.done():
            before = thread_time()
            await asyncio.sleep(0)
            longest = max(longest, thread_time() - before)
        return longest, (await asked)[0]

    before = unit_seconds()
    longest, answer = core.run(scenario())
    return longest / max(before, unit_seconds()), answer


@pytest.mark.parametrize(
    "target",
    [
        "/api/queues",
        "/api/queues?history=true&sort=messages&sort_reverse=true&page=1&page_size=500",
        "/api/queues?name=5&columns=name,messages",
        "/api/connections",
        "/api/channels",
        "/api/bindings",
        "/api/definitions",
        "/api/overview",
        "/api/vhosts",
        "/api/rhizome/live?history=true",
        "/api/rhizome/status",
        "/metrics",
        "/metrics/per-object",
    ],
)
def test_no_answer_holds_the_loop_for_long(full: Core, target: str) -> None:
    longest_pause(full, target)
    full.run(full.context.rates.sample())
    pause, answer = longest_pause(full, target)
    assert answer.status == 200
    assert pause < PAUSE_UNITS_MAX, pause


def test_many_lists_at_once_do_not_either(full: Core) -> None:
    longest_pause(full, "/api/queues")
    pause, answer = longest_pause(full, "/api/queues?sort=messages&page=1", times=100)
    assert answer.status == 200
    assert pause < MANY_UNITS_MAX, pause


PUBLISH: Final = "/api/exchanges/%2F/amq.default/publish"
LARGE: Final = 7 << 20
"""Below what a request that publishes may have."""


@pytest.mark.parametrize(
    ("method", "target", "body", "status"),
    [
        ("POST", PUBLISH, b'{"payload": [' + b"[]," * (LARGE // 3) + b"[]]}", 400),
        ("POST", PUBLISH, b'{"payload": [' + b"0.5," * (LARGE // 4) + b"0]}", 400),
        ("POST", PUBLISH, b'{"payload": "' + b"\\n" * (LARGE // 2) + b'"}', 400),
        ("POST", "/api/definitions", b'{"queues": [' + b"{}," * (LARGE // 3) + b"{}]}", 400),
        ("POST", "/api/definitions", b'{"queues": ' + b"[" * LARGE, 400),
        (
            "PUT",
            "/api/parameters/c/%2F/p",
            b'{"value": [' + b"0.5," * 7_000 + b"0]}",
            201,
        ),
    ],
    ids=["lists", "numbers", "escapes", "entries", "depth", "parameter"],
)
def test_no_body_holds_the_loop_for_long(
    core: Core, method: str, target: str, body: bytes, status: int
) -> None:
    gc.collect()
    gc.freeze()
    longest_pause(core, "/api/whoami")
    pause, answer = longest_pause(core, target, method=method, body=body)
    gc.unfreeze()
    assert answer.status == status, answer.body[:200]
    assert pause < BODY_UNITS_MAX, pause


def test_a_large_message_is_taken_in_steps(core: Core, api: Api) -> None:
    api.put("queues", "/", "q")
    fields = {"routing_key": "q", "properties": {}, "payload_encoding": "base64"}
    body = b64encode(b"\xff" * (5 << 20)).decode()
    sent = json.dumps({**fields, "payload": body}).encode()
    pause, answer = longest_pause(core, PUBLISH, method="POST", body=sent)
    assert answer.json == {"routed": True}
    assert pause < BODY_UNITS_MAX, pause
    asked = b'{"count": 1, "ackmode": "ack_requeue_true"}'
    pause, answer = longest_pause(core, "/api/queues/%2F/q/get", method="POST", body=asked)
    assert answer.json[0]["payload"] == body
    assert pause < PAUSE_UNITS_MAX, pause


def test_the_collector_is_spared_what_was_declared_in_great_number(core: Core) -> None:
    """A look at the objects of 60,000 queues takes half a second."""
    config = core.context.config
    assert isinstance(config, Config)
    maintenance = Maintenance(config, core.broker, core.store, core.shell)
    gc.collect()
    before = gc.get_freeze_count()
    maintenance.freeze_state()
    assert gc.get_freeze_count() == before
    propose = core.broker.cluster.propose
    made = 0
    while core.broker.state.sizes.total < FROZEN_STATE_BYTES + maintenance.frozen_state_bytes:
        propose(DeclareQueue("/", f"many-{made}", True, False, "", {"a": "x" * 2000}), None)
        made += 1
    try:
        maintenance.freeze_state()
        assert gc.get_freeze_count() >= before + made
        frozen = gc.get_freeze_count()
        maintenance.freeze_state()
        assert gc.get_freeze_count() == frozen, "once for so much growth"
    finally:
        gc.unfreeze()


def test_no_look_of_the_collector_is_long() -> None:
    youngest, survivors, _ = GC_THRESHOLDS
    assert youngest * survivors <= 250_000


def test_a_page_does_not_make_all_rows(full: Core) -> None:
    """Of a thousand queues, a hundred rows are made."""
    before = thread_time()
    longest_pause(full, "/api/queues")
    whole = thread_time() - before
    before = thread_time()
    _, answer = longest_pause(full, "/api/queues?page=1&page_size=10")
    assert thread_time() - before < whole / 2
    assert len(answer.json["items"]) == 10


def test_the_share_of_a_user_does_not_either(full: Core) -> None:
    target = "/api/rhizome/live?history=true"
    longest_pause(full, target, "manager")
    history = full.context.rates.history
    for number in range(SAMPLES_MAX):
        history.begin(number)
        for queue_id in (int(queue.id) for queue in full.context.rates.queues()):
            history.add(queue_id, (number, 0, number, 0, 0, 0), True)
    pause, answer = longest_pause(full, target, "manager")
    assert answer.json["loads"]["rhizome"]["history"]["ready"][-1] == QUEUES * (SAMPLES_MAX - 1)
    assert pause < PAUSE_UNITS_MAX, pause


def test_rows_of_other_brokers_do_not_either(full: Core, runner: asyncio.Runner) -> None:
    other = fill(Core(runner, name="b2"), "other")
    full.context.others = FakeOthers(other)
    gc.collect()
    gc.freeze()
    longest_pause(full, "/api/queues?sort=name")
    pause, answer = longest_pause(full, "/api/queues?sort=name")
    assert len(answer.json) == 2 * QUEUES
    assert pause < PAUSE_UNITS_MAX, pause
    reply = full.run(respond(other.application, PeerRequest("GET", "/api/queues", "guest")))
    assert reply.body.count(b"\n") == QUEUES


def test_a_sample_of_all_queues_and_connections_does_not_either(full: Core) -> None:
    async def scenario() -> float:
        longest = 0.0
        sampling = asyncio.create_task(full.context.rates.sample())
        while not sampling.done():
            before = thread_time()
            await asyncio.sleep(0)
            longest = max(longest, thread_time() - before)
        return longest

    before = unit_seconds()
    longest = full.run(scenario())
    assert longest / max(before, unit_seconds()) < PAUSE_UNITS_MAX
