"""Users and permissions in the cluster state.

Like the methods of a vhost, each method here refuses before it changes anything, and reports its
changes in ``facts``.

Patterns are checked where they are set, not here: a store or the cluster's log may hold one that an
earlier release accepted, and every broker must go on with it. Such a pattern permits nothing.
"""

from __future__ import annotations

from typing import Final

from rhizome.broker.access.auth_interface import KIND_APPLICATION, KIND_CLUSTER, KIND_CONSOLE
from rhizome.broker.metadata.metadata_changes import AccessChanged, Fact
from rhizome.broker.metadata.metadata_commands import PutPermission, PutTopicPermission, PutUser
from rhizome.broker.metadata.queue_policy_user_records import Permission, TopicPermission, User
from rhizome.broker.metadata.resource_names import check_length
from rhizome.errors import NotFound, PreconditionFailed
from rhizome.regex import pattern_of

USER_KINDS: Final = (KIND_APPLICATION, KIND_CONSOLE, KIND_CLUSTER)


class Accounts:
    """Invariant: every permission and every limit is one of a user in ``users``."""

    users: dict[str, User]
    permissions: dict[tuple[str, str], Permission]
    topic_permissions: dict[tuple[str, str, str], TopicPermission]
    limits: dict[str, dict[str, int]]

    def __init__(self) -> None:
        self.users = {}
        self.permissions = {}
        self.topic_permissions = {}
        self.limits = {}

    def check_user(self, name: str) -> None:
        """Raise NotFound if there is no such user."""
        if name not in self.users:
            raise NotFound(f"no user '{name}'")

    def put_user(self, command: PutUser, facts: list[Fact]) -> None:
        if command.name == "":
            raise PreconditionFailed("a user must have a name")
        check_length("user name", command.name)
        if command.kind not in USER_KINDS:
            raise PreconditionFailed(
                f"user '{command.name}' has the kind '{command.kind}'; "
                f"it must be one of {', '.join(USER_KINDS)}"
            )
        user = User(command.name, command.password_hash, command.kind, command.tags)
        before = self.users.get(command.name)
        if before != user:
            self.users[command.name] = user
            facts.append(AccessChanged(command.name, is_put=True, before=before))

    def delete_user(self, name: str, facts: list[Fact]) -> None:
        if self.users.pop(name, None) is None:
            return
        self.limits.pop(name, None)
        for key in [key for key in self.permissions if key[0] == name]:
            del self.permissions[key]
        for topic_key in [key for key in self.topic_permissions if key[0] == name]:
            del self.topic_permissions[topic_key]
        facts.append(AccessChanged(name, deleted=True))

    def put_permission(self, command: PutPermission, facts: list[Fact]) -> None:
        self.check_user(command.user)
        permission = Permission(
            command.user,
            command.vhost,
            command.configure,
            command.write,
            command.read,
            _faults([command.configure, command.write, command.read]),
        )
        key = (command.user, command.vhost)
        if self.permissions.get(key) != permission:
            self.permissions[key] = permission
            facts.append(AccessChanged(command.user))

    def delete_permission(self, user: str, vhost: str, facts: list[Fact]) -> None:
        if self.permissions.pop((user, vhost), None) is not None:
            facts.append(AccessChanged(user))

    def put_topic_permission(self, command: PutTopicPermission, facts: list[Fact]) -> None:
        self.check_user(command.user)
        permission = TopicPermission(
            command.user,
            command.vhost,
            command.exchange,
            command.write,
            command.read,
            _faults([command.write, command.read]),
        )
        key = (command.user, command.vhost, command.exchange)
        if self.topic_permissions.get(key) != permission:
            self.topic_permissions[key] = permission
            facts.append(AccessChanged(command.user))

    def delete_topic_permission(
        self, user: str, vhost: str, exchange: str, facts: list[Fact]
    ) -> None:
        if self.topic_permissions.pop((user, vhost, exchange), None) is not None:
            facts.append(AccessChanged(user))

    def forget_vhost(self, vhost: str, facts: list[Fact]) -> None:
        """Drop all permissions in a vhost that is gone."""
        for user, place in [key for key in self.permissions if key[1] == vhost]:
            self.delete_permission(user, place, facts)
        for user, place, exchange in [key for key in self.topic_permissions if key[1] == vhost]:
            self.delete_topic_permission(user, place, exchange, facts)


def _faults(patterns: list[str]) -> tuple[str, ...]:
    """The errors of those patterns that are faulty."""
    faults = [pattern_of(pattern).fault for pattern in patterns]
    return tuple([fault for fault in faults if fault])
