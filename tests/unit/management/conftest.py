"""A broker core in memory with its HTTP API, asked through ASGI: no socket, no process."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import pytest
from starlette.types import ASGIApp, Message

from rhizome.broker.access.auth_interface import AccessEpoch, Peer
from rhizome.broker.connection.connection_states import RUNNING
from rhizome.broker.observer import Observer
from rhizome.broker.queue.queue import Queue
from rhizome.journal.files import MemoryFiles
from rhizome.journal.store import MemoryStore
from rhizome.management.api_context import Context, Listener
from rhizome.management.asgi_application import make_application
from rhizome.management.direct_channel import open_channel
from rhizome.management.http.auth import Caller
from rhizome.management.metrics.message_rates import Rates
from rhizome.security.login_service import LoginService
from rhizome.security.password_hashes import ScryptCost, hash_password
from rhizome.security.permissions import UserIdentity
from rhizome.server.broker_bootstrap import make_broker, make_log
from rhizome.server.broker_server import StateRecords
from rhizome.server.config.broker_config import Config
from rhizome.server.config.config_sections import (
    PASSWORD_COST_MIN,
    BrokerSection,
    MemorySection,
    PermissionDefinition,
    SecuritySection,
    UserDefinition,
)
from rhizome.server.event_loop.broker_driver import Shell
from rhizome.server.event_loop.busy_poll import BusyPoll
from rhizome.testing.in_memory_broker import SEED

T = TypeVar("T")

CHEAP = ScryptCost(1, 1, 1)
EVERYTHING = PermissionDefinition(".*", ".*", ".*")
# user -> tags; the password is the name
USERS = {
    "guest": ("administrator",),
    "monitor": ("monitoring",),
    "maker": ("policymaker",),
    "manager": ("management",),
    "nobody": (),
    "stranger": ("management",),
}


def make_user(name: str, tags: tuple[str, ...]) -> UserDefinition:
    permissions = {} if name == "stranger" else {"/": EVERYTHING}
    encoded = hash_password(name.encode(), cost=CHEAP)
    return UserDefinition(password_hash=encoded, tags=tags, permissions=permissions)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        return str(self.json["reason"])


class Core:
    """A broker that lives in this process and only turns while it is asked something."""

    def __init__(
        self,
        runner: asyncio.Runner,
        resident_budget_bytes: int = 64 << 20,
        name: str = "rhizome",
    ) -> None:
        self.runner = runner
        self.now_ms = 1_000_000
        config = Config(
            broker=BrokerSection(name=name),
            users={name: make_user(name, tags) for name, tags in USERS.items()},
            security=SecuritySection(password_cost=PASSWORD_COST_MIN),
            memory=MemorySection(resident_budget_bytes=resident_budget_bytes),
        )
        loop = runner.get_loop()
        self.store = MemoryStore(MemoryFiles(), bytes(16), self, loop.call_soon)
        log = make_log(self.store)
        epoch = AccessEpoch()
        records = StateRecords()
        login = LoginService(records, epoch, config.login_settings())
        self.broker = make_broker(
            config, self.store, log, login, epoch, Observer(), self.now_ms, SEED
        )
        records.broker = self.broker
        never = BusyPoll(loop, 0, time.monotonic_ns, os.sched_yield)
        self.shell = Shell(
            self.broker, self.broker.cluster, self.store, loop, lambda: self.now_ms, never
        )
        self.context = Context(
            config, self.broker, self.shell, login, self.store, Rates(self.broker), self.now_ms
        )
        self.context.http_listeners = [Listener("http", "127.0.0.1", 15672)]
        self.application = make_application(self.context)

    # ---- events of the store

    def durable(self, token: int) -> None:
        self.shell.durable(token)

    def alarm(self, text: str) -> None:
        raise AssertionError(text)

    def failed(self, error: BaseException) -> None:
        raise error

    # ---- what tests use

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def queue(self, name: str, vhost: str = "/") -> Queue:
        queue = self.broker.state.vhosts[vhost].destinations[name]
        assert isinstance(queue, Queue)
        return queue


class Api:
    """Asks as one user; `api.get("queues", "/", "orders")` quotes the parts of a path."""

    def __init__(self, core: Core, user: str = "guest", host: str = "127.0.0.1") -> None:
        self.core = core
        self.user = user
        self.host = host

    def get(self, *parts: str, query: str = "") -> Answer:
        return self.ask("GET", path(*parts) + (f"?{query}" if query else ""))

    def put(self, *parts: str, **document: Any) -> Answer:
        return self.ask("PUT", path(*parts), json.dumps(document).encode())

    def post(self, *parts: str, **document: Any) -> Answer:
        return self.ask("POST", path(*parts), json.dumps(document).encode())

    def delete(self, *parts: str, query: str = "") -> Answer:
        return self.ask("DELETE", path(*parts) + (f"?{query}" if query else ""))

    def ask(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        password: str | None = None,
    ) -> Answer:
        return self.core.run(self.asking(method, target, body, headers, password))

    def asking(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        password: str | None = None,
    ) -> Coroutine[Any, Any, Answer]:
        login = f"{self.user}:{self.user if password is None else password}".encode()
        sent = {"authorization": "Basic " + base64.b64encode(login).decode()} if self.user else {}
        sent.update(headers or {})
        scope = make_scope(method, target, sent, self.host)
        return call(self.core.application, scope, body)

    def publish(self, queue: str, payload: str, **properties: Any) -> None:
        answer = self.post(
            "exchanges",
            "/",
            "amq.default",
            "publish",
            routing_key=queue,
            payload=payload,
            payload_encoding="string",
            properties=properties,
        )
        assert answer.json == {"routed": True}, answer.body

    def browse(self, queue: str, query: str = "count=1000") -> list[Any]:
        answer = self.get("rhizome", "queues", "/", queue, "messages", query=query)
        assert answer.status == 200, answer.body
        found: list[Any] = answer.json
        return found

    def payloads(self, queue: str) -> list[str]:
        return [message["payload"] for message in self.browse(queue)]


def path(*parts: str) -> str:
    return "/api/" + "/".join(quote(part, safe="") for part in parts)


def make_scope(method: str, target: str, headers: dict[str, str], host: str) -> dict[str, Any]:
    raw, _, query = target.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": raw,
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), text.encode()) for name, text in headers.items()],
        "client": (host, 40000),
        "server": ("127.0.0.1", 15672),
    }


async def call(application: ASGIApp, scope: dict[str, Any], body: bytes) -> Answer:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await application(scope, receive, send)
    headers = {name.decode(): text.decode("latin-1") for name, text in sent[0]["headers"]}
    whole = b"".join(message.get("body", b"") for message in sent[1:])
    return Answer(sent[0]["status"], headers, whole)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def core(runner: asyncio.Runner) -> Core:
    return Core(runner)


@pytest.fixture
def api(core: Core) -> Api:
    return Api(core)


@pytest.fixture
def as_user(core: Core) -> Callable[[str], Api]:
    return lambda user: Api(core, user)


@pytest.fixture
def two_vhosts(core: Core, api: Api) -> Core:
    """One message in vhost /, which most may enter, and two in another one."""
    api.put("vhosts", "closed")
    for vhost, count in (("/", 1), ("closed", 2)):
        api.put("queues", vhost, "q")
        for _ in range(count):
            publish(api, vhost)
    core.run(core.context.rates.sample())
    core.now_ms += 5000
    publish(api, "/")
    publish(api, "closed")
    core.run(core.context.rates.sample())
    return core


def publish(api: Api, vhost: str) -> None:
    sent = api.post(
        *("exchanges", vhost, "amq.default", "publish"),
        routing_key="q",
        payload="x",
        payload_encoding="string",
        properties={},
    )
    assert sent.json == {"routed": True}


def connect(core: Core, number: int, user: str) -> None:
    broker = core.broker
    identity = UserIdentity(user, "application", (), broker.state, broker.access_epoch)
    caller = Caller(identity, Peer("127.0.0.1", number, loopback=True))
    channel = open_channel(broker, broker.state.vhosts["/"], caller)
    channel.connection.stage = RUNNING
    channel.connection.channels[1] = channel
    broker.connections[number] = channel.connection
