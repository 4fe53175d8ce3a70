"""The policies of a vhost, and for each name of a queue or exchange those that fit it.

A policy may be set or deleted by everybody who may make policies in one vhost, and takes effect in
the event loop of every broker. Without this index each change would search every pattern in every
name; without `PolicyWalk` a change would hold the loop until all names are looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from rhizome.broker.metadata.queue_policy_user_records import Policy

Ranked = tuple[Policy, ...]
"""Policies that fit a name: the one that applies first, before those that it hides."""


CHARACTERS_PER_WORK: Final = 12
SEARCHES_PER_WORK: Final = 2
"""One unit of work for so many steps of a table of states, and for so many comparisons."""


class PolicyWalk:
    """A change of a policy on its way through the names that it may concern.

    It may be done in steps, while names come and go: a new one is searched in all policies, and one
    that is gone is passed over. ``searches``: the pattern is searched in each name; otherwise it is
    known which ones it fits.
    """

    def __init__(
        self, index: PolicyIndex, policy_name: str, names: Iterable[str], searches: bool
    ) -> None:
        self.index = index
        self.policy_name = policy_name
        self.names = deque(names)
        self.searches = searches


class PolicyIndex:
    """The policies of one kind, a user's or an operator's.

    Invariant: ``_fitting`` has exactly those names that were `remember`ed and that a policy fits,
    but for those that an unfinished walk has still to visit.
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

    def put(self, policy: Policy, names: Iterable[str], is_walking: bool) -> PolicyWalk:
        """Set a policy. The walk is to `visit` each of ``names``, which are those of all queues and
        exchanges, or if the pattern stays, those that it fits. ``is_walking``: another walk of this
        policy is unfinished, so these are not known."""
        old = self.policies.get(policy.name)
        self.policies[policy.name] = policy
        self._count_tables()
        if old is None or old.pattern != policy.pattern or is_walking:
            return PolicyWalk(self, policy.name, names, True)
        return PolicyWalk(self, policy.name, self._fitted(old), False)

    def delete(self, policy_name: str) -> PolicyWalk:
        """Delete a policy; the walk is to `visit` the names that it fitted. Searches nothing."""
        old = self.policies.pop(policy_name)
        self._count_tables()
        return PolicyWalk(self, policy_name, self._fitted(old), False)

    def visit(self, walk: PolicyWalk, name: str) -> bool:
        """Bring what fits a name up to date with a policy; whether that may have changed anything.

        A later change of the policy may have come before this visit: what it is now counts."""
        policy = self.policies.get(walk.policy_name)
        fitting = self._fitting.get(name, ())
        others = [each for each in fitting if each.name != walk.policy_name]
        fitted = len(others) < len(fitting)
        if policy is not None and (policy.expression.search(name) if walk.searches else fitted):
            self._fitting[name] = _ranked([*others, policy])
            return True
        if fitted:
            self._replace(name, tuple(others))
        return fitted

    def visit_work(self, walk: PolicyWalk, name: str) -> int:
        """What `visit` costs, in units of a turn's work."""
        policy = self.policies.get(walk.policy_name)
        if walk.searches and policy is not None and policy.expression.reads_all():
            return 1 + len(name) // CHARACTERS_PER_WORK
        return 1

    def _fitted(self, policy: Policy) -> list[str]:
        """The names that a policy fits. While walks of it are unfinished it may fit others too, but
        they will visit these."""
        return [name for name, fitting in self._fitting.items() if policy in fitting]

    def _count_tables(self) -> None:
        self._tables = sum(each.expression.reads_all() for each in self.policies.values())

    def _replace(self, name: str, fitting: Ranked) -> None:
        if fitting:
            self._fitting[name] = fitting
        else:
            del self._fitting[name]


def _ranked(fitting: Iterable[Policy]) -> Ranked:
    """The highest priority first, of equal ones the first by name."""
    return tuple(sorted(fitting, key=lambda policy: (-policy.priority, policy.name)))
