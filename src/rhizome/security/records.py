"""What security reads of the broker's state: three mappings of records, never written here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol


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
