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

The dialect is Python's `re`, with \\w, \\d and \\s limited to ASCII as in RabbitMQ. Nearly all
patterns mean the same in both; POSIX classes such as [[:alpha:]], which Python would misunderstand,
are refused when they are set, like bad patterns.

Cost: names and routing keys have at most 255 bytes, patterns at most `PATTERN_CHARACTERS_MAX`
characters, and an answer is remembered per connection until permissions change. Python's matcher
backtracks and has no time limit, so an administrator can still write a pattern that is slow on
purpose; the well-known form of that, a repetition of nothing but a repetition as in (a+)+$, is
refused. Applications can't set patterns.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from rhizome.broker.access import CONFIGURE, WRITE, AccessEpoch, Identity
from rhizome.errors import RhizomeError
from rhizome.security.records import AccessRecords

PATTERN_CHARACTERS_MAX: Final = 4096
COMPILED_PATTERNS_MAX: Final = 4096
EMPTY_PATTERN_MEANS: Final = "^$"
TOPIC_VARIABLES: Final = ("username", "vhost", "client_id")

_POSIX_CLASS: Final = re.compile(r"\[[:.=]\^?\w+[:.=]\]")
# A repeated group that holds nothing but one repeated character or class: (a+)+ (.*)* (?:[a-z]+)+
_NESTED_REPETITION: Final = re.compile(
    r"(?<!\\)\((?:\?:)?(?:\\.|\[[^\]]*\]|[^\\()\[\]|])[*+]\??\)[*+]"
)


class PatternError(RhizomeError):
    """A permission pattern that is refused when it is set."""


def check_pattern(pattern: str) -> None:
    """Raise PatternError if `pattern` may not be stored in a permission."""
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise PatternError(
            f"pattern of {len(pattern)} characters; the maximum is {PATTERN_CHARACTERS_MAX}"
        )
    if _POSIX_CLASS.search(pattern):
        raise PatternError(
            f"pattern {_shown(pattern)} uses a POSIX class; write it out, such as [a-zA-Z]"
        )
    if _NESTED_REPETITION.search(pattern):
        raise PatternError(
            f"pattern {_shown(pattern)} repeats a repetition, which can take hours to match;"
            " write (a+)+ as a+"
        )
    try:
        _compiled(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise PatternError(f"pattern {_shown(pattern)} is no regular expression: {error}") from None


def matches(pattern: str, name: str) -> bool:
    """Whether a stored pattern permits `name`; one that no longer compiles permits nothing."""
    try:
        return _compiled(pattern).search(name) is not None
    except (re.error, RecursionError, OverflowError):
        return False


def expand_topic_pattern(pattern: str, variables: dict[str, str]) -> str:
    """Put the connection's values in place of {username} and its like, as literal text."""
    for name, value in variables.items():
        pattern = pattern.replace("{" + name + "}", re.escape(value))
    return pattern


@lru_cache(maxsize=COMPILED_PATTERNS_MAX)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern or EMPTY_PATTERN_MEANS, re.ASCII)


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 80 else pattern[:77] + "...")


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
