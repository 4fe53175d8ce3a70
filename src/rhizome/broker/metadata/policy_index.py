"""The policies of a vhost, and for each name of a queue or exchange those that fit it.

A policy may be set or deleted by everybody who may make policies in one vhost, and takes effect in
the event loop of every broker. Without this index each change would search every pattern in every
name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from rhizome.broker.metadata.queue_policy_user_records import Policy

Ranked = tuple[Policy, ...]
"""Policies that fit a name: the one that applies first, before those that it hides."""


CHARACTERS_PER_WORK: Final = 12
SEARCHES_PER_WORK: Final = 2
"""One unit of work for so many steps of a table of states, and for so many comparisons."""


class PolicyIndex:
    """The policies of one kind, a user's or an operator's.

    Invariant: ``_fitting`` has exactly those names that were `remember`ed and that a policy fits.
    """

    def __init__(self) -> None:
        self.policies: dict[str, Policy] = {}
        self._fitting: dict[str, Ranked] = {}
        # How many of the patterns are tables of states, which read a name character by character.
        self._tables = 0

    def of(self, name: str) -> Ranked:
        """The policies that fit a name that was remembered."""
        return self._fitting.get(name, ())

    def search_work(self, name: str) -> int:
        """What `search` costs, in units of a turn's work."""
        compared = len(self.policies) - self._tables
        return self._tables * (1 + len(name) // CHARACTERS_PER_WORK) + compared // SEARCHES_PER_WORK

    def search(self, name: str) -> Ranked:
        """The policies that fit any name. Searches every pattern in it."""
        return _ranked(each for each in self.policies.values() if each.expression.search(name))

    def remember(self, name: str, fitting: Ranked) -> None:
        """Keep what `search` has found for the name of a new queue or exchange."""
        if fitting:
            self._fitting[name] = fitting

    def forget(self, name: str) -> None:
        """Nothing has this name any more."""
        self._fitting.pop(name, None)

    def put(self, policy: Policy, names: Iterable[str]) -> set[str]:
        """Set a policy. Searches its pattern, unless it is the old one, in each of ``names``, which
        are those of all queues and exchanges; returns the names that the old or new one fits."""
        old = self.policies.get(policy.name)
        self.policies[policy.name] = policy
        self._count_tables()
        is_same = old is not None and old.pattern == policy.pattern
        affected: set[str] = set()
        for name in names:
            fitting = self._fitting.get(name, ())
            others = [each for each in fitting if each.name != policy.name]
            fitted = len(others) < len(fitting)
            if fitted if is_same else policy.expression.search(name):
                self._fitting[name] = _ranked([*others, policy])
                affected.add(name)
            elif fitted:
                self._replace(name, tuple(others))
                affected.add(name)
        return affected

    def put_work(self, policy_name: str, names: Collection[str]) -> int:
        """What `put` of this policy has cost, in units of a turn's work."""
        if self.policies[policy_name].expression.reads_all():
            return len(names) + sum(map(len, names)) // CHARACTERS_PER_WORK
        return len(names) // SEARCHES_PER_WORK

    def delete(self, policy_name: str) -> set[str]:
        """Delete a policy; the names that it fitted. Searches nothing."""
        del self.policies[policy_name]
        self._count_tables()
        affected = {name for name in self._fitting if policy_name in self._names(name)}
        for name in affected:
            self._replace(
                name, tuple(each for each in self._fitting[name] if each.name != policy_name)
            )
        return affected

    def _count_tables(self) -> None:
        self._tables = sum(each.expression.reads_all() for each in self.policies.values())

    def _names(self, name: str) -> Iterator[str]:
        return (each.name for each in self._fitting[name])

    def _replace(self, name: str, fitting: Ranked) -> None:
        if fitting:
            self._fitting[name] = fitting
        else:
            del self._fitting[name]


def _ranked(fitting: Iterable[Policy]) -> Ranked:
    """The highest priority first, of equal ones the first by name."""
    return tuple(sorted(fitting, key=lambda policy: (-policy.priority, policy.name)))
