"""Random attacks on a broker core: whatever comes in, it answers as it should and serves others."""

from __future__ import annotations

import re

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rhizome.amqp import methods as m
from rhizome.amqp.frames import method_frame
from rhizome.broker.connection.connection_states import CLOSED, CLOSING, RUNNING
from rhizome.testing.in_memory_broker import PROTOCOL_HEADER
from tests.fuzz.attacked_core import Arena, RawClient
from tests.fuzz.choices import Choices
from tests.fuzz.frame_generator import Traffic
from tests.fuzz.session import cut, furnish, run_session

EXAMPLES = settings.default.max_examples if settings.default is not None else 100
SLOW_CHECKS = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)

# The text of a frame error shows as much of the frame as has come.
FRAME_ERROR_CLOSE = re.compile(rb"\x01\0\0....\0\x0a\0\x32\x01\xf5.*\xce", re.DOTALL)

attacks = st.binary(min_size=1000, max_size=2500)


@settings(max_examples=EXAMPLES, suppress_health_check=SLOW_CHECKS)
@given(attacks)
def test_no_attack_harms_the_core_or_its_other_clients(data: bytes) -> None:
    run_session(data)


# --- cuts


def record(data: bytes, inputs_max: int = 25) -> tuple[list[bytes], list[bytes]]:
    """Let one client do what `data` says; its inputs and what it was sent, turn by turn."""
    choices = Choices(data)
    traffic = Traffic(choices, 60)
    _, client = prepared(traffic)
    traffic.client = client
    inputs: list[bytes] = []
    outputs: list[bytes] = []
    while len(inputs) < inputs_max and not choices.exhausted() and not client.closed:
        one = traffic.input()
        inputs.append(one)
        outputs.append(fed(client, [one]))
    return inputs, outputs


def fed(client: RawClient, pieces: list[bytes]) -> bytes:
    """What a client is sent in answer to some bytes."""
    client.output = b""
    client.feed(pieces)
    return FRAME_ERROR_CLOSE.sub(b"501", client.output)


def prepared(traffic: Traffic) -> tuple[Arena, RawClient]:
    arena = Arena(good=False)
    furnish(arena, traffic)
    client = arena.intrude()
    client.shake_hands()
    for number in (1, 2):
        client.send(m.ChannelOpen(), channel=number)
    return arena, client


def replayed(data: bytes, inputs: list[bytes], cuts: Choices | None) -> list[bytes]:
    """The outputs for the same inputs, cut as `cuts` says or into single bytes."""
    _, client = prepared(Traffic(Choices(data), 60))
    outputs: list[bytes] = []
    for one in inputs:
        single = [one[at : at + 1] for at in range(len(one))]
        outputs.append(fed(client, single if cuts is None else cut(one, cuts)))
    return outputs


@settings(max_examples=EXAMPLES, suppress_health_check=SLOW_CHECKS)
@given(attacks, st.binary(min_size=300, max_size=600))
def test_where_input_is_cut_makes_no_difference(data: bytes, cuts: bytes) -> None:
    inputs, whole = record(data)
    assert replayed(data, inputs, Choices(cuts)) == whole


@settings(max_examples=max(EXAMPLES // 8, 1), suppress_health_check=SLOW_CHECKS)
@given(attacks)
def test_input_may_come_byte_by_byte(data: bytes) -> None:
    inputs, whole = record(data, 8)
    if sum(len(one) for one in inputs) < 20_000:
        assert replayed(data, inputs, None) == whole


# --- what is not a matter of chance


def test_a_client_that_drips_its_handshake_is_dropped() -> None:
    arena = Arena()
    client = arena.intrude()
    start_ok = method_frame(0, m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest"))
    handshake = PROTOCOL_HEADER + start_ok
    dripped = 0
    while not client.closed and dripped < len(handshake):
        client.send_bytes(handshake[dripped : dripped + 1])
        dripped += 1
        arena.core.advance(500)
        arena.check()
    assert client.closed
    assert dripped * 500 <= arena.core.config.limits.handshake_timeout_ms + 1000
    arena.finish()


def test_a_flood_of_channels_ends_with_530() -> None:
    arena = Arena()
    client = arena.intrude()
    client.shake_hands()
    flood = b"".join([method_frame(number, m.ChannelOpen()) for number in range(1, 4000)])
    client.send_bytes(flood)
    assert client.close is not None
    assert client.close.reply_code == 530
    assert client.connection.channels == {}
    arena.check()
    arena.finish()


def test_a_client_that_never_says_close_ok_is_dropped() -> None:
    arena = Arena()
    client = arena.intrude()
    client.shake_hands()
    client.send_bytes(b"\x01\x00\x01\xff\xff\xff\xff")
    assert client.connection.stage == CLOSING
    arena.core.advance(12_000)
    assert client.connection.stage == CLOSED
    assert client.closed
    arena.finish()


def test_frames_after_a_fatal_one_are_passed_over() -> None:
    arena = Arena()
    queue = "good"
    client = arena.intrude()
    client.shake_hands()
    client.send(m.ChannelOpen())
    after = arena.good.client.published("", queue, b"x") if arena.good is not None else b""
    client.send_bytes(method_frame(1, m.BasicQos(5)) + after + method_frame(1, m.BasicAck(1)))
    assert client.close is not None
    assert client.close.reply_code == 540
    client.send_bytes(after + method_frame(0, m.ConnectionCloseOk()))
    assert client.closed
    arena.finish()


def test_a_length_of_2_gib_is_refused_before_anything_is_kept() -> None:
    arena = Arena()
    for length in (0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
        client = arena.intrude()
        client.shake_hands()
        client.send(m.ChannelOpen())
        assert client.connection.stage == RUNNING
        client.send_bytes(b"\x03\x00\x01" + length.to_bytes(4, "big"))
        assert client.close is not None
        assert client.close.reply_code == 501
        assert client.connection.tail == b""
    arena.finish()
