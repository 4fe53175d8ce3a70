"""The sans-IO core: the same bytes mean the same, in one piece or byte by byte."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.amqp import frames, methods, spec
from rhizome.amqp.methods import Method
from rhizome.amqp.properties import Properties, encode_header
from rhizome.client import protocol_events
from rhizome.client.errors import ConnectionLost, NotOpen, ProtocolViolation
from rhizome.client.handshake_settings import Settings
from rhizome.client.protocol import ClientConnection, Phase
from rhizome.errors import AccessRefused, LoginRefused, NotAllowed, NotFound

START = methods.ConnectionStart(0, 9, {"product": "P"}, b"AMQPLAIN PLAIN", b"en_US")
HANDSHAKE = b"".join(
    frames.method_frame(0, method)
    for method in (START, methods.ConnectionTune(2047, 131_072, 60), methods.ConnectionOpenOk("b2"))
)


def opened(settings: Settings | None = None) -> ClientConnection:
    core = ClientConnection(settings or Settings())
    core.receive_data(HANDSHAKE)
    core.data_to_send()
    return core


def opened_with_channel() -> tuple[ClientConnection, int]:
    core = opened()
    number = core.open_channel()
    core.receive_data(frames.method_frame(number, methods.ChannelOpenOk()))
    core.data_to_send()
    return core, number


def sent_methods(data: bytes) -> list[tuple[int, Method]]:
    """The methods in what the core wants to send."""
    sent = []
    offset = 0
    while offset < len(data):
        end = int(frames.frame_end(data, offset))
        if data[offset] == spec.FRAME_METHOD:
            channel = int.from_bytes(data[offset + 1 : offset + 3])
            sent.append((channel, methods.decode_method(data[offset + 7 : end - 1])))
        offset = end
    return sent


def feed(core: ClientConnection, pieces: Sequence[bytes]) -> list[protocol_events.Event]:
    return [event for piece in pieces for event in core.receive_data(piece)]


def delivery(channel: int, body: bytes, frame_max: int = 131_072, tag: int = 1) -> bytes:
    method = methods.BasicDeliver("c", tag, False, "x", "key")
    header = encode_header(len(body), Properties(message_id="id"))
    return frames.method_frame(channel, method) + frames.content_frames(
        channel, header, body, frame_max
    )


def plain(found: Sequence[protocol_events.Event]) -> list[object]:
    """Events in a form that compares by value."""
    return [
        (event.channel, event.method.encode(), event.header, event.body)
        if isinstance(event, protocol_events.ContentReceived)
        else (event.channel, event.method.encode())
        if isinstance(event, protocol_events.MethodReceived)
        else event
        for event in found
    ]


def ending(found: Sequence[protocol_events.Event]) -> BaseException | None:
    last = found[-1]
    assert isinstance(last, protocol_events.ConnectionEnded)
    return last.error


# --- the handshake


def test_it_begins_with_the_protocol_header() -> None:
    assert ClientConnection(Settings()).data_to_send() == b"AMQP\0\0\x09\x01"


def test_handshake_opens_the_connection_in_one_piece_and_byte_by_byte() -> None:
    for pieces in ([HANDSHAKE], [HANDSHAKE[i : i + 1] for i in range(len(HANDSHAKE))]):
        core = ClientConnection(Settings(user="app", password="secret", vhost="orders"))
        found = feed(core, pieces)
        assert found == [protocol_events.ConnectionOpened({"product": "P"}, "b2")]
        assert core.phase is Phase.OPEN
        sent = [method for _, method in sent_methods(core.data_to_send()[8:])]
        assert [type(method) for method in sent] == [
            methods.ConnectionStartOk,
            methods.ConnectionTuneOk,
            methods.ConnectionOpen,
        ]
        assert isinstance(sent[0], methods.ConnectionStartOk)
        assert sent[0].response == b"\0app\0secret"
        assert isinstance(sent[2], methods.ConnectionOpen)
        assert sent[2].virtual_host == "orders"


@pytest.mark.parametrize(
    ("offered", "wished", "agreed"),
    [
        ((2047, 131_072, 60), (0, 131_072, 10), (2047, 131_072, 10)),
        ((0, 0, 0), (16, 8192, 10), (16, 8192, 10)),
        ((100, 4096, 5), (2047, 131_072, 60), (100, 4096, 5)),
        ((100, 4096, 60), (2047, 131_072, 0), (100, 4096, 0)),
    ],
)
def test_tune_takes_the_lower_wish_and_zero_means_no_limit(
    offered: tuple[int, int, int], wished: tuple[int, int, int], agreed: tuple[int, int, int]
) -> None:
    settings = Settings(channel_max=wished[0], frame_bytes_max=wished[1], heartbeat_s=wished[2])
    core = ClientConnection(settings)
    core.receive_data(frames.method_frame(0, START))
    core.data_to_send()
    core.receive_data(frames.method_frame(0, methods.ConnectionTune(*offered)))
    _, answer = sent_methods(core.data_to_send())[0]
    assert isinstance(answer, methods.ConnectionTuneOk)
    assert (answer.channel_max, answer.frame_max, answer.heartbeat) == agreed


def test_amqplain_sends_a_table_without_its_length() -> None:
    core = ClientConnection(Settings(mechanism="AMQPLAIN"))
    core.data_to_send()
    core.receive_data(frames.method_frame(0, START))
    _, answer = sent_methods(core.data_to_send())[0]
    assert isinstance(answer, methods.ConnectionStartOk)
    assert answer.response.startswith(b"\x05LOGINS\0\0\0\x05guest")


def test_a_mechanism_that_is_not_offered_is_refused_by_name() -> None:
    core = ClientConnection(Settings(mechanism="EXTERNAL"))
    error = ending(core.receive_data(frames.method_frame(0, START)))
    assert isinstance(error, ProtocolViolation)
    assert "EXTERNAL" in str(error)


def test_a_peer_of_another_protocol_version_is_told_apart() -> None:
    core = ClientConnection(Settings())
    error = ending(core.receive_data(b"AMQP\0\0\x01\x00"))
    assert isinstance(error, ProtocolViolation)
    assert "0-9-1" in str(error)


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (403, "ACCESS_REFUSED - Login was refused", LoginRefused),
        (530, "NOT_ALLOWED - vhost X not found", NotAllowed),
    ],
)
def test_a_refused_handshake_gives_the_class_of_its_code(
    code: int, text: str, kind: type[Exception]
) -> None:
    core = ClientConnection(Settings())
    close = methods.ConnectionClose(code, text, 10, 11)
    found = core.receive_data(frames.method_frame(0, START) + frames.method_frame(0, close))
    error = ending(found)
    assert isinstance(error, kind)
    assert str(error) == text.partition(" - ")[2]
    assert isinstance(sent_methods(core.data_to_send()[8:])[-1][1], methods.ConnectionCloseOk)


# --- content


@pytest.mark.parametrize("body", [b"", b"x", b"y" * 10_000])
def test_a_delivery_is_assembled_from_its_frames(body: bytes) -> None:
    data = delivery(1, body, frame_max=4096)
    for pieces in ([data], [data[i : i + 1] for i in range(len(data))], [data + data[:30]]):
        core, number = opened_with_channel()
        assert number == 1
        found = feed(core, pieces)
        assert len(found) == 1
        content = found[0]
        assert isinstance(content, protocol_events.ContentReceived)
        assert content.body == body


def test_contents_of_several_channels_may_be_interleaved() -> None:
    core, first = opened_with_channel()
    second = core.open_channel()
    core.receive_data(frames.method_frame(second, methods.ChannelOpenOk()))
    one, two = delivery(first, b"a" * 5000, 4096), delivery(second, b"b" * 5000, 4096)
    cut_one, cut_two = int(frames.frame_end(one, 0)), int(frames.frame_end(two, 0))
    found = core.receive_data(one[:cut_one] + two[:cut_two] + one[cut_one:] + two[cut_two:])
    bodies = [event.body for event in found if isinstance(event, protocol_events.ContentReceived)]
    assert bodies == [b"a" * 5000, b"b" * 5000]


@given(st.data())
def test_how_the_bytes_are_cut_makes_no_difference(data: st.DataObject) -> None:
    stream = (
        delivery(1, b"body" * 3000, 4096)
        + frames.method_frame(1, methods.BasicAck(7, True))
        + frames.frame(spec.FRAME_HEARTBEAT, 0, b"")
        + delivery(1, b"")
        + frames.method_frame(0, methods.ConnectionBlocked("low on memory"))
        + frames.method_frame(1, methods.ChannelClose(404, "NOT_FOUND - gone", 60, 40))
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [
        stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
    ]
    whole, _ = opened_with_channel()
    cut, _ = opened_with_channel()
    ours, expected = feed(cut, pieces), whole.receive_data(stream)
    assert plain(ours[:-1]) == plain(expected[:-1])
    assert repr(ours[-1]) == repr(expected[-1])
    assert cut.data_to_send() == whole.data_to_send()


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(garbage: bytes) -> None:
    core, _ = opened_with_channel()
    core.receive_data(garbage)
    core.receive_data(delivery(1, b"x"))


def violations() -> list[bytes]:
    header = encode_header(3, Properties())
    deliver = frames.method_frame(1, methods.BasicDeliver("c", 1, False, "", ""))
    return [
        frames.frame(spec.FRAME_HEADER, 1, header),
        frames.frame(spec.FRAME_BODY, 1, b"abc"),
        deliver + deliver,
        deliver + frames.frame(spec.FRAME_HEADER, 1, b"short"),
        deliver + frames.content_frames(1, header, b"abcd", 0),
        frames.frame(spec.FRAME_BODY, 0, b"abc"),
        frames.frame(9, 1, b"abc"),
        frames.method_frame(77, methods.BasicAck(1, False)),
        frames.method_frame(0, methods.ConnectionOpenOk()),
        frames.frame(spec.FRAME_METHOD, 1, b"\0\x3c\xff\xff"),
        deliver[:-1] + b"\0",
        b"\x01\0\x01\x7f\xff\xff\xff\0",
    ]


@pytest.mark.parametrize("data", violations())
def test_a_violation_ends_the_connection_with_a_close(data: bytes) -> None:
    core, _ = opened_with_channel()
    error = ending(core.receive_data(data))
    assert isinstance(error, ProtocolViolation)
    assert core.phase is Phase.ENDED
    assert isinstance(sent_methods(core.data_to_send())[-1][1], methods.ConnectionClose)
    assert core.receive_data(delivery(1, b"x")) == []


# --- channels


def test_a_channel_error_ends_the_channel_alone() -> None:
    core, number = opened_with_channel()
    other = core.open_channel()
    core.data_to_send()
    close = methods.ChannelClose(404, "NOT_FOUND - no queue 'q' in vhost '/'", 50, 10)
    found = core.receive_data(frames.method_frame(number, close))
    ended = found[0]
    assert isinstance(ended, protocol_events.ChannelEnded)
    assert isinstance(ended.error, NotFound)
    assert (ended.error.class_id, ended.error.method_id) == (50, 10)
    channel, answer = sent_methods(core.data_to_send())[0]
    assert channel == number
    assert isinstance(answer, methods.ChannelCloseOk)
    core.send(other, methods.BasicQos(0, 1, False))
    with pytest.raises(NotOpen):
        core.send(number, methods.BasicQos(0, 1, False))


def test_403_is_another_class_on_a_channel_than_on_the_connection() -> None:
    core, number = opened_with_channel()
    close = methods.ChannelClose(403, "ACCESS_REFUSED - no", 60, 40)
    ended = core.receive_data(frames.method_frame(number, close))[0]
    assert isinstance(ended, protocol_events.ChannelEnded)
    assert type(ended.error) is AccessRefused


def test_what_comes_between_close_and_close_ok_is_dropped() -> None:
    core, number = opened_with_channel()
    core.close_channel(number)
    assert core.receive_data(delivery(number, b"late")) == []
    with pytest.raises(NotOpen):
        core.publish(number, "", "q", False, Properties(), b"")
    close_ok = frames.method_frame(number, methods.ChannelCloseOk())
    assert core.receive_data(close_ok) == [protocol_events.ChannelEnded(number, None)]


def test_crossing_closes_of_a_channel_end_it_once() -> None:
    core, number = opened_with_channel()
    core.close_channel(number)
    core.data_to_send()
    close = methods.ChannelClose(404, "NOT_FOUND - x", 0, 0)
    assert core.receive_data(frames.method_frame(number, close)) == []
    assert isinstance(sent_methods(core.data_to_send())[0][1], methods.ChannelCloseOk)
    close_ok = frames.method_frame(number, methods.ChannelCloseOk())
    assert core.receive_data(close_ok) == [protocol_events.ChannelEnded(number, None)]


def test_channel_numbers_are_reused_late_and_never_beyond_the_maximum() -> None:
    core = opened(Settings(channel_max=3))
    assert [core.open_channel() for _ in range(3)] == [1, 2, 3]
    with pytest.raises(NotOpen, match="all 3 channels"):
        core.open_channel()
    close = methods.ChannelClose(404, "NOT_FOUND - x", 0, 0)
    core.receive_data(frames.method_frame(2, close))
    assert core.open_channel() == 2


# --- sending


def test_bodies_are_split_at_frame_max() -> None:
    core = opened(Settings(frame_bytes_max=4096))
    number = core.open_channel()
    core.data_to_send()
    core.publish(number, "x", "key", True, Properties(), b"z" * 10_000)
    data = core.data_to_send()
    sizes = []
    offset = 0
    while offset < len(data):
        end = int(frames.frame_end(data, offset))
        sizes.append(end - offset)
        offset = end
    assert len(sizes) == 5
    assert max(sizes) == 4096


def test_a_property_that_does_not_fit_sends_nothing_at_all() -> None:
    core, number = opened_with_channel()
    with pytest.raises(ValueError):
        core.publish(number, "", "q", False, Properties(message_id="x" * 300), b"body")
    with pytest.raises(ValueError):
        core.publish(number, "", "k" * 300, False, Properties(), b"body")
    assert core.data_to_send() == b""


# --- time


def test_heartbeats_are_sent_when_nothing_else_was() -> None:
    core = ClientConnection(Settings(heartbeat_s=10))
    core.receive_data(HANDSHAKE)
    core.data_to_send()
    assert core.tick(4_000) == []
    assert core.data_to_send() == b""
    core.tick(5_000)
    assert core.data_to_send() == b"\x08\0\0\0\0\0\0\xce"
    core.tick(9_000)
    assert core.data_to_send() == b""


def test_a_silent_peer_is_given_up_after_two_intervals() -> None:
    core = opened(Settings(heartbeat_s=10))
    core.tick(15_000)
    core.receive_data(b"\x08\0\0\0\0\0\0\xce")
    assert core.tick(35_000) == []
    error = ending(core.tick(35_001))
    assert isinstance(error, ConnectionLost)
    assert "silent" in str(error)


def test_without_heartbeats_silence_means_nothing() -> None:
    core = opened(Settings(heartbeat_s=0))
    assert core.tick(10_000_000) == []
    assert core.data_to_send() == b""


# --- the end


def test_close_waits_for_close_ok() -> None:
    core = opened()
    core.close()
    assert isinstance(sent_methods(core.data_to_send())[0][1], methods.ConnectionClose)
    assert core.receive_data(delivery(1, b"late")) == []
    close_ok = frames.method_frame(0, methods.ConnectionCloseOk())
    assert core.receive_data(close_ok) == [protocol_events.ConnectionEnded(None)]


def test_deliveries_under_way_are_reported_while_it_closes_if_they_are_wanted() -> None:
    core, number = opened_with_channel()
    got = frames.method_frame(number, methods.BasicGetOk(1, False, "", "q", 0))
    content = frames.content_frames(number, encode_header(3, Properties()), b"get", 131_072)
    begun = len(content) - 9
    core.receive_data(got + content[:begun])
    core.close(deliveries=True)
    confirm = frames.method_frame(number, methods.BasicAck(1, False))
    identity = frames.method_frame(number, methods.SessionMessage(1, 2, 3))
    close_ok = frames.method_frame(0, methods.ConnectionCloseOk())
    found = core.receive_data(
        content[begun:]
        + confirm
        + identity
        + delivery(number, b"under way", tag=2)
        + got
        + content
        + close_ok
    )
    told, delivered, ended = found
    assert isinstance(told, protocol_events.MethodReceived)
    assert isinstance(told.method, methods.SessionMessage)
    assert isinstance(delivered, protocol_events.ContentReceived)
    assert delivered.body == b"under way"
    assert ended == protocol_events.ConnectionEnded(None)


def test_deliveries_under_way_are_dropped_while_it_closes() -> None:
    core, number = opened_with_channel()
    core.close()
    assert core.receive_data(delivery(number, b"too late")) == []


def test_a_lost_socket_is_an_error_unless_we_were_closing() -> None:
    core = opened()
    assert isinstance(ending(core.connection_lost("reset")), ConnectionLost)
    assert core.connection_lost("again") == []
    closing = opened()
    closing.close()
    assert closing.connection_lost("eof") == [protocol_events.ConnectionEnded(None)]


def test_blocked_and_unblocked_are_reported() -> None:
    core = opened()
    found = core.receive_data(
        frames.method_frame(0, methods.ConnectionBlocked("low on disk"))
        + frames.method_frame(0, methods.ConnectionUnblocked())
    )
    assert found == [
        protocol_events.ConnectionBlocked("low on disk"),
        protocol_events.ConnectionUnblocked(),
    ]
