"""Permissions by pattern, with RabbitMQ's meaning.

A user has at most one permission record per vhost, with three regular expressions; without a record
the vhost can't even be opened. A pattern is searched for anywhere in the name, so `orders` permits
`old-orders-2`; anchor it with ^ and $ to mean one name. The empty pattern is an alias of `^$`: it
matches no resource, since every resource has a name (the default exchange is called `amq.default`
here).

Topic rules restrict topic exchanges further, by routing key; an exchange without a rule is
unrestricted. `{username}`, `{vhost}` and `{client_id}` in a rule stand for the values of the
connection, taken literally: unlike in RabbitMQ a user called `.*` gains nothing by that name. A
variable without a value (AMQP connections have no client id) stays as it is written.

Patterns are those of `rhizome.regex`: PCRE's dialect as far as it can be matched in linear time.
Names and routing keys have at most 255 bytes, and an answer is remembered per connection until
permissions change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Protocol

from rhizome.broker.access.auth_interface import CONFIGURE, WRITE, AccessEpoch, Identity
from rhizome.regex import PatternError, escape, pattern_of


class UserRecord(Protocol):
    @property
    def password_hash(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def tags(self) -> Collection[str]: ...


class PermissionRecord(Protocol):
    @property
    def configure(self) -> str: ...
    @property
    def write(self) -> str: ...
    @property
    def read(self) -> str: ...


class TopicPermissionRecord(Protocol):
    @property
    def write(self) -> str: ...
    @property
    def read(self) -> str: ...


class AccessRecords(Protocol):
    """`permissions` by (user, vhost), `topic_permissions` by (user, vhost, exchange)."""

    @property
    def users(self) -> Mapping[str, UserRecord]: ...
    @property
    def permissions(self) -> Mapping[tuple[str, str], PermissionRecord]: ...
    @property
    def topic_permissions(self) -> Mapping[tuple[str, str, str], TopicPermissionRecord]: ...


__all__ = ["PatternError", "UserIdentity", "expand_topic_pattern", "matches"]

EMPTY_PATTERN_MEANS: Final = "^$"


def matches(pattern: str, name: str) -> bool:
    """Whether a stored pattern permits `name`; one that is no good permits nothing."""
    return pattern_of(pattern or EMPTY_PATTERN_MEANS).search(name)


def expand_topic_pattern(pattern: str, variables: dict[str, str]) -> str:
    """Put the connection's values in place of {username} and its like, as literal text."""
    for name, value in variables.items():
        pattern = pattern.replace("{" + name + "}", escape(value))
    return pattern


class UserIdentity(Identity):
    """A user of the broker's state; asks the records of the moment, so changes count at once."""

    def __init__(
        self,
        user: str,
        kind: str,
        tags: tuple[str, ...],
        records: AccessRecords,
        epoch: AccessEpoch,
        client_id: str = "",
    ) -> None:
        super().__init__(user, kind, tags, epoch)
        self._records = records
        self._client_id = client_id

    def decide(self, operation: str, vhost: str, name: str) -> bool:
        record = self._records.permissions.get((self.user, vhost))
        if record is None or self.user not in self._records.users:
            return False
        if operation == CONFIGURE:
            return matches(record.configure, name)
        return matches(record.write if operation == WRITE else record.read, name)

    def decide_topic(self, operation: str, vhost: str, exchange: str, key: str) -> bool:
        rule = self._records.topic_permissions.get((self.user, vhost, exchange))
        if rule is None:
            return True
        pattern = rule.write if operation == WRITE else rule.read
        return matches(expand_topic_pattern(pattern, self._variables(vhost)), key)

    def decide_enter(self, vhost: str) -> bool:
        known = self.user in self._records.users
        return known and (self.user, vhost) in self._records.permissions

    def decide_topic_rules(self, vhost: str) -> bool:
        return any(
            user == self.user and place == vhost
            for user, place, _ in self._records.topic_permissions
        )

    def _variables(self, vhost: str) -> dict[str, str]:
        variables = {"username": self.user, "vhost": vhost}
        if self._client_id:
            variables["client_id"] = self._client_id
        return variables
