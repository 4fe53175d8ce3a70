"""Death certificate: somebody who knows the cluster key has seen that a broker's process ended.

It is a statement of fact (R15): not that a broker is silent, but that its process is no more.

It names one incarnation, so it can't hit the broker's next start, and it stays true for ever: to
send it again changes nothing. It is one field table with proofs under each key of its maker, made
as those of a link are (`cluster_key_proof.py`), under a label of its own.

Who makes one must be certain: the lock of its store is free, which the system frees at the end of
the process and not before (`server/clustered_broker/incarnation_file.py`).

A certificate is given to any broker, in place of a login by the mechanism RHIZOME-DEATH, and that
broker passes it on to all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rhizome.amqp.field_table import encode_table, read_table
from rhizome.cluster.link.broker_hello import Hello, HelloError, decode_hello
from rhizome.cluster.link.cluster_key_proof import (
    KEYS_MAX,
    MESSAGE_BYTES_MAX,
    LinkKeys,
    ProofError,
)
from rhizome.errors import SyntaxErrorFault

DEATH_MECHANISM: Final = "RHIZOME-DEATH"
SEEN_BY_CHARS_MAX: Final = 255

_LABEL: Final = b"rhizome death 1"


@dataclass(frozen=True, slots=True)
class DeathCertificate:
    """Whose process ended, in which incarnation, and who saw it, for the logs."""

    name: str
    uuid: str
    incarnation: str
    seen_by: str = ""


def certify(keys: LinkKeys, certificate: DeathCertificate) -> bytes:
    """The certificate as it is sent, proved with each of the keys."""
    # A hello checks name, UUID and incarnation when it is read.
    whose = Hello(certificate.name, certificate.uuid, certificate.incarnation).encode()
    seen_by = certificate.seen_by[:SEEN_BY_CHARS_MAX]
    proofs = keys.proofs(_LABEL, whose, seen_by.encode("utf-8", "surrogateescape"))
    return encode_table({"whose": whose, "seen_by": seen_by, "proofs": proofs})


def verified(keys: LinkKeys, data: bytes) -> DeathCertificate:
    """The certificate, if it was made with one of the keys. Raises ProofError."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise ProofError(f"a certificate of {len(data)} bytes; the maximum is {MESSAGE_BYTES_MAX}")
    try:
        table, _ = read_table(data, 0)
    except SyntaxErrorFault as fault:
        raise ProofError(f"a certificate that is no field table: {fault.text}") from None
    whose, seen_by, proofs = table.get("whose"), table.get("seen_by"), table.get("proofs")
    if not isinstance(whose, bytes) or not isinstance(seen_by, str) or not isinstance(proofs, list):
        raise ProofError("a certificate without its parts")
    if len(proofs) > KEYS_MAX:
        raise ProofError(f"a certificate with more than {KEYS_MAX} proofs")
    given = [each for each in proofs if isinstance(each, bytes)]
    said = seen_by.encode("utf-8", "surrogateescape")
    if keys.fitting(given, _LABEL, whose, said) is None:
        raise ProofError("a certificate of somebody who doesn't know the cluster key")
    try:
        hello = decode_hello(whose)
    except HelloError as error:
        raise ProofError(f"a certificate of nobody: {error}") from None
    return DeathCertificate(hello.name, hello.uuid, hello.incarnation, seen_by)
