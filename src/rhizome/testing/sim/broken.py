"""Rules that whole brokers can break on purpose, by name: of attaching (A1, A2, G7), of letters
(A1), of consensus (R1 to R13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from rhizome.broker.post import PostRules
from rhizome.cluster.attachrules import AttachRules
from rhizome.cluster.consensus import Rules
from rhizome.cluster.node import Node
from rhizome.testing.sim.run import UnknownRule


def rules_of_consensus(broken: Sequence[str]) -> Rules:
    """Those of consensus; raises UnknownRule if a name is of no rule at all."""
    known = [each.name for each in fields(Rules)]
    every = [*known, *_names(AttachRules()), *_names(PostRules())]
    for name in broken:
        if name not in every:
            raise UnknownRule(f"no rule '{name}'; there are: {', '.join(every)}")
    return Rules(**dict.fromkeys([name for name in broken if name in known], False))


def break_rules(node: Node, broken: Sequence[str]) -> None:
    """Break the others at a broker that has just been made."""
    for rules in (node.edge.rules, node.roles.post_rules):
        for name in broken:
            if name in _names(rules):
                setattr(rules, name, False)


def _names(rules: AttachRules | PostRules) -> list[str]:
    return [name for name in dir(rules) if not name.startswith("_")]
