"""Password hashes: what verifies, what is refused, what is remembered."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhizome.security.password_hashes import (
    PASSWORD_BYTES_MAX,
    PasswordHashError,
    ScryptCost,
    VerifiedLogins,
    check_encoded,
    hash_password,
    import_rabbitmq_hash,
    needs_rehash,
    verify_password,
)

CHEAP = ScryptCost(cost_log2=4, block_size=1, parallel=1)
DEARER = ScryptCost(cost_log2=5, block_size=1, parallel=2)
SECRET = b"s" * 32


def rabbit_hash(password: bytes, algorithm: str, salt: bytes = b"salt") -> str:
    return base64.b64encode(salt + hashlib.new(algorithm, salt + password).digest()).decode()


@settings(deadline=None)
@given(
    st.binary(min_size=1, max_size=64).filter(lambda password: not password.endswith(b"\0")),
    st.binary(min_size=1, max_size=64),
)
def test_only_the_same_password_verifies(password: bytes, other: bytes) -> None:
    encoded = hash_password(password, cost=CHEAP)
    assert verify_password(encoded, password)
    assert verify_password(encoded, other) == (password == other)


def test_encoding_is_stable() -> None:
    """Golden: stores written today are read by every later version."""
    encoded = hash_password(b"guest", salt=b"0123456789abcdef", cost=CHEAP)
    assert encoded == (
        "$scrypt$v=1$ln=4,r=1,p=1$MDEyMzQ1Njc4OWFiY2RlZg"
        "$2Yk+3HnBkKtPlrb1uzLJEAesDRZ+8OreIxQaJoNIHY4"
    )


def test_default_cost_is_memory_hard() -> None:
    assert ScryptCost().memory_bytes >= 16 << 20
    assert verify_password(hash_password(b"guest"), b"guest")


def test_each_hash_has_a_salt_of_its_own() -> None:
    assert hash_password(b"x", cost=CHEAP) != hash_password(b"x", cost=CHEAP)


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_hash_imported_from_rabbitmq_verifies(algorithm: str) -> None:
    encoded = import_rabbitmq_hash(
        rabbit_hash(b"test12", algorithm), f"rabbit_password_hashing_{algorithm}"
    )
    assert verify_password(encoded, b"test12")
    assert not verify_password(encoded, b"test13")


def test_example_of_rabbitmqs_documentation_verifies() -> None:
    """Salt 908DC60A and password test12, from RabbitMQ's guide on passwords."""
    encoded = import_rabbitmq_hash(
        "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
        "rabbit_password_hashing_sha256",
    )
    assert verify_password(encoded, b"test12")


def test_md5_of_old_rabbitmq_is_refused_by_name() -> None:
    with pytest.raises(PasswordHashError, match="rabbit_password_hashing_md5"):
        import_rabbitmq_hash("AAAA", "rabbit_password_hashing_md5")


@pytest.mark.parametrize(
    "encoded",
    [
        "plain",
        "$scrypt$v=2$ln=4,r=1,p=1$AAAA$AAAA",
        "$scrypt$v=1$ln=40,r=8,p=1$AAAA$AAAA",
        "$scrypt$v=1$ln=20,r=32,p=1$AAAA$AAAA",
        f"$scrypt$v=1$ln=20,r=8,p=1${'A' * 22}${'A' * 43}",
        f"$scrypt$v=1$ln=18,r=8,p=6${'A' * 22}${'A' * 43}",
        "$scrypt$v=1$ln=4,r=1$AAAA$AAAA",
        "$scrypt$v=1$ln=4,r=1,p=x$AAAA$AAAA",
        "$scrypt$v=1$ln=4,r=1,p=1$AAAA$AAAA",
        "$scrypt$v=1$ln=4,r=1,p=1$!!!!$AAAA",
        "$rabbit-md5$AAAA",
        "$rabbit-sha256$AAAA",
        "x" * 10_000,
    ],
)
def test_malformed_hash_is_refused_when_set_and_verifies_nothing(encoded: str) -> None:
    with pytest.raises(PasswordHashError):
        check_encoded(encoded)
    assert not verify_password(encoded, b"guest")


def test_empty_and_endless_passwords_verify_nothing() -> None:
    encoded = hash_password(b"x" * PASSWORD_BYTES_MAX, cost=CHEAP)
    assert not verify_password(encoded, b"")
    assert not verify_password(encoded, b"x" * (PASSWORD_BYTES_MAX + 1))
    assert not verify_password("", b"")
    with pytest.raises(PasswordHashError):
        hash_password(b"")
    with pytest.raises(PasswordHashError):
        hash_password(b"x" * (PASSWORD_BYTES_MAX + 1))


def test_cheaper_and_imported_hashes_need_a_new_one() -> None:
    assert needs_rehash(hash_password(b"x", cost=CHEAP))
    assert not needs_rehash(hash_password(b"x", cost=CHEAP), CHEAP)
    assert not needs_rehash(hash_password(b"x", cost=DEARER), CHEAP), "never to a cheaper one"
    imported = import_rabbitmq_hash(rabbit_hash(b"x", "sha256"), "rabbit_password_hashing_sha256")
    assert needs_rehash(imported)


def test_verified_login_is_remembered_for_that_password_alone() -> None:
    verified = VerifiedLogins(SECRET)
    proof = verified.proof("app", "$hash", b"right")
    assert not verified.remembers("app", "$hash", proof)
    verified.remember("app", "$hash", proof)
    assert verified.remembers("app", "$hash", proof)
    assert not verified.remembers("app", "$hash", verified.proof("app", "$hash", b"wrong"))
    assert not verified.remembers("bob", "$hash", proof)


def test_changed_hash_drops_what_was_remembered() -> None:
    verified = VerifiedLogins(SECRET)
    proof = verified.proof("app", "$old", b"right")
    verified.remember("app", "$old", proof)
    assert not verified.remembers("app", "$new", verified.proof("app", "$new", b"right"))
    assert len(verified) == 0


def test_forgotten_user_is_verified_again() -> None:
    verified = VerifiedLogins(SECRET)
    proof = verified.proof("app", "$hash", b"right")
    verified.remember("app", "$hash", proof)
    verified.forget("app")
    assert not verified.remembers("app", "$hash", proof)


def test_proofs_do_not_confuse_where_one_field_ends() -> None:
    verified = VerifiedLogins(SECRET)
    assert verified.proof("ab", "c", b"d") != verified.proof("a", "bc", b"d")


def test_least_recent_login_is_forgotten_first() -> None:
    verified = VerifiedLogins(SECRET, users_max=2)
    proofs = {user: verified.proof(user, "$hash", b"x") for user in ("a", "b", "c")}
    verified.remember("a", "$hash", proofs["a"])
    verified.remember("b", "$hash", proofs["b"])
    assert verified.remembers("a", "$hash", proofs["a"])
    verified.remember("c", "$hash", proofs["c"])
    assert verified.remembers("a", "$hash", proofs["a"])
    assert not verified.remembers("b", "$hash", proofs["b"])


def test_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="16"):
        VerifiedLogins(b"short")


def test_a_password_with_nul_behind_it_is_another_one() -> None:
    encoded = hash_password(b"secret", cost=CHEAP)
    assert verify_password(encoded, b"secret")
    assert not verify_password(encoded, b"secret\0")
