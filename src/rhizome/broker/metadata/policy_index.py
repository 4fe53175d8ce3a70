"""PolicyIndex: which policies of a vhost fit which names, so that a change searches few names.

A pattern is searched in a name when either of them is new, and never again: to set a policy costs
one search per queue and exchange, to declare a queue one per policy, and to delete a policy none.
Otherwise each change of a policy would search all policies in all names, in one turn of every
broker of a cluster.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from rhizome.broker.metadata.policy_resolution import applies_to_exchange, applies_to_queue
from rhizome.broker.metadata.queue_policy_user_records import Policy, QueueDefinition

CHARACTERS_PER_WORK: Final = 12
SEARCHES_PER_WORK: Final = 2
"""One unit of work for so many steps of a table of states, and for so many comparisons."""


class PolicyIndex:
    """The policies of a vhost, or its operator policies.

    Invariant: ``ranked`` has them, the one that wins first. Bit N of the mask of a name is set if
    the pattern of ``ranked[N]`` fits it; a name without a mask is fitted by none.
    """

    ranked: list[Policy]
    queues: dict[str, int]
    exchanges: dict[str, int]

    def __init__(self) -> None:
        self.ranked = []
        self.queues = {}
        self.exchanges = {}
        self._for_kind: dict[str, int] = {}
        self._for_exchanges = 0
        self._tables = 0

    def search_work(self, name: str) -> int:
        """What it takes to search all patterns in a new name, in units of a turn's work."""
        compared = len(self.ranked) - self._tables
        return self._tables * (1 + len(name) // CHARACTERS_PER_WORK) + compared // SEARCHES_PER_WORK

    def for_queue(self, definition: QueueDefinition) -> Policy | None:
        """The policy that applies to a queue, which must be known."""
        mask = self.queues.get(definition.name, 0)
        if mask == 0:
            return None
        kind = definition.options.queue_type
        accepted = self._for_kind.get(kind)
        if accepted is None:
            accepted = self._mask(applies_to_queue(each, kind) for each in self.ranked)
            self._for_kind[kind] = accepted
        return self._first(mask & accepted)

    def for_exchange(self, name: str) -> Policy | None:
        """The policy that applies to an exchange, which must be known."""
        return self._first(self.exchanges.get(name, 0) & self._for_exchanges)

    def add_queue(self, name: str) -> None:
        _keep(self.queues, name, self._fitting(name))

    def add_exchange(self, name: str) -> None:
        """The nameless exchange has no policy."""
        _keep(self.exchanges, name, self._fitting(name) if name else 0)

    def put(
        self, policy: Policy, queues: Iterable[str], exchanges: Iterable[str]
    ) -> tuple[list[str], list[str]]:
        """Add a policy; return the queues and exchanges, of all that there are, that it fits."""
        rank = bisect_left(self.ranked, _precedence(policy), key=_precedence)
        self.ranked.insert(rank, policy)
        search = policy.expression.search
        found = [name for name in queues if search(name)], [n for n in exchanges if n and search(n)]
        for masks, fitted in zip((self.queues, self.exchanges), found, strict=True):
            for name, mask in masks.items():
                masks[name] = mask & ((1 << rank) - 1) | mask >> rank << (rank + 1)
            for name in fitted:
                masks[name] = masks.get(name, 0) | 1 << rank
        self._count()
        return found

    def remove(self, policy: Policy) -> tuple[list[str], list[str]]:
        """Remove a policy; return the queues and exchanges that it fits."""
        rank = bisect_left(self.ranked, _precedence(policy), key=_precedence)
        del self.ranked[rank]
        found: tuple[list[str], list[str]] = [], []
        for masks, fitted in zip((self.queues, self.exchanges), found, strict=True):
            for name, mask in list(masks.items()):
                if mask >> rank & 1:
                    fitted.append(name)
                _keep(masks, name, mask & ((1 << rank) - 1) | mask >> (rank + 1) << rank)
        self._count()
        return found

    def _fitting(self, name: str) -> int:
        return self._mask(each.expression.search(name) for each in self.ranked)

    def _mask(self, bits: Iterable[bool]) -> int:
        mask = 0
        for rank, bit in enumerate(bits):
            if bit:
                mask |= 1 << rank
        return mask

    def _count(self) -> None:
        self._for_kind = {}
        self._for_exchanges = self._mask(map(applies_to_exchange, self.ranked))
        self._tables = sum(each.expression.reads_all() for each in self.ranked)

    def _first(self, mask: int) -> Policy | None:
        return self.ranked[(mask & -mask).bit_length() - 1] if mask else None


def _precedence(policy: Policy) -> tuple[int, str]:
    return -policy.priority, policy.name


def _keep(masks: dict[str, int], name: str, mask: int) -> None:
    if mask:
        masks[name] = mask
    else:
        masks.pop(name, None)
