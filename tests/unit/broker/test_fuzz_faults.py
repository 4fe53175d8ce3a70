"""One fault amid any sensible traffic, cut anywhere: the reply code is the right one."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rhizome.amqp import methods as m
from rhizome.amqp.frames import frame, method_frame
from rhizome.amqp.properties import Properties, encode_header
from rhizome.amqp.spec import FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD
from tests.fuzz.attacked_core import Arena
from tests.fuzz.choices import Choices
from tests.fuzz.frame_generator import nested_table
from tests.fuzz.session import cut

EXAMPLES = settings.default.max_examples if settings.default is not None else 100
PUBLISH = method_frame(1, m.BasicPublish("", "q0"))
DECLARE = m.QueueDeclare("q0").encode()
MIB_1024 = (1 << 30).to_bytes(4, "big")


def header(announced: int, class_id: int = 60) -> bytes:
    payload = encode_header(announced, Properties())
    return frame(FRAME_HEADER, 1, class_id.to_bytes(2, "big") + payload[2:])


CONNECTION_FAULTS: dict[str, tuple[int, bytes]] = {
    "a frame without its end": (501, method_frame(1, m.BasicQos())[:-1] + b"\xcd"),
    "a frame of 1 GiB": (501, b"\x03\x00\x01" + MIB_1024),
    "a frame of 4 GiB": (501, b"\x01\x00\x01\xff\xff\xff\xff"),
    "a type of frame that there isn't": (501, frame(9, 1, b"")),
    "a heartbeat with a payload": (501, frame(FRAME_HEARTBEAT, 0, b"x")),
    "a heartbeat on a channel": (505, frame(FRAME_HEARTBEAT, 1, b"")),
    "a method of three octets": (501, frame(FRAME_METHOD, 1, b"\x00\x3c\x00")),
    "a method whose fields are cut short": (502, frame(FRAME_METHOD, 1, DECLARE[:-2])),
    "a short string that ends beyond its frame": (
        502,
        frame(FRAME_METHOD, 1, b"\x00\x32\x00\x1e\x00\x00\xffq\x00"),
    ),
    "a table of 2 GiB": (502, frame(FRAME_METHOD, 1, DECLARE[:-4] + b"\x7f\xff\xff\xff")),
    "a table of 1000 levels": (502, frame(FRAME_METHOD, 1, DECLARE[:-4] + nested_table(1000))),
    "a class that there isn't": (503, frame(FRAME_METHOD, 1, b"\x00\x63\x00\x0a")),
    "a method that only a broker sends": (503, method_frame(1, m.BasicGetEmpty())),
    "a channel that isn't open": (504, method_frame(77, m.BasicQos())),
    "a publish on a channel that isn't open": (504, method_frame(77, m.BasicPublish("", "q0"))),
    "an ack on a channel that isn't open": (504, method_frame(77, m.BasicAck(1))),
    "a channel opened twice": (504, method_frame(1, m.ChannelOpen())),
    "tune-ok once more": (504, method_frame(0, m.ConnectionTuneOk(0, 0, 0))),
    "a header without a publish": (505, header(0)),
    "a body without a publish": (505, frame(FRAME_BODY, 1, b"x")),
    "a body before the header": (505, PUBLISH + frame(FRAME_BODY, 1, b"x")),
    "a method before the header": (505, PUBLISH + method_frame(1, m.BasicQos())),
    "a publish before the header": (505, PUBLISH + PUBLISH),
    "a method before the body": (505, PUBLISH + header(3) + method_frame(1, m.BasicQos())),
    "a header before the body": (505, PUBLISH + header(3) + header(3)),
    "a header of another class": (505, PUBLISH + header(0, class_id=10)),
    "a body that is too long": (505, PUBLISH + header(2) + frame(FRAME_BODY, 1, b"xyz")),
    "a prefetch in octets": (540, method_frame(1, m.BasicQos(1))),
    "a publish that must go at once": (
        540,
        method_frame(1, m.BasicPublish("", "q0", False, True)) + header(0),
    ),
}
CHANNEL_FAULTS: dict[str, tuple[int, bytes]] = {
    "an exchange that there isn't": (
        404,
        method_frame(1, m.BasicPublish("nope", "k")) + header(0),
    ),
    "a queue that there isn't": (404, method_frame(1, m.BasicGet("nope"))),
    "a queue of somebody else": (405, method_frame(1, m.BasicGet("good"))),
    "a tag that there isn't": (406, method_frame(1, m.BasicAck(1 << 40))),
    "a tag of 64 bits": (406, method_frame(1, m.BasicNack(-1))),
    "a body of 8 EiB": (406, PUBLISH + header(-(1 << 63))),
    "a body of 2 GiB": (406, PUBLISH + header(1 << 31)),
    "other arguments than before": (
        406,
        method_frame(1, m.QueueDeclare("q0", arguments={"x-max-length": 5})),
    ),
    "a name that is reserved": (403, method_frame(1, m.QueueDeclare("amq.mine"))),
    "a commit without a transaction": (406, method_frame(1, m.TxCommit())),
}


def sensible(choices: Choices) -> bytes:
    """Traffic on channel 2 that nothing is wrong with."""
    data = b""
    for _ in range(choices.below(6)):
        kind = choices.below(4)
        if kind == 0:
            data += method_frame(2, m.BasicGet("q0", True))
        elif kind == 1:
            data += frame(FRAME_HEARTBEAT, 0, b"")
        else:
            body = b"x" * choices.pick((1, 100, 5000))
            data += method_frame(2, m.BasicPublish("", "q0"))
            data += frame(FRAME_HEADER, 2, encode_header(len(body), Properties()))
            data += frame(FRAME_BODY, 2, body)
    return data


def attack(fault: bytes, data: bytes) -> tuple[int, int]:
    """Send a fault amid sensible traffic: the codes of connection.close and channel.close."""
    choices = Choices(data)
    arena = Arena()
    client = arena.intrude()
    client.shake_hands()
    for number in (1, 2):
        client.send(m.ChannelOpen(), channel=number)
    client.send(m.QueueDeclare("q0"))
    before, after = sensible(choices), sensible(choices)
    client.feed(cut(before + fault + after, choices))
    arena.check()
    assert len(client.closes) <= 1
    arena.finish()
    on_channel = client.closes[0][1].reply_code if client.closes else 0
    return (client.close.reply_code if client.close is not None else 0, on_channel)


few = settings(
    max_examples=max(EXAMPLES // 12, 1), suppress_health_check=(HealthCheck.data_too_large,)
)


@pytest.mark.parametrize("what", CONNECTION_FAULTS)
@few
@given(data=st.binary(min_size=40, max_size=40))
def test_the_connection_is_closed_with_the_right_code_for(what: str, data: bytes) -> None:
    code, fault = CONNECTION_FAULTS[what]
    assert attack(fault, data) == (code, 0)


@pytest.mark.parametrize("what", CHANNEL_FAULTS)
@few
@given(data=st.binary(min_size=40, max_size=40))
def test_only_the_channel_is_closed_with_the_right_code_for(what: str, data: bytes) -> None:
    code, fault = CHANNEL_FAULTS[what]
    assert attack(fault, data) == (0, code)
