"""Password hashes, and a memory of who has just proved theirs.

Encoded forms, told apart by their first field:

    $scrypt$v=1$ln=14,r=8,p=5$SALT$HASH      Rhizome's own; memory-hard; base64 without padding
    $rabbit-sha256$BASE64                    imported from RabbitMQ: 4 bytes of salt, then the hash
    $rabbit-sha512$BASE64                    of salt and password
    (empty)                                  no password: nobody logs in with one

The parameters are in the string, so they can be raised without invalidating what is stored. Those
of a stored string are bounded before they are used: a definitions file must not be able to ask for
64 GiB of memory, or for minutes of work.

A hash that is cheaper than new ones are (imported, or from before the cost was raised) is replaced
when its password is proved, the only time at which a new one can be made of it. Until then a guess
at it is given the work that it spares, so that the time of a refusal doesn't tell such users from
others or from none (`examine_password`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from rhizome.errors import RhizomeError

FORMAT_VERSION: Final = 1
SALT_BYTES: Final = 16
HASH_BYTES: Final = 32
PASSWORD_BYTES_MAX: Final = 4096
ENCODED_CHARACTERS_MAX: Final = 512

COST_LOG2_MAX: Final = 20
BLOCK_SIZE_MAX: Final = 32
PARALLEL_MAX: Final = 64
MEMORY_BYTES_MAX: Final = 1 << 28
WORK_MAX: Final = (8 << 18) * 5
"""What `password_cost` can ask for at most, about four seconds. A stranger has only to try a user
whose hash is dearer to keep one of the two threads that verify."""

RABBIT_SALT_BYTES: Final = 4
RABBIT_ALGORITHMS: Final = {
    "rabbit_password_hashing_sha256": "sha256",
    "rabbit_password_hashing_sha512": "sha512",
}
_RABBIT_PREFIX: Final = "rabbit-"

VERIFIED_USERS_MAX: Final = 4096


class PasswordHashError(RhizomeError):
    """A stored or imported password hash that can't be one."""


@dataclass(frozen=True, slots=True)
class ScryptCost:
    """What one verification costs: 128 * r * 2**ln bytes of memory, p times over.

    The default takes 16 MiB and a fifth of a second of one core.
    """

    cost_log2: int = 14
    block_size: int = 8
    parallel: int = 5

    def check(self) -> None:
        within = (
            1 <= self.cost_log2 <= COST_LOG2_MAX
            and 1 <= self.block_size <= BLOCK_SIZE_MAX
            and 1 <= self.parallel <= PARALLEL_MAX
            and self.memory_bytes <= MEMORY_BYTES_MAX
            and self.work <= WORK_MAX
        )
        if not within:
            raise PasswordHashError(
                f"scrypt parameters ln={self.cost_log2},r={self.block_size},p={self.parallel} are"
                f" out of range (ln 1 to {COST_LOG2_MAX}, r 1 to {BLOCK_SIZE_MAX},"
                f" p 1 to {PARALLEL_MAX}, memory up to 256 MiB, work up to ln=18,r=8,p=5)"
            )

    @property
    def memory_bytes(self) -> int:
        return 128 * self.block_size << self.cost_log2

    @property
    def work(self) -> int:
        """What the time of a verification is proportional to: blocks that are mixed."""
        return (self.block_size << self.cost_log2) * self.parallel

    def remainder(self, work: int) -> ScryptCost | None:
        """What is to be done beside ``work`` to have done as much as this; None if nothing is."""
        of_one = self.block_size << self.cost_log2
        missing = -(-(self.work - work) // of_one)
        return ScryptCost(self.cost_log2, self.block_size, missing) if missing > 0 else None


DEFAULT_COST: Final = ScryptCost()


def hash_password(
    password: bytes,
    *,
    salt: bytes | None = None,
    cost: ScryptCost = DEFAULT_COST,
    scrypt: _Scrypt | None = None,
) -> str:
    """The encoded hash of a new password, under a fresh salt unless one is given."""
    if not password:
        raise PasswordHashError("an empty password is refused; give the user none, or a real one")
    if len(password) > PASSWORD_BYTES_MAX:
        raise PasswordHashError(f"a password has at most {PASSWORD_BYTES_MAX} bytes")
    if password.endswith(b"\0"):
        raise PasswordHashError("a password can't end with NUL")
    cost.check()
    salt = os.urandom(SALT_BYTES) if salt is None else salt
    return _encode(cost, salt, (scrypt or _Scrypt()).digest(password, salt, cost))


def import_rabbitmq_hash(encoded: str, algorithm: str) -> str:
    """The encoded form of `password_hash` and `hashing_algorithm` of RabbitMQ's definitions."""
    name = RABBIT_ALGORITHMS.get(algorithm)
    if name is None:
        known = ", ".join(RABBIT_ALGORITHMS)
        raise PasswordHashError(f"hashing algorithm {algorithm!r} is not supported; use {known}")
    if not encoded:
        return ""
    imported = f"${_RABBIT_PREFIX}{name}${encoded}"
    check_encoded(imported)
    return imported


def check_encoded(encoded: str) -> None:
    """Raise PasswordHashError unless `verify_password` understands this string."""
    if encoded:
        _Stored.parse(encoded)


def verify_password(encoded: str, password: bytes) -> bool:
    """Whether `password` is the one behind `encoded`; takes the same time whatever differs.

    An unreadable hash, an empty one and an empty password verify nothing. Nor does one that ends
    with NUL: HMAC, within scrypt, pads its key with these and can't tell.
    """
    if not encoded or not _is_possible(password):
        return False
    try:
        stored = _Stored.parse(encoded)
    except PasswordHashError:
        return False
    return stored.matches(password, _Scrypt())


def _is_possible(password: bytes) -> bool:
    """Whether any hash can be of this password: no work is done for others, whoever is meant."""
    return 0 < len(password) <= PASSWORD_BYTES_MAX and not password.endswith(b"\0")


def needs_rehash(encoded: str, cost: ScryptCost = DEFAULT_COST) -> bool:
    """Whether a hash was made with less work than new ones are: imported, or at a lower cost.

    Never because it was made with more: two brokers that are configured differently would replace
    each other's hashes for ever.
    """
    try:
        return _Stored.parse(encoded).work < cost.work
    except PasswordHashError:
        return True


@dataclass(frozen=True, slots=True)
class Examination:
    """What came of a password: whether it is right, and, if it is and its hash is cheaper than new
    ones are, a better hash of it."""

    is_right: bool
    upgraded: str = ""


def examine_password(encoded: str, password: bytes, cost: ScryptCost) -> Examination:
    """Verify a password, and do the work of ``cost`` at least, whatever the hash is.

    ``encoded`` may be empty, for a user that doesn't exist or has no password. Invariant: the work
    that a wrong password costs is the same for every hash that is not dearer than ``cost``.
    """
    scrypt = _Scrypt()
    if not _is_possible(password):
        return Examination(False)
    try:
        stored: _Stored | None = _Stored.parse(encoded)
    except PasswordHashError:
        stored = None
    if stored is not None and stored.matches(password, scrypt):
        needs_upgrade = stored.work < cost.work
        upgraded = upgraded_hash(encoded, password, cost, scrypt) if needs_upgrade else ""
        return Examination(True, upgraded)
    missing = cost.remainder(scrypt.work)
    if missing is not None:
        scrypt.digest(password, os.urandom(SALT_BYTES), missing)
    return Examination(False)


def upgraded_hash(
    before: str, password: bytes, cost: ScryptCost, scrypt: _Scrypt | None = None
) -> str:
    """A better hash of the password behind ``before``, which tells of itself that it is that.

    Half of its salt is random, the other half made from the first and from ``before``. So every
    broker that applies the change knows that the password is still the same one.
    """
    chance = os.urandom(SALT_BYTES // 2)
    salt = chance + _upgrade_mark(chance, before)
    return hash_password(password, salt=salt, cost=cost, scrypt=scrypt)


def is_same_password(one: str, other: str) -> bool:
    """Whether two hashes are known to be of the same password: equal, or one upgraded from the
    other. Both ways: a definitions file may bring an imported hash back that was upgraded."""
    return one == other or _is_upgrade(one, other) or _is_upgrade(other, one)


def _is_upgrade(before: str, after: str) -> bool:
    try:
        stored = _Stored.parse(after)
    except PasswordHashError:
        return False
    half = SALT_BYTES // 2
    if stored.cost is None or len(stored.salt) != SALT_BYTES or not before:
        return False
    return hmac.compare_digest(stored.salt[half:], _upgrade_mark(stored.salt[:half], before))


def _upgrade_mark(chance: bytes, before: str) -> bytes:
    made = hashlib.sha256(b"rhizome password upgrade\0" + chance + _octets(before))
    return made.digest()[: SALT_BYTES // 2]


@dataclass(frozen=True, slots=True)
class _Stored:
    """A parsed hash; `cost` is None for RabbitMQ's, which are one round of `algorithm`."""

    algorithm: str
    cost: ScryptCost | None
    salt: bytes
    digest: bytes

    @staticmethod
    def parse(encoded: str) -> _Stored:
        if len(encoded) > ENCODED_CHARACTERS_MAX:
            raise PasswordHashError(f"a password hash has at most {ENCODED_CHARACTERS_MAX} bytes")
        fields = encoded.split("$")
        if len(fields) == 6 and fields[:2] == ["", "scrypt"]:
            return _parse_scrypt(fields[2], fields[3], fields[4], fields[5])
        if len(fields) == 3 and fields[0] == "" and fields[1].startswith(_RABBIT_PREFIX):
            return _parse_rabbit(fields[1].removeprefix(_RABBIT_PREFIX), fields[2])
        raise PasswordHashError(
            "not a password hash; it starts with $scrypt$, $rabbit-sha256$ or $rabbit-sha512$"
        )

    @property
    def work(self) -> int:
        """RabbitMQ's one round is next to nothing."""
        return 0 if self.cost is None else self.cost.work

    def matches(self, password: bytes, scrypt: _Scrypt) -> bool:
        """Takes the same time whatever differs."""
        if self.cost is None:
            digest = hashlib.new(self.algorithm, self.salt + password).digest()
        else:
            digest = scrypt.digest(password, self.salt, self.cost)
        return hmac.compare_digest(self.digest, digest)


def _parse_scrypt(version: str, parameters: str, salt: str, digest: str) -> _Stored:
    if version != f"v={FORMAT_VERSION}":
        raise PasswordHashError(f"scrypt hash of unknown version {version!r}")
    values: dict[str, int] = {}
    for part in parameters.split(","):
        name, _, number = part.partition("=")
        if not (number.isascii() and number.isdigit() and len(number) <= 4):
            raise PasswordHashError(f"scrypt parameter {part!r} is not NAME=NUMBER")
        values[name] = int(number)
    if set(values) != {"ln", "r", "p"}:
        raise PasswordHashError("a scrypt hash has the parameters ln, r and p")
    cost = ScryptCost(values["ln"], values["r"], values["p"])
    cost.check()
    stored = _Stored("scrypt", cost, _from_base64(salt), _from_base64(digest))
    if len(stored.digest) != HASH_BYTES:
        raise PasswordHashError(f"a scrypt hash has {HASH_BYTES} bytes")
    return stored


def _parse_rabbit(algorithm: str, encoded: str) -> _Stored:
    if f"rabbit_password_hashing_{algorithm}" not in RABBIT_ALGORITHMS:
        raise PasswordHashError(f"RabbitMQ hash of unknown algorithm {algorithm!r}")
    raw = _from_base64(encoded)
    if len(raw) != RABBIT_SALT_BYTES + hashlib.new(algorithm).digest_size:
        raise PasswordHashError(f"a RabbitMQ {algorithm} hash is 4 bytes of salt and the digest")
    return _Stored(algorithm, None, raw[:RABBIT_SALT_BYTES], raw[RABBIT_SALT_BYTES:])


class _Scrypt:
    """Hashes, and adds up the work that it does."""

    def __init__(self) -> None:
        self.work = 0

    def digest(self, password: bytes, salt: bytes, cost: ScryptCost) -> bytes:
        self.work += cost.work
        # OpenSSL wants room for its own bookkeeping beyond the arithmetic memory need.
        own_bytes = 128 * cost.block_size * (cost.parallel + 2) + (1 << 20)
        return hashlib.scrypt(
            password,
            salt=salt,
            n=1 << cost.cost_log2,
            r=cost.block_size,
            p=cost.parallel,
            maxmem=cost.memory_bytes + own_bytes,
            dklen=HASH_BYTES,
        )


def _encode(cost: ScryptCost, salt: bytes, digest: bytes) -> str:
    parameters = f"ln={cost.cost_log2},r={cost.block_size},p={cost.parallel}"
    return f"$scrypt$v={FORMAT_VERSION}${parameters}${_to_base64(salt)}${_to_base64(digest)}"


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _to_base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode().rstrip("=")


def _from_base64(text: str) -> bytes:
    bare = text.rstrip("=")
    try:
        return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise PasswordHashError("a password hash contains bad base64") from None


class VerifiedLogins:
    """Remembers which password each user proved last, so that only a first login pays for scrypt.

    What is kept is an HMAC of user, stored hash and password under a secret of this process, never
    the password. Invariant: an entry speaks for the stored hash that it was made with; a changed
    hash makes it worthless and drops it. At most `users_max` entries, the least recent go first.
    """

    def __init__(self, secret: bytes, users_max: int = VERIFIED_USERS_MAX) -> None:
        if len(secret) < 16:
            raise ValueError("the secret of the login cache needs at least 16 random bytes")
        self._secret = secret
        self._users_max = users_max
        self._proofs: OrderedDict[str, tuple[str, bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._proofs)

    def proof(self, user: str, encoded: str, password: bytes) -> bytes:
        """What stands for this login attempt: equal for equal attempts, useless to anybody else."""
        mac = hmac.new(self._secret, digestmod="sha256")
        for part in (_octets(user), _octets(encoded), password):
            mac.update(len(part).to_bytes(4, "big"))
            mac.update(part)
        return mac.digest()

    def remembers(self, user: str, encoded: str, proof: bytes) -> bool:
        known = self._proofs.get(user)
        if known is None:
            return False
        if known[0] != encoded:
            del self._proofs[user]
            return False
        if not hmac.compare_digest(known[1], proof):
            return False
        self._proofs.move_to_end(user)
        return True

    def remember(self, user: str, encoded: str, proof: bytes) -> None:
        self._proofs[user] = (encoded, proof)
        self._proofs.move_to_end(user)
        while len(self._proofs) > self._users_max:
            self._proofs.popitem(last=False)

    def forget(self, user: str) -> None:
        self._proofs.pop(user, None)
