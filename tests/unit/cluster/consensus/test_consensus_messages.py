"""Messages and entries as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.cluster.consensus import consensus_messages as m
from rhizome.cluster.consensus import dataclass_codec
from rhizome.cluster.consensus.consensus_registry import Registered, Registry, SnapshotBody
from rhizome.cluster.consensus.log import log_entry_payloads as kinds
from rhizome.cluster.consensus.log.cluster_store import Entry
from rhizome.cluster.consensus.membership import Membership, Voter

GOLDEN = Path(__file__).parent / "golden" / "messages-v1.txt"

NUMBERS = st.integers(-(2**63), 2**63 - 1)
ENTRIES = st.builds(Entry, NUMBERS, NUMBERS, st.integers(0, 255), st.binary(max_size=50))
VALUES: dict[object, st.SearchStrategy[Any]] = {
    int: NUMBERS,
    bool: st.booleans(),
    str: st.text(max_size=30),
    bytes: st.binary(max_size=50),
    tuple[Entry, ...]: st.lists(ENTRIES, max_size=4).map(tuple),
}


def messages() -> st.SearchStrategy[m.Message]:
    def of(kind: type[Any]) -> st.SearchStrategy[Any]:
        hints = {k: v for k, v in get_type_hints(kind).items() if k != "KIND"}
        return st.builds(kind, **{name: VALUES[hint] for name, hint in hints.items()})

    return st.one_of([of(kind) for kind in get_args(m.Message)])


@given(messages())
def test_a_message_survives_the_wire(message: m.Message) -> None:
    assert m.decode(m.encode(message)) == message


@given(messages(), st.data())
def test_a_cut_message_is_refused_and_nothing_else_happens(
    message: m.Message, data: st.DataObject
) -> None:
    whole = m.encode(message)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(dataclass_codec.DamagedError):
        m.decode(cut)


def test_kinds_of_messages_are_distinct() -> None:
    numbers = [kind.KIND for kind in get_args(m.Message)]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff rest"])
def test_unknown_messages_are_refused(data: bytes) -> None:
    with pytest.raises(dataclass_codec.DamagedError, match="no message"):
        m.decode(data)


def test_a_field_that_an_older_release_did_not_write_has_its_default() -> None:
    @dataclass(frozen=True)
    class Old:
        term: int

    @dataclass(frozen=True)
    class New:
        term: int
        note: str = "none"

    globals().update(Old=Old, New=New)
    assert dataclass_codec.decode(New, dataclass_codec.encode(Old(7))) == New(7)
    assert dataclass_codec.decode(Old, dataclass_codec.encode(New(7, "more"))) == Old(7)


def samples() -> dict[str, bytes]:
    """One of each, with fields that are easily told apart."""
    membership = Membership((Voter("b1", "aa", "m1"), Voter("b2"), Voter("b3", "cc", "m1", False)))
    registration = kinds.Registration("b1", "aa", "i1", "primary", ("h:1",), "m1", ("b2",))
    registry = Registry(
        "cl", "pa", membership, 9, kinds.Tenure("b1", "i1"), (Registered(4, registration),)
    )
    values: list[m.Message] = [
        m.PreVote(1, 2, 3, 4, -1, 6, True, False),
        m.PreVoteAnswer(1, 2, False, "I rank better"),
        m.Vote(1, 2, 3, 4),
        m.VoteAnswer(1, True, ""),
        m.Heartbeat(1, 2, 3, 4, -1, 3000, 900),
        m.Report(1, 2, -1, 4),
        m.Append(1, 2, 3, 4, (Entry(3, 1, kinds.APPLICATION, b"payload"),)),
        m.AppendAnswer(1, True, 3, 4),
        m.SnapshotChunk(1, 2, 3, 4, 5, b"data"),
        m.SnapshotAnswer(1, 2, 3, True),
        m.Register(1),
        m.HandOver(1),
        m.Farewell(1),
        m.Abdication(1),
    ]
    found = {type(value).__name__: m.encode(value) for value in values}
    for name, value in {
        "Tenure": kinds.Tenure("b1", "i1"),
        "Founding": kinds.Founding("cl", "pa", membership),
        "Membership": membership,
        "Registration": registration,
        "Retirement": kinds.Retirement("b1", "i1"),
        "SnapshotBody": SnapshotBody(registry, b"application"),
    }.items():
        found[name] = dataclass_codec.encode(value)
    return found


def test_the_format_is_that_of_version_1() -> None:
    """Links and stores of running clusters hold these bytes: add fields only at the end."""
    lines = [line.split() for line in GOLDEN.read_text().splitlines()]
    assert {name: bytes.fromhex(data) for name, data in lines} == samples()
