"""Policies of RabbitMQ that mirror queues, as policies that ask for copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def mirrored_policies(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The policies of a definitions file that mirror queues and don't say how many copies."""
    found = document.get("policies")
    rows = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    return [row for row in rows if _is_mirrored(row.get("definition"))]


def _is_mirrored(definition: object) -> bool:
    return isinstance(definition, dict) and "ha-mode" in definition and "copies" not in definition


def ask_for_copies(policies: list[dict[str, Any]], brokers: int) -> list[str]:
    """Have these policies ask for copies; returns what is said of it.

    Brokers ignore `ha-mode`, so its queues would have as many copies as any others.
    """
    said: list[str] = []
    for policy in policies:
        definition = policy["definition"]
        definition["copies"] = _copies_of(definition, brokers)
        mode, name = definition["ha-mode"], policy.get("name")
        said.append(f"policy '{name}': ha-mode '{mode}' became {definition['copies']} copies")
    return said


def _copies_of(definition: Mapping[str, Any], brokers: int) -> int:
    wanted = definition.get("ha-params")
    if definition["ha-mode"] == "exactly" and isinstance(wanted, int):
        return max(1, min(wanted, brokers))
    if definition["ha-mode"] == "nodes" and isinstance(wanted, list):
        return max(1, min(len(wanted), brokers))
    return brokers
