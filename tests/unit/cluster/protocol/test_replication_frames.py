"""The frames between homes and standbys, held by a golden file."""

from __future__ import annotations

from pathlib import Path

import pytest

from rhizome.cluster.protocol import replication_codec as codec
from rhizome.cluster.protocol.replication_codec import LiveWriter
from rhizome.errors import SyntaxErrorFault
from rhizome.journal.records import u16_at

GOLDEN = Path(__file__).parent / "golden" / "frames.txt"
BIG = (1 << 40) + 7


def every_frame() -> dict[str, bytes]:
    live = LiveWriter()
    live.refusals({0xFEDCBA987654: [3, 9], 5: [BIG]})
    live.origins({0xFEDCBA987654: 12, 5: BIG})
    live.seen(9, b"packed")
    live.shown(9, {0: 3, 9: BIG})
    live.window(9, 0, BIG, [(2, 1), (BIG - 1, 0xFFFFFFFF)], [1, 5, 100, 0xFFFFFFFF])
    live.queues([9, 0xFFFFFFFF])
    # The golden file has the name that REPLICATED had when it was written.
    return {
        "INVITE": codec.invite(77, 7, 3, [(1, 1), (3, BIG)], True, {}),
        "FOLLOW": codec.follow(77, 7, 3, "00aabbccddee", True, BIG),
        "LIVE": b"".join(live.frame(7, 3, BIG, 2, codec.LIVE_LAST | codec.LIVE_FIRST)),
        "RECORDS": codec.records_head(0xFFFF, 0xFFFFFFFF, 5, BIG, 4, 3) + b"records",
        "KEPT": codec.replicated(7, 3, BIG, 4, codec.ON_DISK, 2),
        "WANT": codec.want(7, 3, 2, [9, BIG, 1, 0xFFFFFFFF, 1, 0x7FFFFFFF]),
        "BACKFILL": codec.backfill_head(7, 3, BIG) + b"records",
        "REFUSED": codec.refused(77, 7, 4, "a later epoch has begun"),
    }


def test_frames_have_the_bytes_of_the_golden_file() -> None:
    lines = [f"{name} {data.hex()}" for name, data in every_frame().items()]
    assert lines == GOLDEN.read_text().splitlines()


def test_each_frame_tells_its_group_and_epoch() -> None:
    for name, data in every_frame().items():
        padded = b"before" + data + b"after"
        group = 0xFFFF if name == "RECORDS" else 7
        if name in ("INVITE", "FOLLOW", "REFUSED"):
            table = codec.table_in(padded, 6, 6 + len(data))
            assert codec.number_in(table, "group") == group
        else:
            assert u16_at(padded, 6) == group
            assert codec.epoch_at(padded, 6) == (0xFFFFFFFF if name == "RECORDS" else 3)


def test_histories_and_wants_are_read_as_they_were_written() -> None:
    made = every_frame()
    table = codec.table_in(made["INVITE"], 0, len(made["INVITE"]))
    assert codec.starts_in(table) == [(1, 1), (3, BIG)]
    assert codec.wanted_in(made["WANT"], 0) == [9, BIG, 1, 0xFFFFFFFF, 1, 0x7FFFFFFF]


@pytest.mark.parametrize("packed", [None, b"", b"x" * 13, 5])
def test_an_invitation_without_a_history_is_refused(packed: object) -> None:
    with pytest.raises(SyntaxErrorFault):
        codec.starts_in({"starts": packed})


def test_a_table_without_its_group_is_refused() -> None:
    with pytest.raises(SyntaxErrorFault):
        codec.number_in({"group": "seven"}, "group")
