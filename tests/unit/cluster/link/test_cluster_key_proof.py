"""The mechanism RHIZOME-CLUSTER: who knows the key, and who only pretends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.amqp.field_table import encode_table, read_table
from rhizome.cluster.link.cluster_key_proof import Acceptor, Dialler, LinkKey, LinkKeys, ProofError
from tests.unit.cluster.link.linked_brokers import KEY, make_hello

B1 = make_hello("b1")
B2 = make_hello("b2")
GOLDEN = Path(__file__).parent / "golden" / "proof.hex"


def dialler(key: bytes = KEY, seed: int = 1) -> Dialler:
    return Dialler(LinkKeys(key), B1, Random(seed))


def acceptor(key: bytes = KEY, seed: int = 2) -> Acceptor:
    return Acceptor(LinkKeys(key), B2, Random(seed))


def said(a: Dialler, b: Acceptor) -> list[bytes]:
    """The four steps of a handshake that succeeds."""
    first = a.first()
    introduction = b.introduce(first)
    proof = a.prove(introduction)
    assert b.verify(proof) == B1
    answer = b.prove()
    assert a.verify(answer) == B2
    return [first, introduction, proof, answer]


def test_two_that_know_the_key_learn_each_others_hello() -> None:
    said(dialler(), acceptor())


def test_the_key_is_never_sent() -> None:
    sent = b"".join(said(dialler(), acceptor()))
    assert KEY not in sent
    assert LinkKey(KEY)._key not in sent


def test_the_steps_are_those_of_the_first_release() -> None:
    steps = [step.hex() for step in said(dialler(), acceptor())]
    assert steps == GOLDEN.read_text().split()


def test_a_dialler_without_the_key_is_refused_and_learns_no_proof() -> None:
    a, b = dialler(b"another key, long enough"), acceptor()
    proof = a.prove(b.introduce(a.first()))
    with pytest.raises(ProofError, match=r"'b1' .* doesn't know the cluster key"):
        b.verify(proof)


def test_an_acceptor_without_the_key_is_refused() -> None:
    a, b = dialler(), acceptor(b"another key, long enough")
    a.prove(b.introduce(a.first()))
    forged = encode_table({"hello": B2.encode(), "proof": b"\0" * 32})
    with pytest.raises(ProofError, match="cluster key"):
        a.verify(forged)


def test_a_recorded_handshake_can_be_replayed_to_nobody() -> None:
    first, introduction, proof, answer = said(dialler(), acceptor())
    b = acceptor(seed=3)
    b.introduce(first)
    with pytest.raises(ProofError):
        b.verify(proof)
    a = dialler(seed=4)
    a.prove(introduction)
    with pytest.raises(ProofError):
        a.verify(answer)


def test_a_proof_can_not_be_reflected() -> None:
    # Somebody without the key makes the dialler's own proof come back to it.
    a = dialler()
    proof = a.prove(a.first())
    with pytest.raises(ProofError):
        a.verify(proof)
    # Or lets two acceptors answer each other: both wait for a dialler's proof first.
    b, c = acceptor(seed=5), acceptor(seed=6)
    b.introduce(c.introduce(dialler().first()))
    with pytest.raises(ProofError):
        b.verify(said(dialler(), acceptor())[3])


def test_a_hello_can_not_be_changed_under_way() -> None:
    a, b = dialler(), acceptor()
    table, _ = read_table(a.prove(b.introduce(a.first())), 0)
    other = replace(B1, cluster_uuid="c" * 32).encode()
    with pytest.raises(ProofError):
        b.verify(encode_table({**table, "hello": other}))


def test_an_introduction_can_not_be_changed_under_way() -> None:
    a, b = dialler(), acceptor()
    table, _ = read_table(a.first(), 0)
    b.introduce(encode_table({**table, "name": "b9"}))
    with pytest.raises(ProofError):
        b.verify(a.prove(b._introduction))


def test_who_proves_another_name_than_it_introduced_is_refused() -> None:
    key = LinkKey(KEY)
    b = acceptor()
    first = encode_table({"name": "b3", "uuid": B1.uuid, "nonce": b"n" * 32})
    introduction = b.introduce(first)
    proof = key.proof(b"rhizome dialler 1", first, introduction, B1.encode())
    with pytest.raises(ProofError, match="another name"):
        b.verify(encode_table({"hello": B1.encode(), "proof": proof}))


def test_fields_of_the_next_release_are_ignored() -> None:
    b = acceptor()
    table, _ = read_table(dialler().first(), 0)
    b.introduce(encode_table({**table, "colour": "green"}))


@pytest.mark.parametrize("field", ["name", "uuid", "nonce"])
def test_an_introduction_without_its_fields_is_refused(field: str) -> None:
    table, _ = read_table(dialler().first(), 0)
    with pytest.raises(ProofError):
        acceptor().introduce(encode_table({**table, field: b""}))


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("uuid", "x) is fine\n2026-11-17 12:00:00 connection opened by user 'admin' ("),
        ("uuid", "\x1b[2J" + "0" * 28),
        ("uuid", "0" * 14_000),
        ("name", "b" * 300),
        ("name", ""),
    ],
)
def test_an_introduction_can_not_write_lines_into_the_log(field: str, said: str) -> None:
    """Before anything is proved: whoever connects can say anything."""
    table, _ = read_table(dialler().first(), 0)
    b = acceptor()
    with pytest.raises(ProofError) as refused:
        b.introduce(encode_table({**table, field: said}))
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 200


def test_a_name_with_control_characters_is_quoted_where_it_is_refused() -> None:
    b = acceptor()
    table, _ = read_table(dialler().first(), 0)
    b.introduce(encode_table({**table, "name": "b1\n\x1b[31mready"}))
    with pytest.raises(ProofError) as refused:
        b.verify(encode_table({"hello": b"", "proof": b""}))
    assert str(refused.value).isprintable()


def test_parts_can_not_be_moved_between_fields() -> None:
    key = LinkKey(KEY)
    assert key.proof(b"l", b"ab", b"c") != key.proof(b"l", b"a", b"bc")


@given(st.binary(max_size=100))
def test_garbage_is_a_proof_error_and_nothing_else(data: bytes) -> None:
    a, b = dialler(), acceptor()
    for step in (b.introduce, b.verify, a.prove, a.verify):
        with pytest.raises(ProofError):
            step(data)
