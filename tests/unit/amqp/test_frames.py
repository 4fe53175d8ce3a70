"""Frames and contents: cutting them and making them fit other channels and limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.amqp.frames import (
    body_of,
    content_frames,
    frame,
    header_payload_of,
    method_frame,
    reframe,
)
from rhizome.amqp.methods import ChannelOpen
from rhizome.errors import AmqpError, FrameError

HEADER = b"\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00"


def test_frame_is_type_channel_size_payload_end() -> None:
    assert frame(8, 0, b"") == b"\x08\x00\x00\x00\x00\x00\x00\xce"
    assert frame(3, 0xFFFE, b"ab") == b"\x03\xff\xfe\x00\x00\x00\x02ab\xce"


def test_method_frame_carries_the_encoded_method() -> None:
    expected = b"\x01\x00\x02\x00\x00\x00\x05\x00\x14\x00\x0a\x00\xce"
    assert method_frame(2, ChannelOpen()) == expected


def test_body_is_split_to_the_frame_limit() -> None:
    content = content_frames(1, HEADER, b"abcde", 10)
    assert content == (
        b"\x02\x00\x01\x00\x00\x00\x0e"
        + HEADER
        + b"\xce\x03\x00\x01\x00\x00\x00\x02ab\xce"
        + b"\x03\x00\x01\x00\x00\x00\x02cd\xce"
        + b"\x03\x00\x01\x00\x00\x00\x01e\xce"
    )


def test_empty_body_has_no_frame() -> None:
    content = content_frames(1, HEADER, b"", 4096)
    assert content == frame(2, 1, HEADER)
    assert body_of(content) == b""
    assert reframe(content, 2, 4096) == frame(2, 2, HEADER)


def test_limit_of_zero_is_no_limit() -> None:
    content = content_frames(1, HEADER, b"x" * 100_000, 0)
    assert content.count(b"\xce") == 2


def test_channel_is_patched_in_every_frame() -> None:
    content = content_frames(1, HEADER, b"abcde", 10)
    assert reframe(content, 0xABCD, 0) == content_frames(0xABCD, HEADER, b"abcde", 10)
    assert content == content_frames(1, HEADER, b"abcde", 10)


def test_frames_within_the_limit_are_left_alone() -> None:
    content = content_frames(1, HEADER, b"abcde", 10)
    assert reframe(content, 3, 4096) == content_frames(3, HEADER, b"abcde", 10)


def test_frames_over_the_limit_are_split_anew() -> None:
    content = content_frames(1, HEADER, b"abcde", 0)
    assert reframe(content, 3, 10) == content_frames(3, HEADER, b"abcde", 10)


@given(st.binary(max_size=200), st.integers(9, 60), st.integers(9, 60), st.integers(0, 0xFFFF))
def test_content_survives_reframing(body: bytes, before: int, after: int, channel: int) -> None:
    content = content_frames(1, HEADER, body, before)
    again = reframe(content, channel, after)
    assert body_of(again) == body
    assert header_payload_of(again) == HEADER
    at = len(frame(2, channel, HEADER))
    while at < len(again):
        size = int.from_bytes(again[at + 3 : at + 7], "big") + 8
        assert size <= after
        assert again[at : at + 3] == b"\x03" + channel.to_bytes(2, "big")
        assert again[at + size - 1] == 0xCE
        at += size


def test_torn_content_is_a_frame_error() -> None:
    content = content_frames(1, HEADER, b"abcde", 10)
    whole_frames = {22, 32, 42}
    for end in range(len(content)):
        if end in whole_frames:
            continue
        with pytest.raises(FrameError):
            body_of(content[:end])
        if end:
            with pytest.raises(FrameError):
                reframe(content[:end], 2, 0)


@given(st.binary(max_size=60))
def test_random_bytes_raise_nothing_but_amqp_errors(data: bytes) -> None:
    try:
        body_of(data)
        header_payload_of(data)
        reframe(data, 7, 20)
    except AmqpError:
        pass
