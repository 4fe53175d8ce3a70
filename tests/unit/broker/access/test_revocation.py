"""What rests on a user's rights ends when they do, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import (
    BasicCancel,
    ChannelClose,
    ConnectionClose,
    ConnectionOpenOk,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
)
from rhizome.broker.access.auth_interface import AccessEpoch, Authenticator, Identity
from rhizome.broker.connection.connection_states import CLOSED, OPENING
from rhizome.broker.metadata.metadata_commands import (
    Command,
    DeletePermission,
    DeleteUser,
    PutPermission,
    PutTopicPermission,
    PutUser,
    PutVhost,
)
from rhizome.broker.turn import RENEWAL_WORK, TURN_WORK_MAX
from rhizome.security.login_service import LoginService, LoginSettings
from rhizome.security.password_hashes import ScryptCost, hash_password
from rhizome.testing.in_memory_broker import Core, CoreClient, make_core

CHEAP = ScryptCost(1, 1, 1)
NO_NOTICES: dict[str, object] = {"capabilities": {}}


class Records:
    """The users and permissions of a core, wherever its state is."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core.broker.state, name)


def put_user(name: str, password: str = "right", kind: str = "application") -> PutUser:
    return PutUser(name, hash_password(password.encode(), cost=CHEAP), kind)


@pytest.fixture
def core() -> Iterator[Core]:
    core = make_core()
    epoch: AccessEpoch = core.broker.access_epoch
    settings = LoginSettings(password_cost=CHEAP)
    login: Authenticator = LoginService(Records(core), epoch, settings)  # type: ignore[arg-type]
    core.broker.authenticator = login
    for user in ("app", "other"):
        change(core, put_user(user), PutPermission(user, "/", ".*", ".*", ".*"))
    yield core
    core.settle()


def change(core: Core, *commands: Command) -> None:
    for command in commands:
        core.broker.cluster.propose(command, None)
    core.settle()


def connect(core: Core, user: str = "app", **options: Any) -> CoreClient:
    return core.connect(user=user, password="right", **options)


def is_open(client: CoreClient) -> bool:
    return not any(isinstance(event, ConnectionClose) for event in client.events.get(0, []))


def closed_with(client: CoreClient) -> str:
    method = client.expect(ConnectionClose, 0)
    assert method.reply_code == 320
    return method.reply_text


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (put_user("app", "changed"), "the password of user 'app' was changed"),
        (put_user("app", kind="console"), "user 'app' is of another kind now"),
        (PutUser("app", ""), "the password of user 'app' was changed"),
        (DeleteUser("app"), "user 'app' was deleted"),
        (DeletePermission("app", "/"), "user 'app' may no longer enter vhost '/'"),
    ],
)
def test_connections_end_with_the_login_or_the_permission_that_they_rest_on(
    core: Core, command: Command, reason: str
) -> None:
    app, other = connect(core), connect(core, "other")
    app.declare("q")
    app.consume("q")
    change(core, command)
    assert reason in closed_with(app)
    other.publish("", "q", b"secret")
    assert app.deliveries() == []
    assert is_open(other)


def test_a_connection_that_is_not_open_yet_ends_too(core: Core) -> None:
    app = connect(core, opens=False)
    app.take(0)
    late = core.broker.connections[app.connection.id]
    late.stage = OPENING  # as if connection.open had not come yet
    change(core, put_user("app", "changed"))
    assert late.stage == CLOSED
    assert not app.events.get(0)


def test_the_same_user_with_other_tags_goes_on(core: Core) -> None:
    app = connect(core)
    record = core.broker.state.users["app"]
    change(core, PutUser("app", record.password_hash, record.kind, ("impersonator",)))
    assert is_open(app)
    assert app.connection.identity.tags == ("impersonator",)


def test_a_permission_in_another_vhost_is_none_of_a_connections_business(core: Core) -> None:
    change(core, PutVhost("/two"), PutPermission("app", "/two", ".*", ".*", ".*"))
    here, there = connect(core), connect(core, vhost="/two")
    change(core, DeletePermission("app", "/two"))
    assert is_open(here)
    assert "'/two'" in closed_with(there)


def test_a_permission_that_is_taken_away_and_given_back_at_once_ends_nothing(core: Core) -> None:
    app = connect(core)
    core.broker.cluster.propose(DeletePermission("app", "/"), None)
    core.broker.cluster.propose(PutPermission("app", "/", ".*", ".*", ".*"), None)
    core.settle()
    assert is_open(app)


def test_consumers_of_what_may_no_longer_be_read_are_cancelled_and_others_go_on(
    core: Core,
) -> None:
    app, other = connect(core), connect(core, "other")
    for queue in ("kept", "taken"):
        app.declare(queue)
        app.consume(queue, tag=f"of {queue}")
    change(core, PutPermission("app", "/", ".*", ".*", "^kept$"))
    assert app.expect(BasicCancel).consumer_tag == "of taken"
    for queue in ("kept", "taken"):
        other.publish("", queue, queue.encode())
    assert [each.body for each in app.deliveries()] == [b"kept"]
    taken = other.get("taken")
    assert taken is not None
    assert taken.body == b"taken"


def test_what_a_cancelled_consumer_holds_it_may_still_settle(core: Core) -> None:
    app, other = connect(core), connect(core, "other")
    app.declare("q")
    app.consume("q")
    other.publish("", "q", b"held")
    (held,) = app.deliveries()
    change(core, PutPermission("app", "/", ".*", ".*", ""))
    app.expect(BasicCancel)
    assert core.queue("q").unacked == 1
    app.connection.channels[1].ack(held.tag, False)
    core.settle()
    assert core.queue("q").unacked == 0


def test_a_client_that_knows_no_cancel_has_its_channel_closed(core: Core) -> None:
    app = connect(core, properties=NO_NOTICES)
    app.declare("q")
    app.consume("q")
    change(core, PutPermission("app", "/", ".*", ".*", "^other$"))
    closed = app.expect(ChannelClose)
    assert closed.reply_code == 403
    assert "'q'" in closed.reply_text
    assert "taken away" in closed.reply_text
    assert is_open(app)


def test_a_client_that_waits_for_an_answer_has_its_channel_closed(core: Core) -> None:
    app = connect(core)
    app.declare("q")
    app.consume("q")
    app.connection.suspend()
    change(core, PutPermission("app", "/", ".*", ".*", ""))
    assert app.expect(ChannelClose).reply_code == 403
    app.connection.resume()


def test_publishes_are_asked_about_again(core: Core) -> None:
    app = connect(core)
    app.declare("q")
    app.publish("", "q", b"before")
    change(core, PutPermission("app", "/", ".*", "^nothing$", ".*"))
    app.publish("", "q", b"after")
    assert app.expect(ChannelClose).reply_code == 403
    assert core.queue("q").ready == 1


def test_a_topic_rule_counts_for_the_next_publish(core: Core) -> None:
    app = connect(core)
    app.publish("amq.topic", "a.b", b"")
    change(core, PutTopicPermission("app", "/", "amq.topic", "^x", "^x"))
    app.publish("amq.topic", "a.b", b"")
    assert app.expect(ChannelClose).reply_code == 403


def test_only_connections_of_the_user_are_looked_at(core: Core) -> None:
    others = [connect(core, "other") for _ in range(5)]
    connect(core)
    change(core, put_user("third"), PutPermission("third", "/", "", "", ""))
    core.broker.cluster.propose(put_user("third", "changed"), None)
    assert core.broker.turn.users == {}
    assert {user: len(each) for user, each in core.broker.revocation.connections.items()} == {
        "app": 1,
        "other": 5,
    }
    for client in others:
        client.close_socket()
    assert list(core.broker.revocation.connections) == ["app"]


def test_the_new_password_lets_the_user_in_again(core: Core) -> None:
    connect(core)
    change(core, put_user("app", "changed"))
    again = core.connect(user="app", password="changed", opens=False)
    again.expect(ConnectionOpenOk, 0)


# ---- masses -------------------------------------------------------------------------------------


class CostlyIdentity(Identity):
    """Permits what ``readable`` says; each question costs a quarter of a turn."""

    asked = 0
    renewals = 0
    readable = True

    def __init__(self, epoch: AccessEpoch) -> None:
        super().__init__("app", "application", (), epoch)
        self.check_work = TURN_WORK_MAX // 4

    def decide(self, operation: str, vhost: str, name: str) -> bool:
        self.asked += 1
        return self.readable

    def decide_enter(self, vhost: str) -> bool:
        return True

    def renew(self, secret: bytes) -> str:
        self.renewals += 1
        self.readable = secret != b"less"
        self.renews_rights = secret != b"same"
        self.invalidate()
        return ""


QUEUES = 40


@pytest.fixture
def costly(core: Core) -> CoreClient:
    """A client with a consumer on each of many queues."""
    client = core.connect(user="app", password="right")
    for number in range(QUEUES):
        client.declare(f"q{number}")
        client.consume(f"q{number}")
    client.connection.identity = CostlyIdentity(core.broker.access_epoch)
    client.take()
    return client


def sent_in_one_turn(core: Core, client: CoreClient, data: bytes) -> None:
    core.broker.turn.now_ms = core.now_ms
    client.connection.receive(data)
    core.one_turn()


def test_rights_of_many_consumers_are_checked_over_several_turns(
    core: Core, costly: CoreClient
) -> None:
    identity = costly.connection.identity
    assert isinstance(identity, CostlyIdentity)
    publisher = connect(core, "other")
    sent_in_one_turn(core, costly, method_frame(0, ConnectionUpdateSecret(b"less", "")))
    assert identity.asked <= 6
    sent_in_one_turn(core, publisher, publisher.published("", f"q{QUEUES - 1}", b"late"))
    assert identity.asked < QUEUES
    assert costly.deliveries() == [], "nothing is delivered before the rights are known"
    core.settle()
    assert identity.asked == QUEUES
    assert isinstance(costly.take(0)[0], ConnectionUpdateSecretOk)
    assert sum(isinstance(each, BasicCancel) for each in costly.take()) == QUEUES
    assert core.queue(f"q{QUEUES - 1}").ready == 1


def test_what_may_still_be_read_goes_on_after_the_check(core: Core, costly: CoreClient) -> None:
    publisher = connect(core, "other")
    sent_in_one_turn(core, costly, method_frame(0, ConnectionUpdateSecret(b"more", "")))
    sent_in_one_turn(core, publisher, publisher.published("", "q7", b"after"))
    assert costly.connection.output_held
    core.settle()
    assert costly.bodies() == [b"after"]


def test_a_new_secret_with_the_same_rights_asks_nothing(core: Core, costly: CoreClient) -> None:
    identity = costly.connection.identity
    assert isinstance(identity, CostlyIdentity)
    costly.send(ConnectionUpdateSecret(b"same", ""), channel=0)
    assert identity.asked == 0


def test_few_secrets_are_renewed_in_one_turn(core: Core, costly: CoreClient) -> None:
    identity = costly.connection.identity
    assert isinstance(identity, CostlyIdentity)
    frame = method_frame(0, ConnectionUpdateSecret(b"same", ""))
    sent_in_one_turn(core, costly, frame * 100)
    assert 0 < identity.renewals <= 2 * TURN_WORK_MAX // RENEWAL_WORK
    core.settle()
    assert identity.renewals == 100


def test_a_connection_that_goes_while_it_is_checked_holds_up_nobody(
    core: Core, costly: CoreClient
) -> None:
    sent_in_one_turn(core, costly, method_frame(0, ConnectionUpdateSecret(b"less", "")))
    costly.close_socket()
    core.settle()
    assert not core.broker.revocation.review.is_queued
    other = connect(core, "other")
    change(core, DeletePermission("other", "/"))
    assert "may no longer enter" in closed_with(other)
