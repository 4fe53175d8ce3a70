"""MAC records: they authenticate the bytes of a link where neither TLS nor the machine does.

Once a link is open, each end sends records:

    size u32 | tag, 16 bytes | so many bytes of frames

The tag is the beginning of an HMAC-SHA256 over everything that this end has sent on the link so
far: the sizes and bytes of all records up to and including this one. Its key comes out of the
handshake, and each direction has its own (``cluster_key_proof.py``). So an attacker on the path who
lacks the cluster key can't add, change, leave out, reorder, repeat or reflect a byte without the
next tag being wrong, which ends the link. The attacker can read everything: only TLS prevents that.

Invariant: no byte reaches the link's frame reader before the tag of its record was right. A record
is one write of a wake-up, not one frame, because a tag costs about as much as a small frame. It is
at most ``RECORD_BYTES_MAX``, so that a peer that really sends is heard of often enough while a
large frame is under way.
"""

from __future__ import annotations

import hmac
from typing import Final, final

from mypy_extensions import i64

from rhizome.amqp.primitives import u32_at
from rhizome.cluster.link.cluster_key_proof import Protection
from rhizome.cluster.link.frame_codec import LinkReader
from rhizome.errors import FrameError, NotAllowed

TAG_BYTES: Final = 16
RECORD_HEAD_BYTES: Final = 4 + TAG_BYTES
RECORD_BYTES_MAX: Final = 1 << 20
"""The size limit of one record, without its head."""


@final
class Guard:
    """The protection of one link.

    From the handshake it has the ``fingerprint`` of the key that the link was made with, the
    ``keys`` of its MACs to send and to receive with until they are in use, and whether it
    ``is_lacking`` MACs because the peer's release has none. ``is_local``: the driver says that the
    peer has a loopback address.

    Invariant: ``writer`` and ``reader`` exist if what is sent and received has MACs; ``plain`` is
    what has still to go out before the first record.
    """

    fingerprint: str
    keys: tuple[bytes, bytes] | None
    is_lacking: bool
    is_local: bool
    writer: MacWriter | None
    reader: MacReader | None
    plain: list[bytes]

    def __init__(self) -> None:
        self.fingerprint = ""
        self.keys = None
        self.is_lacking = False
        self.is_local = True
        self.writer = None
        self.reader = None
        self.plain = []

    def agreed(self, protection: Protection) -> None:
        """The handshake has agreed on the protection."""
        self.fingerprint = protection.fingerprint
        self.keys = protection.mac_keys
        self.is_lacking = protection.is_lacking


@final
class MacWriter:
    """Makes records of what one end sends."""

    mac: hmac.HMAC

    def __init__(self, key: bytes) -> None:
        self.mac = hmac.new(key, digestmod="sha256")

    def records(self, chunks: list[bytes]) -> list[bytes]:
        """The same chunks with heads between them; a chunk is copied only if it must be cut."""
        made: list[bytes] = []
        part: list[bytes] = []
        part_bytes: i64 = 0
        for chunk in chunks:
            at: i64 = 0
            size: i64 = len(chunk)
            while part_bytes + size - at > RECORD_BYTES_MAX:
                cut: i64 = at + RECORD_BYTES_MAX - part_bytes
                part.append(chunk[at:cut])
                self._close(made, part, RECORD_BYTES_MAX)
                part = []
                part_bytes = 0
                at = cut
            if size > at:
                part.append(chunk[at:] if at > 0 else chunk)
                part_bytes += size - at
        if part_bytes > 0:
            self._close(made, part, part_bytes)
        return made

    def _close(self, made: list[bytes], part: list[bytes], size: i64) -> None:
        mac = self.mac
        head = int(size).to_bytes(4, "big")
        mac.update(head)
        for chunk in part:
            mac.update(chunk)
        made.append(head + mac.copy().digest()[:TAG_BYTES])
        made += part


@final
class MacReader:
    """Takes the peer's records and hands their bytes to ``reader`` once their tag was right.

    Invariant: ``pieces`` has what came of the record whose head is ``head``, and ``missing`` bytes
    of it are to come; 0 if the head itself isn't whole.
    """

    reader: LinkReader
    mac: hmac.HMAC
    head: bytes
    pieces: list[bytes]
    missing: i64

    def __init__(self, reader: LinkReader, key: bytes) -> None:
        self.reader = reader
        self.mac = hmac.new(key, digestmod="sha256")
        self.head = b""
        self.pieces = []
        self.missing = 0

    def receive(self, data: bytes) -> bool:
        """Take bytes; returns whether a record became whole and was the peer's.

        Raises NotAllowed for a record that isn't the peer's, and FrameError for what can't be a
        record; nothing can follow either.
        """
        heard = False
        at: i64 = 0
        end: i64 = len(data)
        while at < end and not self.reader.stopped:
            if self.missing == 0:
                at = self._take_head(data, at)
                continue
            after: i64 = min(end, at + self.missing)
            piece = data if at == 0 and after == end else data[at:after]
            self.mac.update(piece)
            self.pieces.append(piece)
            self.missing -= after - at
            at = after
            if self.missing == 0:
                self._hand_on()
                heard = True
        return heard

    def _take_head(self, data: bytes, at: i64) -> i64:
        """Add to the head; returns the offset behind what was used."""
        after: i64 = min(len(data), at + RECORD_HEAD_BYTES - len(self.head))
        self.head += data[at:after]
        if len(self.head) == RECORD_HEAD_BYTES:
            size = u32_at(self.head, 0)
            if not 0 < size <= RECORD_BYTES_MAX:
                raise FrameError(
                    f"a record of {size} bytes, where 1 to {RECORD_BYTES_MAX} are possible: the"
                    " peer has given the link up while it was made, or somebody between the two"
                    " brokers has changed it"
                )
            self.mac.update(self.head[:4])
            self.missing = size
        return after

    def _hand_on(self) -> None:
        tag = self.mac.copy().digest()[:TAG_BYTES]
        if not hmac.compare_digest(tag, self.head[4:]):
            raise NotAllowed(
                "what came over the link isn't what the peer has sent: somebody between the two"
                " brokers has changed it"
            )
        pieces = self.pieces
        self.pieces = []
        self.head = b""
        for piece in pieces:
            self.reader.receive(piece)
