"""Rules that whole brokers can break on purpose, by name: of attaching (A1, A2), of dead letters
(A1), of consensus (R1 to R5, R7 to R10, R13). docs/internals/rules.md has the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from rhizome.broker.dead_letters.group_outbox import OutboxRules
from rhizome.cluster.consensus import Rules
from rhizome.cluster.node import Node
from rhizome.cluster.protocol.attach_rule_switches import AttachRules
from rhizome.testing.sim.seed_run import UnknownRule


def rules_of_consensus(broken: Sequence[str]) -> Rules:
    """The rules of consensus with these broken; raises UnknownRule if a name is no rule at all."""
    known = [each.name for each in fields(Rules)]
    every = [*known, *_names(AttachRules()), *_names(OutboxRules())]
    for name in broken:
        if name not in every:
            raise UnknownRule(f"no rule '{name}'; there are: {', '.join(every)}")
    return Rules(**dict.fromkeys([name for name in broken if name in known], False))


def break_rules(node: Node, broken: Sequence[str]) -> None:
    """Break the other rules at a broker that was just created."""
    for rules in (node.edge.rules, node.roles.outbox_rules):
        for name in broken:
            if name in _names(rules):
                setattr(rules, name, False)


def _names(rules: AttachRules | OutboxRules) -> list[str]:
    return [name for name in dir(rules) if not name.startswith("_")]
