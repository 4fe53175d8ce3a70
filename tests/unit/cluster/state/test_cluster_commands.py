"""Entries of the state log and their encoding."""

from __future__ import annotations

from pathlib import Path

import pytest

from rhizome.amqp.field_table import encode_table
from rhizome.broker.metadata.metadata_commands import Command, DamagedCommandError, DeclareQueue
from rhizome.cluster.state.cluster_commands import (
    DISK,
    OPERATIONS,
    WHOLE,
    AppointHome,
    Envelope,
    ForceHome,
    Member,
    PinHome,
    PlanMove,
    PutSettings,
    RegisterBroker,
    RetireBroker,
    SetAway,
    SetDraining,
    SetFailoverList,
    SetInSync,
    TransferHome,
    decode,
    encode,
)

GOLDEN = Path(__file__).parent / "golden" / "entries.txt"

EXAMPLES: list[Command] = [
    RegisterBroker("b1", "0" * 32, "a1", "primary", ("10.0.0.1:5672", "[::1]:5672"), "rack-1"),
    RetireBroker("b1", "a1"),
    PutSettings("spread", 3, "ring", 1 << 26, 2),
    AppointHome(3, "b2", "a2", 7, 2),
    SetInSync(3, (Member("b1", "a1", WHOLE), Member("b3", "a3", DISK)), 8, 2),
    PlanMove(3, "b1", 8),
    TransferHome(3, "b1", "a1", 8, 2),
    ForceHome(3, "b4", "a4", 8, 2, 5),
    SetDraining("b1", True, 60_000),
    SetAway("b2", "a2", True, True),
    SetFailoverList("b1", ("b3", "b2")),
    PinHome(3, "b1", 8),
]
ENVELOPES = [
    *[Envelope(example) for example in EXAMPLES],
    Envelope(DeclareQueue("/", "q", True), "a1", 1 << 40, 17),
]


def golden_bytes() -> list[bytes]:
    lines = GOLDEN.read_text().splitlines()
    return [bytes.fromhex(line) for line in lines if not line.startswith("#")]


def test_there_is_an_example_of_every_command() -> None:
    assert [type(example) for example in EXAMPLES] == list(OPERATIONS.values())


def test_encoding_is_the_one_on_disk_everywhere() -> None:
    """A change here makes existing state logs unreadable: add a version instead."""
    assert [encode(envelope) for envelope in ENVELOPES] == golden_bytes()
    assert [decode(data) for data in golden_bytes()] == ENVELOPES


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"v": 2}, "version 2"),
        ({"v": 1, "incarnation": "a", "number": True, "answered": 0}, "who proposed"),
        ({"v": 1, "incarnation": 1, "number": 1, "answered": 0}, "who proposed"),
        ({"v": 1, "incarnation": "a", "number": 1, "answered": 0}, "no command"),
        ({"v": 1, "incarnation": "a", "number": 1, "answered": 0, "broker": 1}, "no command"),
        (
            {
                "v": 1,
                "incarnation": "",
                "number": 0,
                "answered": 0,
                "cluster": encode_table(
                    {
                        "v": 1,
                        "op": "set-in-sync",
                        "group": 1,
                        "epoch": 1,
                        "version": 1,
                        "members": [{"broker": "b"}],
                    }
                ),
            },
            "Member lacks the field 'incarnation'",
        ),
    ],
)
def test_what_is_no_entry_is_refused(table: dict[str, object], reason: str) -> None:
    with pytest.raises(DamagedCommandError, match=reason):
        decode(encode_table(table))


def test_every_truncation_is_noticed() -> None:
    data = encode(ENVELOPES[4])
    for length in range(len(data)):
        with pytest.raises(DamagedCommandError):
            decode(data[:length])
    with pytest.raises(DamagedCommandError):
        decode(data + b"\0")
