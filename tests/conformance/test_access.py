"""Users, permissions and vhosts, made over the HTTP API and felt on the wire."""

from __future__ import annotations

import base64
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest

from rhizome.amqp import methods as m
from rhizome.amqp.properties import Properties
from rhizome.testing.broker_process import Broker, wait_until
from tests.conformance.wire_driver import Channel, ConnectionClosed, EndOfStream

from . import differences
from .conftest import Connect, Unique

PASSWORD = "a-long-enough-password"


class Http:
    """The few calls of the management API that these tests make."""

    def __init__(self, broker: Broker) -> None:
        self.base = f"{broker.http_url}/api"
        login = f"{broker.user}:{broker.password}".encode()
        self.headers = {
            "Authorization": f"Basic {base64.b64encode(login).decode()}",
            "Content-Type": "application/json",
        }

    def call(self, verb: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, self.headers, method=verb)
        with urllib.request.urlopen(request, timeout=10) as answer:
            text = answer.read()
        return json.loads(text) if text else None


@pytest.fixture
def http(broker: Broker) -> Http:
    return Http(broker)


@pytest.fixture
def user(http: Http, unique: Unique) -> Iterator[Callable[..., str]]:
    """Makes users: `user(configure="^mine", write=".*", read="")`."""
    made: list[str] = []

    def make(configure: str = "", write: str = "", read: str = "", vhost: str = "/") -> str:
        name = f"u{len(made)}-{time.time_ns() % 10**10}"
        http.call("PUT", f"/users/{name}", {"password": PASSWORD, "tags": ""})
        made.append(name)
        rights = {"configure": configure, "write": write, "read": read}
        http.call("PUT", f"/permissions/{quote(vhost, safe='')}/{name}", rights)
        return name

    yield make
    for name in made:
        http.call("DELETE", f"/users/{name}")


@pytest.fixture
def channel_of(connect: Connect) -> Callable[..., Channel]:
    return lambda name, **options: connect(user=name, password=PASSWORD, **options).channel()


ChannelOf = Callable[..., Channel]
MakeUser = Callable[..., str]


def refused(kind: str, name: str, user: str, cause: str) -> str:
    text = f"access to {kind} '{name}' in vhost '/' refused for user '{user}'"
    return f"403 ACCESS_REFUSED - {text} ({cause})"


def test_a_user_without_permissions_on_the_vhost_is_refused(
    http: Http, user: MakeUser, connect: Connect
) -> None:
    name = user()
    http.call("DELETE", f"/permissions/%2F/{name}")
    with pytest.raises(ConnectionClosed) as closed:
        connect(user=name, password=PASSWORD)
    text = f"access to vhost '/' refused for user '{name}'"
    assert str(closed.value) == f"530 NOT_ALLOWED - {text} (10.40)"


@differences.REFUSAL_TEXTS
def test_configure_is_needed_to_declare_and_delete(user: MakeUser, channel_of: ChannelOf) -> None:
    name = user(configure="^mine")
    channel = channel_of(name)
    channel.call(m.QueueDeclare("mine-q", exclusive=True), m.QueueDeclareOk)
    channel.call(m.QueueDelete("mine-q"), m.QueueDeleteOk)
    declared = channel.fails(m.QueueDeclare("other", exclusive=True))
    assert str(declared) == refused("queue", "other", name, "50.10")
    deleted = channel.connection.channel().fails(m.QueueDelete("other"))
    assert str(deleted) == refused("queue", "other", name, "50.40")
    exchange = channel.connection.channel().fails(m.ExchangeDeclare("other", "direct"))
    assert str(exchange) == refused("exchange", "other", name, "40.10")


@differences.PASSIVE_DECLARE
def test_a_passive_declaration_needs_no_permission(
    user: MakeUser, channel_of: ChannelOf, channel: Channel, unique: Unique
) -> None:
    queue = channel.declare(unique("seen"), exclusive=False, auto_delete=True)
    channel_of(user()).call(m.QueueDeclare(queue, passive=True), m.QueueDeclareOk)
    channel.call(m.QueueDelete(queue), m.QueueDeleteOk)


@differences.REFUSAL_TEXTS
def test_write_is_needed_to_publish(user: MakeUser, channel_of: ChannelOf) -> None:
    name = user(write="^amq.fanout$")
    channel = channel_of(name)
    channel.confirm()
    channel.publish_confirmed("amq.fanout", "k")
    channel.publish("amq.direct", "k")
    assert str(channel.closed()) == refused("exchange", "amq.direct", name, "60.40")


@differences.REFUSAL_TEXTS
def test_the_default_exchange_is_called_amq_default_in_permissions(
    user: MakeUser, channel_of: ChannelOf
) -> None:
    allowed, denied = user(write="^amq\\.default$"), user(write="^other$")
    channel = channel_of(allowed)
    channel.confirm()
    channel.publish_confirmed("", "k")
    channel = channel_of(denied)
    channel.publish("", "k")
    assert str(channel.closed()) == refused("exchange", "amq.default", denied, "60.40")


@differences.REFUSAL_TEXTS
def test_read_is_needed_to_consume_get_and_purge(
    user: MakeUser, channel_of: ChannelOf, channel: Channel, unique: Unique
) -> None:
    name = user(configure=".*", write=".*", read="^readable")
    queue = channel.declare(unique("hidden"), exclusive=False)
    connection = channel_of(name).connection
    for method, cause in (
        (m.BasicConsume(queue), "60.20"),
        (m.BasicGet(queue), "60.70"),
        (m.QueuePurge(queue), "50.30"),
    ):
        assert str(connection.channel().fails(method)) == refused("queue", queue, name, cause)
    channel.call(m.QueueDelete(queue), m.QueueDeleteOk)


@differences.REFUSAL_TEXTS
def test_binding_needs_write_on_the_queue_and_read_on_the_exchange(
    user: MakeUser, channel_of: ChannelOf
) -> None:
    name = user(configure=".*", write="^good", read="^amq.topic$")
    channel = channel_of(name)
    for queue in ("good-q", "bad-q"):
        channel.declare(queue)
    channel.bind("good-q", "amq.topic", "k")
    queue_side = channel.connection.channel().fails(m.QueueBind("bad-q", "amq.topic", "k"))
    assert str(queue_side) == refused("queue", "bad-q", name, "50.20")
    exchange_side = channel.connection.channel().fails(m.QueueBind("good-q", "amq.direct", "k"))
    assert str(exchange_side) == refused("exchange", "amq.direct", name, "50.20")


def test_server_named_queues_need_configure_on_amq_gen(
    user: MakeUser, channel_of: ChannelOf
) -> None:
    assert channel_of(user(configure="^amq\\.gen.*")).declare().startswith("amq.gen-")
    assert channel_of(user(configure="^other")).fails(m.QueueDeclare("")).code == 403


@differences.REFUSAL_TEXTS
def test_a_dead_letter_exchange_needs_read_on_the_queue_and_write_on_the_exchange(
    user: MakeUser, channel_of: ChannelOf
) -> None:
    name = user(configure=".*", read=".*", write="^ok")
    arguments: dict[str, object] = {"x-dead-letter-exchange": "forbidden"}
    closed = channel_of(name).fails(m.QueueDeclare("q", exclusive=True, arguments=arguments))
    assert str(closed) == refused("exchange", "forbidden", name, "50.10")


@differences.REFUSAL_TEXTS
def test_topic_permissions_limit_routing_keys(
    http: Http, user: MakeUser, channel_of: ChannelOf
) -> None:
    name = user(write=".*", read=".*", configure=".*")
    rights = {"exchange": "amq.topic", "write": "^mine\\.", "read": "^mine\\."}
    http.call("PUT", f"/topic-permissions/%2F/{name}", rights)
    channel = channel_of(name)
    channel.confirm()
    channel.publish_confirmed("amq.topic", "mine.a")
    channel.publish("amq.topic", "other.a")
    text = (
        "403 ACCESS_REFUSED - access to topic 'other.a' in exchange 'amq.topic' in vhost '/' "
        f"refused for user '{name}' (60.40)"
    )
    assert str(channel.closed()) == text


def test_user_id_must_be_the_one_who_logged_in(user: MakeUser, channel_of: ChannelOf) -> None:
    name = user(write=".*")
    channel = channel_of(name)
    channel.confirm()
    channel.publish_confirmed("amq.direct", "k", b"", Properties(user_id=name))
    channel.publish("amq.direct", "k", b"", Properties(user_id="guest"))
    text = f"user_id property set to 'guest' but authenticated user was '{name}'"
    assert str(channel.closed()) == f"406 PRECONDITION_FAILED - {text} (60.40)"


@pytest.fixture
def vhost(http: Http) -> Iterator[str]:
    name = f"v{time.time_ns() % 10**10}"
    http.call("PUT", f"/vhosts/{name}", {})
    http.call("PUT", f"/permissions/{name}/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    yield name
    if any(one["name"] == name for one in http.call("GET", "/vhosts")):
        http.call("DELETE", f"/vhosts/{name}")


def test_vhosts_have_queues_and_exchanges_of_their_own(
    vhost: str, connect: Connect, channel: Channel, unique: Unique
) -> None:
    inside = connect(vhost=vhost).channel()
    queue = unique("same")
    for one in (channel, inside):
        one.declare(queue)
    inside.publish("", queue, b"inside")
    assert inside.get_wait(queue).body == b"inside"
    assert channel.get(queue) is None
    closed = inside.fails(m.QueueDeclare("missing", passive=True))
    assert closed.text == f"NOT_FOUND - no queue 'missing' in vhost '{vhost}'"


def test_a_new_vhost_has_the_built_in_exchanges(vhost: str, connect: Connect) -> None:
    channel = connect(vhost=vhost).channel()
    for name in ("amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"):
        channel.call(m.ExchangeDeclare(name, "direct", passive=True), m.ExchangeDeclareOk)


def test_deleting_a_vhost_closes_its_connections(vhost: str, http: Http, connect: Connect) -> None:
    connection = connect(vhost=vhost)
    connection.channel().declare()
    http.call("DELETE", f"/vhosts/{vhost}")
    closed = connection.closed_by_broker()
    assert (closed.code, closed.cause) == (320, "0.0")
    # RabbitMQ says "is deleted" or "is down", whichever of its processes comes first.
    assert closed.text.startswith(f"CONNECTION_FORCED - vhost '{vhost}' is ")


@pytest.mark.lone_only("the HTTP API lists the connections of the broker that is asked")
@pytest.mark.rhizome_only  # RabbitMQ lists a connection after some seconds
def test_a_connection_can_be_closed_over_http_as_soon_as_it_is_open(
    http: Http, connect: Connect
) -> None:
    connection = connect()
    host, port = connection.socket.getsockname()[:2]
    names = [one["name"] for one in http.call("GET", "/connections/")]
    (mine,) = [name for name in names if name.startswith(f"{host}:{port} ")]
    http.call("DELETE", f"/connections/{quote(mine, safe='')}")
    assert connection.closed_by_broker().code == 320


def test_a_deleted_user_cannot_log_in_again(http: Http, user: MakeUser, connect: Connect) -> None:
    name = user(configure=".*")
    connect(user=name, password=PASSWORD)
    http.call("DELETE", f"/users/{name}")

    def refused_now() -> bool:
        try:
            connect(user=name, password=PASSWORD)
        except (ConnectionClosed, EndOfStream):
            return True
        return False

    wait_until(refused_now, "the login to be refused")
    http.call("PUT", f"/users/{name}", {"password": PASSWORD, "tags": ""})


# --- policies


@pytest.fixture
def policy(http: Http) -> Iterator[Callable[..., None]]:
    """Sets a policy on names that begin with a prefix: `policy("orders", {...})`."""
    made: list[str] = []

    def make(prefix: str, definition: dict[str, object], **more: object) -> None:
        name = f"p{len(made)}-{time.time_ns() % 10**10}"
        made.append(name)
        body = {"pattern": f"^{prefix}", "definition": definition, **more}
        http.call("PUT", f"/policies/%2F/{name}", body)

    yield make
    for name in made:
        http.call("DELETE", f"/policies/%2F/{name}")


def test_a_policy_gives_a_queue_a_length_and_a_ttl(
    policy: Callable[..., None], channel: Channel, unique: Unique
) -> None:
    prefix = f"pol{time.time_ns() % 10**10}"
    policy(prefix, {"max-length": 2, "message-ttl": 300}, **{"apply-to": "queues"})
    queue = channel.declare(prefix)
    channel.confirm()
    for number in range(4):
        channel.publish_confirmed("", queue, str(number).encode())
    assert channel.count(queue) == 2
    wait_until(lambda: channel.count(queue) == 0, "the messages to expire")


def test_a_policy_reaches_queues_that_exist_already(
    policy: Callable[..., None], channel: Channel
) -> None:
    prefix = f"pol{time.time_ns() % 10**10}"
    queue = channel.declare(prefix)
    for number in range(4):
        channel.publish("", queue, str(number).encode())
    policy(prefix, {"max-length": 1}, **{"apply-to": "queues"})
    wait_until(lambda: channel.count(queue) == 1, "the queue to be cut")
    assert channel.bodies(queue) == [b"3"]


def test_the_policy_with_the_highest_priority_counts(
    policy: Callable[..., None], channel: Channel
) -> None:
    prefix = f"pol{time.time_ns() % 10**10}"
    policy(prefix, {"max-length": 1}, priority=1)
    policy(prefix, {"max-length": 3}, priority=5)
    queue = channel.declare(prefix)
    for number in range(5):
        channel.publish("", queue, str(number).encode())
    wait_until(lambda: channel.count(queue) == 3, "the queue to be cut")


def test_the_lower_of_argument_and_policy_counts(
    policy: Callable[..., None], channel: Channel
) -> None:
    prefix = f"pol{time.time_ns() % 10**10}"
    policy(prefix, {"max-length": 3})
    queue = channel.declare(prefix, arguments={"x-max-length": 2})
    for number in range(5):
        channel.publish("", queue, str(number).encode())
    wait_until(lambda: channel.count(queue) == 2, "the queue to be cut")


def test_a_policy_sets_dead_lettering_and_an_alternate_exchange(
    policy: Callable[..., None], channel: Channel
) -> None:
    prefix = f"pol{time.time_ns() % 10**10}"
    dead = channel.declare()
    policy(prefix, {"dead-letter-exchange": "", "dead-letter-routing-key": dead})
    alternate = {"alternate-exchange": "amq.fanout"}
    policy(f"x{prefix}", alternate, **{"apply-to": "exchanges"})
    queue = channel.declare(prefix)
    channel.publish("", queue, b"x")
    got = channel.get_wait(queue, no_ack=False)
    channel.send(m.BasicReject(got.tag, False))
    assert channel.get_wait(dead).headers["x-death"][0]["queue"] == queue
    exchange = channel.declare_exchange(f"x{prefix}", auto_delete=False)
    rest = channel.declare()
    channel.bind(rest, "amq.fanout")
    channel.publish(exchange, "unrouted", b"y")
    assert channel.get_wait(rest).body == b"y"
    channel.call(m.ExchangeDelete(exchange), m.ExchangeDeleteOk)
