"""Authentication and permissions as a session uses them: who is the client, and may it do this?

The broker owns this interface and knows no passwords, patterns or certificates. A session hands the
client's answer to connection.start to an `Authenticator` and gets an `Identity` back through
`AuthDone`, at once or later (a password may be verified in a thread). From then on it asks that
identity before it acts.

The permissions that each method needs, as in RabbitMQ (C configure, W write, R read):

    exchange.declare                    C exchange; new, with an alternate: R exchange, W alternate
    exchange.delete                     C exchange
    exchange.bind, exchange.unbind      W destination, R source
    queue.declare                       C queue; new, with dead letters: R queue, W their exchange
    queue.delete                        C queue
    queue.bind, queue.unbind            W queue, R exchange
    queue.purge, basic.get, .consume    R queue
    basic.publish                       W exchange

Passive declares need none. Topic permissions are checked in addition, on exchanges of type topic
only: write with the routing key of a publish and with each key of its CC and BCC, read with the
binding key of a bind.

Answers are cached per identity. Invariant: no cached answer outlives the `AccessEpoch` under which
it was given, and no cache holds more than `ANSWERS_MAX` entries, whatever names a client invents.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from rhizome.journal.dedup_state import user_prefix

if TYPE_CHECKING:
    from rhizome.broker.turn import MarkedConnection

KIND_APPLICATION: Final = "application"
KIND_CONSOLE: Final = "console"
KIND_CLUSTER: Final = "cluster"

CONFIGURE: Final = "configure"
WRITE: Final = "write"
READ: Final = "read"

# The default exchange has the empty name on the wire and this one in permission patterns.
DEFAULT_EXCHANGE_ALIAS: Final = "amq.default"

ANSWERS_MAX: Final = 1024


class AccessEpoch:
    """Counts changes to users and permissions; code that applies one calls `advance`.

    Identities compare it on every check, so a revoked permission is gone at the next operation of
    every open connection, without a list of connections to visit.
    """

    value: i64

    def __init__(self) -> None:
        self.value = 0

    def advance(self) -> None:
        self.value += 1


CHECK_WORK: Final = 5
"""What it takes to match a name with the pattern of a permission."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Identity:
    """An authenticated user and what that user may do.

    A subclass answers `decide`, `decide_topic`, `decide_enter` and `decide_topic_rules` from its
    records; the checks below remember those answers for one vhost at a time, which is what a
    connection has. An identity belongs to one connection.
    """

    user: str
    kind: str
    tags: tuple[str, ...]
    check_work: i64
    """The work of one question to the records, in units of a turn's work."""
    renews_rights: bool
    """Whether the last `renew` has changed what is permitted."""
    producers: bytes
    _epoch: AccessEpoch
    _seen: i64
    _vhost: str
    _configure: dict[str, bool]
    _write: dict[str, bool]
    _read: dict[str, bool]
    _write_topic: dict[tuple[str, str], bool]
    _read_topic: dict[tuple[str, str], bool]
    _topic_rules: bool

    def __init__(self, user: str, kind: str, tags: tuple[str, ...], epoch: AccessEpoch) -> None:
        self.user = user
        # The prefix of the names of this user's producers (`journal/dedup_state.py`).
        self.producers = user_prefix(user)
        self.kind = kind
        self.tags = tags
        self.check_work = CHECK_WORK
        self.renews_rights = False
        self._epoch = epoch
        self._seen = -1
        self._vhost = ""
        self._configure = {}
        self._write = {}
        self._read = {}
        self._write_topic = {}
        self._read_topic = {}
        self._topic_rules = False

    def decide(self, operation: str, vhost: str, name: str) -> bool:
        """Whether `operation` (CONFIGURE, WRITE, READ) on `name` is permitted; not cached."""
        return False

    def decide_topic(self, operation: str, vhost: str, exchange: str, key: str) -> bool:
        """Whether `operation` (WRITE, READ) with `key` on a topic exchange is permitted."""
        return False

    def decide_enter(self, vhost: str) -> bool:
        """Whether a connection of this user may open `vhost`; not cached."""
        return False

    def decide_topic_rules(self, vhost: str) -> bool:
        """Whether any topic rule exists for this user in `vhost`; not cached."""
        return False

    def adopt(self, connection: MarkedConnection) -> bool:
        """Whether this identity has taken the connection over from the broker, at its open.

        The identity of another broker does: what follows open-ok is a link, not an application. It
        raises the error to close the connection with if it can't become a link.
        """
        return False

    def revoked(self) -> str:
        """Why this identity is no longer valid, for the client and the log; empty while it is.

        This is asked when something about its user has changed, and never per message. An identity
        that is still valid updates here what it keeps of its user's record.
        """
        return ""

    def renew(self, secret: bytes) -> str:
        """Take a newer secret (connection.update-secret); return why it is refused, for the log.

        A password was verified at login and is not needed again, so any new one is accepted.
        """
        return ""

    def may_enter(self, vhost: str) -> bool:
        return self.decide_enter(vhost)

    def may_configure(self, vhost: str, name: str) -> bool:
        self._settle(vhost)
        answer = self._configure.get(name)
        if answer is None:
            answer = self._remember(self._configure, CONFIGURE, name)
        return answer

    def may_write(self, vhost: str, name: str) -> bool:
        self._settle(vhost)
        answer = self._write.get(name)
        if answer is None:
            answer = self._remember(self._write, WRITE, name)
        return answer

    def may_read(self, vhost: str, name: str) -> bool:
        self._settle(vhost)
        answer = self._read.get(name)
        if answer is None:
            answer = self._remember(self._read, READ, name)
        return answer

    def has_topic_rules(self, vhost: str) -> bool:
        """False for nearly all users: lets a publish skip the check by routing key altogether."""
        self._settle(vhost)
        return self._topic_rules

    def may_write_topic(self, vhost: str, exchange: str, key: str) -> bool:
        self._settle(vhost)
        if not self._topic_rules:
            return True
        return self._topic(self._write_topic, WRITE, exchange, key)

    def may_read_topic(self, vhost: str, exchange: str, key: str) -> bool:
        self._settle(vhost)
        if not self._topic_rules:
            return True
        return self._topic(self._read_topic, READ, exchange, key)

    def invalidate(self) -> None:
        """Forget every answer; the next checks ask the records again."""
        self._seen = -1

    def _settle(self, vhost: str) -> None:
        if self._seen == self._epoch.value and vhost == self._vhost:
            return
        self._configure.clear()
        self._write.clear()
        self._read.clear()
        self._write_topic.clear()
        self._read_topic.clear()
        self._vhost = vhost
        self._seen = self._epoch.value
        self._topic_rules = self.decide_topic_rules(vhost)

    def _remember(self, answers: dict[str, bool], operation: str, name: str) -> bool:
        answer = self.decide(operation, self._vhost, name or DEFAULT_EXCHANGE_ALIAS)
        if len(answers) >= ANSWERS_MAX:
            answers.clear()
        answers[name] = answer
        return answer

    def _topic(
        self, answers: dict[tuple[str, str], bool], operation: str, exchange: str, key: str
    ) -> bool:
        found = answers.get((exchange, key))
        if found is not None:
            return found
        answer = self.decide_topic(operation, self._vhost, exchange or DEFAULT_EXCHANGE_ALIAS, key)
        if len(answers) >= ANSWERS_MAX:
            answers.clear()
        answers[(exchange, key)] = answer
        return answer


@mypyc_attr(allow_interpreted_subclasses=True)
class OpenIdentity(Identity):
    """May do everything everywhere: for tests and for a broker started without access control."""

    def __init__(
        self,
        user: str = "guest",
        kind: str = KIND_APPLICATION,
        tags: tuple[str, ...] = ("administrator",),
    ) -> None:
        super().__init__(user, kind, tags, AccessEpoch())

    def decide(self, operation: str, vhost: str, name: str) -> bool:
        return True

    def decide_topic(self, operation: str, vhost: str, exchange: str, key: str) -> bool:
        return True

    def decide_enter(self, vhost: str) -> bool:
        return True


class Peer:
    """The far end of a connection, as far as authentication cares.

    `certificate_subject` (RFC 4514, such as "CN=app,O=Example") and `certificate_name` (its common
    name) are empty unless the certificate was verified against the configured authorities.
    """

    address: str
    port: i64
    loopback: bool
    tls: bool
    certificate_subject: str
    certificate_name: str

    def __init__(
        self,
        address: str,
        port: i64,
        loopback: bool = False,
        tls: bool = False,
        certificate_subject: str = "",
        certificate_name: str = "",
    ) -> None:
        self.address = address
        self.port = port
        self.loopback = loopback
        self.tls = tls
        self.certificate_subject = certificate_subject
        self.certificate_name = certificate_name


@mypyc_attr(allow_interpreted_subclasses=True)
class AuthDone:
    """Receives the outcome of a login: a session, or a small object that a session owns.

    Not a trait: interpreted classes cannot inherit from a compiled trait.
    """

    @abstractmethod
    def authenticated(self, identity: Identity | None, reason: str) -> None:
        """Called exactly once per `begin`, perhaps before `begin` returns.

        With None the login was refused; `reason` then is for the log, in full, and must never
        reach the client (it says whether the user exists). A session that was closed meanwhile
        ignores the call.
        """

    def challenge(self, challenge: bytes, answer: ChallengeAnswer) -> None:
        """The mechanism sends a challenge; `answer` gets the client's reply, unless the client is
        gone."""
        self.authenticated(None, "a mechanism that asks back can't be used here")


@mypyc_attr(allow_interpreted_subclasses=True)
class ChallengeAnswer:
    """A step of a mechanism: goes on once the client has answered."""

    @abstractmethod
    def answered(self, response: bytes) -> None:
        """Called at most once; ends in a call of the login's `AuthDone`, as `begin` does."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Authenticator:
    """Decides who a client is."""

    @abstractmethod
    def mechanisms(self, tls: bool) -> str:
        """The mechanisms offered in connection.start, separated by spaces.

        `tls`: the connection is encrypted, so a client certificate may have been presented.
        """

    @abstractmethod
    def begin(self, mechanism: str, response: bytes, peer: Peer, done: AuthDone) -> None:
        """Start a login with the client's answer to connection.start; ends in `done`, perhaps
        after challenges.

        Never raises for anything a client sent: an unknown mechanism or a response that does not
        parse is a refused login.
        """


@mypyc_attr(allow_interpreted_subclasses=True)
class OpenAuthenticator(Authenticator):
    """Lets everybody in as `user`, with every permission: for tests and `--open`."""

    user: str

    def __init__(self, user: str = "guest") -> None:
        self.user = user

    def mechanisms(self, tls: bool) -> str:
        return "AMQPLAIN PLAIN"

    def begin(self, mechanism: str, response: bytes, peer: Peer, done: AuthDone) -> None:
        done.authenticated(OpenIdentity(self.user), "")
