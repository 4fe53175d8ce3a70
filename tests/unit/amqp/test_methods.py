"""Methods: golden bytes, round trips of every one, and payloads that are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.amqp import methods, spec
from rhizome.amqp.methods import Method, decode_method, has_content
from rhizome.errors import AmqpError, CommandInvalid, SyntaxErrorFault

CLASSES = [
    value
    for value in vars(methods).values()
    if isinstance(value, type) and issubclass(value, Method) and value is not Method
]
TABLE = {"k": True}
TABLE_BYTES = b"\x00\x00\x00\x04\x01kt\x01"

GOLDEN: list[tuple[Method, bytes]] = [
    (
        methods.ConnectionStart(0, 9, TABLE, b"PLAIN AMQPLAIN", b"en_US"),
        b"\x00\x0a\x00\x0a\x00\x09" + TABLE_BYTES + b"\x00\x00\x00\x0ePLAIN AMQPLAIN"
        b"\x00\x00\x00\x05en_US",
    ),
    (
        methods.ConnectionTuneOk(2047, 131072, 60),
        b"\x00\x0a\x00\x1f\x07\xff\x00\x02\x00\x00\x00\x3c",
    ),
    (methods.ConnectionOpen("/"), b"\x00\x0a\x00\x28\x01/\x00\x00"),
    (methods.ConnectionRedirect("a:1", "b:2"), b"\x00\x0a\x00\x2a\x03a:1\x03b:2"),
    (
        methods.ConnectionClose(530, "NOT_ALLOWED - x", 10, 40),
        b"\x00\x0a\x00\x32\x02\x12\x0fNOT_ALLOWED - x\x00\x0a\x00\x28",
    ),
    (methods.ConnectionUpdateSecret(b"s", "r"), b"\x00\x0a\x00\x46\x00\x00\x00\x01s\x01r"),
    (methods.ChannelOpen(), b"\x00\x14\x00\x0a\x00"),
    (methods.ChannelOpenOk(), b"\x00\x14\x00\x0b\x00\x00\x00\x00"),
    (
        methods.ExchangeDeclare("e", "topic", False, True, False, True, False, TABLE),
        b"\x00\x28\x00\x0a\x00\x00\x01e\x05topic\x0a" + TABLE_BYTES,
    ),
    (methods.ExchangeUnbindOk(), b"\x00\x28\x00\x33"),
    (
        methods.QueueDeclare("q", passive=True, exclusive=True, no_wait=True, arguments=TABLE),
        b"\x00\x32\x00\x0a\x00\x00\x01q\x15" + TABLE_BYTES,
    ),
    (methods.QueueDeclareOk("q", 1, 2), b"\x00\x32\x00\x0b\x01q\x00\x00\x00\x01\x00\x00\x00\x02"),
    (methods.BasicQos(0, 10, True), b"\x00\x3c\x00\x0a\x00\x00\x00\x00\x00\x0a\x01"),
    (
        methods.BasicPublish("", "k", mandatory=True),
        b"\x00\x3c\x00\x28\x00\x00\x00\x01k\x01",
    ),
    (
        methods.BasicDeliver("t", 7, True, "e", "k"),
        b"\x00\x3c\x00\x3c\x01t\x00\x00\x00\x00\x00\x00\x00\x07\x01\x01e\x01k",
    ),
    (
        methods.BasicNack(2**63 - 1, multiple=True, requeue=False),
        b"\x00\x3c\x00\x78\x7f\xff\xff\xff\xff\xff\xff\xff\x01",
    ),
    (methods.BasicReject(-1), b"\x00\x3c\x00\x5a\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
    (methods.ConfirmSelect(), b"\x00\x55\x00\x0a\x00"),
    (methods.TxRollbackOk(), b"\x00\x5a\x00\x1f"),
]


def fields_of(method: Method) -> dict[str, object]:
    names = [name for name in dir(method) if not name.startswith("_")]
    values = {name: getattr(method, name) for name in names}
    return {name: value for name, value in values.items() if not callable(value)}


@pytest.mark.parametrize(("method", "payload"), GOLDEN, ids=lambda x: type(x).__name__)
def test_method_is_encoded(method: Method, payload: bytes) -> None:
    assert method.encode() == payload


@pytest.mark.parametrize(("method", "payload"), GOLDEN, ids=lambda x: type(x).__name__)
def test_method_is_decoded(method: Method, payload: bytes) -> None:
    decoded = decode_method(payload)
    assert type(decoded) is type(method)
    assert fields_of(decoded) == fields_of(method)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_method_survives_a_round_trip(cls: type[Method]) -> None:
    method = cls()
    decoded = decode_method(method.encode())
    assert type(decoded) is cls
    assert fields_of(decoded) == fields_of(method)
    assert decoded.encode() == method.encode()


def test_all_methods_of_the_specification_exist() -> None:
    assert {cls().code() for cls in CLASSES} == set(spec.METHOD_NAMES)
    assert methods.QueueDeclare().name() == "queue.declare"


@pytest.mark.parametrize(("method", "payload"), GOLDEN, ids=lambda x: type(x).__name__)
def test_method_cut_at_any_byte_is_a_syntax_error(method: Method, payload: bytes) -> None:
    for end in range(len(payload)):
        with pytest.raises(SyntaxErrorFault) as caught:
            decode_method(payload[:end])
        if end >= 4:
            ids = (caught.value.class_id << 16) | caught.value.method_id
            assert ids == method.code()


@pytest.mark.parametrize(("method", "payload"), GOLDEN, ids=lambda x: type(x).__name__)
def test_bytes_after_the_last_field_are_ignored(method: Method, payload: bytes) -> None:
    assert fields_of(decode_method(payload + b"junk")) == fields_of(method)


@pytest.mark.parametrize("payload", [b"\x00\x3c\x00\x63", b"\x00\x1e\x00\x0a", b"\xff\xff\xff\xff"])
def test_unknown_method_is_command_invalid(payload: bytes) -> None:
    with pytest.raises(CommandInvalid) as caught:
        decode_method(payload)
    assert caught.value.class_id == payload[0] << 8 | payload[1]
    assert caught.value.method_id == payload[2] << 8 | payload[3]


def test_names_of_any_bytes_survive() -> None:
    payload = b"\x00\x32\x00\x28\x00\x00\x03\xff\x00\xc3\x00"
    decoded = decode_method(payload)
    assert isinstance(decoded, methods.QueueDelete)
    assert decoded.encode() == payload


def test_name_longer_than_255_bytes_is_refused() -> None:
    assert len(methods.QueueDelete("q" * 255).encode()) == 263
    with pytest.raises(ValueError, match="255 bytes"):
        methods.QueueDelete("\u00e4" * 128).encode()


@pytest.mark.parametrize(
    "method",
    [
        methods.ConnectionTune(65536, 0, 0),
        methods.ConnectionTune(0, 2**32, 0),
        methods.BasicQos(-1),
    ],
)
def test_number_that_does_not_fit_is_refused(method: Method) -> None:
    with pytest.raises(ValueError, match="doesn't fit"):
        method.encode()


def test_tables_of_two_methods_are_not_shared() -> None:
    first = methods.QueueDeclare()
    first.arguments["x"] = 1
    assert methods.QueueDeclare().arguments == {}


def test_four_methods_have_content() -> None:
    having = {name for code, name in spec.METHOD_NAMES.items() if has_content(code)}
    assert having == {"basic.publish", "basic.return", "basic.deliver", "basic.get-ok"}


@given(st.sampled_from(sorted(spec.METHOD_NAMES)), st.binary(max_size=60))
def test_random_fields_raise_nothing_but_amqp_errors(code: int, fields: bytes) -> None:
    try:
        method = decode_method(code.to_bytes(4, "big") + fields)
    except AmqpError:
        return
    assert method.code() == code


@given(st.binary(max_size=40))
def test_random_payloads_raise_nothing_but_amqp_errors(payload: bytes) -> None:
    try:
        decode_method(payload)
    except AmqpError:
        pass
