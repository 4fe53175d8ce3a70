"""Certificates of death: what is proved, and that nothing else is (R15)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.amqp.field_table import encode_table, read_table
from rhizome.cluster.link.cluster_key_proof import LinkKeys, ProofError
from rhizome.cluster.link.death_certificate import DeathCertificate, certify, verified

KEYS = LinkKeys(b"the key of a cluster in a test")
OF_B2 = DeathCertificate("b2", "b" * 32, "00ab12", "systemd on host-2")
GOLDEN = Path(__file__).with_name("golden") / "death_certificate.bin"


def test_what_was_certified_is_read() -> None:
    assert verified(KEYS, certify(KEYS, OF_B2)) == OF_B2


def test_bytes_are_as_other_releases_know_them() -> None:
    assert GOLDEN.read_bytes() == certify(KEYS, OF_B2)


def test_any_common_key_will_do_while_keys_are_rotated() -> None:
    made = certify(LinkKeys(b"the newer key of the two", b"the older key of the two"), OF_B2)
    assert verified(LinkKeys(b"the older key of the two"), made) == OF_B2
    with pytest.raises(ProofError, match="doesn't know the cluster key"):
        verified(KEYS, made)


@pytest.mark.parametrize("part", ["whose", "seen_by"])
def test_no_part_can_be_changed(part: str) -> None:
    table, _ = read_table(certify(KEYS, OF_B2), 0)
    other, _ = read_table(certify(KEYS, DeathCertificate("b3", "c" * 32, "00cd", "x")), 0)
    table[part] = other[part]
    with pytest.raises(ProofError, match="doesn't know the cluster key"):
        verified(KEYS, encode_table(table))


@pytest.mark.parametrize("part", ["whose", "seen_by", "proofs"])
def test_no_part_may_be_missing(part: str) -> None:
    table, _ = read_table(certify(KEYS, OF_B2), 0)
    del table[part]
    with pytest.raises(ProofError, match="without its parts"):
        verified(KEYS, encode_table(table))


def test_somebody_who_knows_the_key_and_says_nonsense_is_refused() -> None:
    with pytest.raises(ProofError, match="of nobody"):
        verified(KEYS, certify(KEYS, DeathCertificate("b2", "no uuid", "00ab", "x")))
    table, _ = read_table(certify(KEYS, OF_B2), 0)
    with pytest.raises(ProofError, match="more than"):
        verified(KEYS, encode_table({**table, "proofs": [b"x"] * 5}))
    with pytest.raises(ProofError, match="maximum"):
        verified(KEYS, bytes(20_000))


@given(st.binary(max_size=200))
def test_no_bytes_are_anything_but_refused(data: bytes) -> None:
    with pytest.raises(ProofError):
        verified(KEYS, data)
