"""The methods of AMQP 0-9-1 with RabbitMQ's extensions.

Written by tools/generate_amqp.py. Change the facts there, then run `python tools/generate_amqp.py`.

Short strings are str (UTF-8 with surrogateescape, so any bytes survive), long strings bytes,
tables dict. 64-bit numbers are i64: delivery tags of 2**63 and above come out negative. Reserved
fields travel as zero.
"""

from typing import final

from librt.strings import BytesWriter
from mypy_extensions import i64

from rhizome.amqp import spec
from rhizome.amqp.field_reader import FieldReader
from rhizome.amqp.field_table import put_table
from rhizome.amqp.primitives import (
    put_longstr,
    put_shortstr,
    put_u8,
    put_u16,
    put_u32,
    put_u64,
    u16_at,
    u32_at,
)
from rhizome.errors import CommandInvalid, SyntaxErrorFault


class Method:
    """One method: what a method frame carries."""

    def code(self) -> i64:
        """Return class id << 16 | method id."""
        raise NotImplementedError

    def encode(self) -> bytes:
        """Return the payload of the method frame: class id, method id, fields.

        Raises ValueError if a field doesn't fit its type.
        """
        raise NotImplementedError

    def name(self) -> str:
        """Return the name as the specification writes it, "queue.declare"."""
        return spec.METHOD_NAMES[int(self.code())]


@final
class ConnectionStart(Method):
    """connection.start."""

    version_major: i64
    version_minor: i64
    server_properties: dict[str, object]
    mechanisms: bytes
    locales: bytes

    def __init__(
        self,
        version_major: i64 = 0,
        version_minor: i64 = 9,
        server_properties: dict[str, object] | None = None,
        mechanisms: bytes = b"PLAIN",
        locales: bytes = b"en_US",
    ) -> None:
        self.version_major = version_major
        self.version_minor = version_minor
        self.server_properties = {} if server_properties is None else server_properties
        self.mechanisms = mechanisms
        self.locales = locales

    def code(self) -> i64:
        return spec.CODE_CONNECTION_START

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CONNECTION_START)
        put_u8(w, self.version_major)
        put_u8(w, self.version_minor)
        put_table(w, self.server_properties)
        put_longstr(w, self.mechanisms)
        put_longstr(w, self.locales)
        return w.getvalue()


@final
class ConnectionStartOk(Method):
    """connection.start-ok."""

    client_properties: dict[str, object]
    mechanism: str
    response: bytes
    locale: str

    def __init__(
        self,
        client_properties: dict[str, object] | None = None,
        mechanism: str = "PLAIN",
        response: bytes = b"",
        locale: str = "en_US",
    ) -> None:
        self.client_properties = {} if client_properties is None else client_properties
        self.mechanism = mechanism
        self.response = response
        self.locale = locale

    def code(self) -> i64:
        return spec.CODE_CONNECTION_START_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CONNECTION_START_OK)
        put_table(w, self.client_properties)
        put_shortstr(w, self.mechanism)
        put_longstr(w, self.response)
        put_shortstr(w, self.locale)
        return w.getvalue()


@final
class ConnectionSecure(Method):
    """connection.secure."""

    challenge: bytes

    def __init__(self, challenge: bytes = b"") -> None:
        self.challenge = challenge

    def code(self) -> i64:
        return spec.CODE_CONNECTION_SECURE

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CONNECTION_SECURE)
        put_longstr(w, self.challenge)
        return w.getvalue()


@final
class ConnectionSecureOk(Method):
    """connection.secure-ok."""

    response: bytes

    def __init__(self, response: bytes = b"") -> None:
        self.response = response

    def code(self) -> i64:
        return spec.CODE_CONNECTION_SECURE_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CONNECTION_SECURE_OK)
        put_longstr(w, self.response)
        return w.getvalue()


@final
class ConnectionTune(Method):
    """connection.tune."""

    channel_max: i64
    frame_max: i64
    heartbeat: i64

    def __init__(self, channel_max: i64 = 0, frame_max: i64 = 0, heartbeat: i64 = 0) -> None:
        self.channel_max = channel_max
        self.frame_max = frame_max
        self.heartbeat = heartbeat

    def code(self) -> i64:
        return spec.CODE_CONNECTION_TUNE

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CONNECTION_TUNE)
        put_u16(w, self.channel_max)
        put_u32(w, self.frame_max)
        put_u16(w, self.heartbeat)
        return w.getvalue()


@final
class ConnectionTuneOk(Method):
    """connection.tune-ok."""

    channel_max: i64
    frame_max: i64
    heartbeat: i64

    def __init__(self, channel_max: i64 = 0, frame_max: i64 = 0, heartbeat: i64 = 0) -> None:
        self.channel_max = channel_max
        self.frame_max = frame_max
        self.heartbeat = heartbeat

    def code(self) -> i64:
        return spec.CODE_CONNECTION_TUNE_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CONNECTION_TUNE_OK)
        put_u16(w, self.channel_max)
        put_u32(w, self.frame_max)
        put_u16(w, self.heartbeat)
        return w.getvalue()


@final
class ConnectionOpen(Method):
    """connection.open."""

    virtual_host: str

    def __init__(self, virtual_host: str = "/") -> None:
        self.virtual_host = virtual_host

    def code(self) -> i64:
        return spec.CODE_CONNECTION_OPEN

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CONNECTION_OPEN)
        put_shortstr(w, self.virtual_host)
        put_shortstr(w, "")
        w.append(0)
        return w.getvalue()


@final
class ConnectionOpenOk(Method):
    """connection.open-ok."""

    known_hosts: str

    def __init__(self, known_hosts: str = "") -> None:
        self.known_hosts = known_hosts

    def code(self) -> i64:
        return spec.CODE_CONNECTION_OPEN_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CONNECTION_OPEN_OK)
        put_shortstr(w, self.known_hosts)
        return w.getvalue()


@final
class ConnectionRedirect(Method):
    """connection.redirect."""

    host: str
    known_hosts: str

    def __init__(self, host: str = "", known_hosts: str = "") -> None:
        self.host = host
        self.known_hosts = known_hosts

    def code(self) -> i64:
        return spec.CODE_CONNECTION_REDIRECT

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CONNECTION_REDIRECT)
        put_shortstr(w, self.host)
        put_shortstr(w, self.known_hosts)
        return w.getvalue()


@final
class ConnectionClose(Method):
    """connection.close."""

    reply_code: i64
    reply_text: str
    class_id: i64
    method_id: i64

    def __init__(
        self,
        reply_code: i64 = 0,
        reply_text: str = "",
        class_id: i64 = 0,
        method_id: i64 = 0,
    ) -> None:
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.class_id = class_id
        self.method_id = method_id

    def code(self) -> i64:
        return spec.CODE_CONNECTION_CLOSE

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CONNECTION_CLOSE)
        put_u16(w, self.reply_code)
        put_shortstr(w, self.reply_text)
        put_u16(w, self.class_id)
        put_u16(w, self.method_id)
        return w.getvalue()


@final
class ConnectionCloseOk(Method):
    """connection.close-ok."""

    def code(self) -> i64:
        return spec.CODE_CONNECTION_CLOSE_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CONNECTION_CLOSE_OK)
        return w.getvalue()


@final
class ConnectionBlocked(Method):
    """connection.blocked."""

    reason: str

    def __init__(self, reason: str = "") -> None:
        self.reason = reason

    def code(self) -> i64:
        return spec.CODE_CONNECTION_BLOCKED

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CONNECTION_BLOCKED)
        put_shortstr(w, self.reason)
        return w.getvalue()


@final
class ConnectionUnblocked(Method):
    """connection.unblocked."""

    def code(self) -> i64:
        return spec.CODE_CONNECTION_UNBLOCKED

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CONNECTION_UNBLOCKED)
        return w.getvalue()


@final
class ConnectionUpdateSecret(Method):
    """connection.update-secret."""

    new_secret: bytes
    reason: str

    def __init__(self, new_secret: bytes = b"", reason: str = "") -> None:
        self.new_secret = new_secret
        self.reason = reason

    def code(self) -> i64:
        return spec.CODE_CONNECTION_UPDATE_SECRET

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CONNECTION_UPDATE_SECRET)
        put_longstr(w, self.new_secret)
        put_shortstr(w, self.reason)
        return w.getvalue()


@final
class ConnectionUpdateSecretOk(Method):
    """connection.update-secret-ok."""

    def code(self) -> i64:
        return spec.CODE_CONNECTION_UPDATE_SECRET_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CONNECTION_UPDATE_SECRET_OK)
        return w.getvalue()


@final
class ChannelOpen(Method):
    """channel.open."""

    def code(self) -> i64:
        return spec.CODE_CHANNEL_OPEN

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CHANNEL_OPEN)
        put_shortstr(w, "")
        return w.getvalue()


@final
class ChannelOpenOk(Method):
    """channel.open-ok."""

    def code(self) -> i64:
        return spec.CODE_CHANNEL_OPEN_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CHANNEL_OPEN_OK)
        put_longstr(w, b"")
        return w.getvalue()


@final
class ChannelFlow(Method):
    """channel.flow."""

    active: bool

    def __init__(self, active: bool = False) -> None:
        self.active = active

    def code(self) -> i64:
        return spec.CODE_CHANNEL_FLOW

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CHANNEL_FLOW)
        w.append(1 if self.active else 0)
        return w.getvalue()


@final
class ChannelFlowOk(Method):
    """channel.flow-ok."""

    active: bool

    def __init__(self, active: bool = False) -> None:
        self.active = active

    def code(self) -> i64:
        return spec.CODE_CHANNEL_FLOW_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CHANNEL_FLOW_OK)
        w.append(1 if self.active else 0)
        return w.getvalue()


@final
class ChannelClose(Method):
    """channel.close."""

    reply_code: i64
    reply_text: str
    class_id: i64
    method_id: i64

    def __init__(
        self,
        reply_code: i64 = 0,
        reply_text: str = "",
        class_id: i64 = 0,
        method_id: i64 = 0,
    ) -> None:
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.class_id = class_id
        self.method_id = method_id

    def code(self) -> i64:
        return spec.CODE_CHANNEL_CLOSE

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CHANNEL_CLOSE)
        put_u16(w, self.reply_code)
        put_shortstr(w, self.reply_text)
        put_u16(w, self.class_id)
        put_u16(w, self.method_id)
        return w.getvalue()


@final
class ChannelCloseOk(Method):
    """channel.close-ok."""

    def code(self) -> i64:
        return spec.CODE_CHANNEL_CLOSE_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CHANNEL_CLOSE_OK)
        return w.getvalue()


@final
class ExchangeDeclare(Method):
    """exchange.declare."""

    exchange: str
    type: str
    passive: bool
    durable: bool
    auto_delete: bool
    internal: bool
    no_wait: bool
    arguments: dict[str, object]

    def __init__(
        self,
        exchange: str = "",
        type: str = "direct",  # noqa: A002
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        no_wait: bool = False,
        arguments: dict[str, object] | None = None,
    ) -> None:
        self.exchange = exchange
        self.type = type
        self.passive = passive
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.no_wait = no_wait
        self.arguments = {} if arguments is None else arguments

    def code(self) -> i64:
        return spec.CODE_EXCHANGE_DECLARE

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_EXCHANGE_DECLARE)
        put_u16(w, 0)
        put_shortstr(w, self.exchange)
        put_shortstr(w, self.type)
        w.append(
            (1 if self.passive else 0)
            | (2 if self.durable else 0)
            | (4 if self.auto_delete else 0)
            | (8 if self.internal else 0)
            | (16 if self.no_wait else 0)
        )
        put_table(w, self.arguments)
        return w.getvalue()


@final
class ExchangeDeclareOk(Method):
    """exchange.declare-ok."""

    def code(self) -> i64:
        return spec.CODE_EXCHANGE_DECLARE_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_EXCHANGE_DECLARE_OK)
        return w.getvalue()


@final
class ExchangeDelete(Method):
    """exchange.delete."""

    exchange: str
    if_unused: bool
    no_wait: bool

    def __init__(self, exchange: str = "", if_unused: bool = False, no_wait: bool = False) -> None:
        self.exchange = exchange
        self.if_unused = if_unused
        self.no_wait = no_wait

    def code(self) -> i64:
        return spec.CODE_EXCHANGE_DELETE

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_EXCHANGE_DELETE)
        put_u16(w, 0)
        put_shortstr(w, self.exchange)
        w.append((1 if self.if_unused else 0) | (2 if self.no_wait else 0))
        return w.getvalue()


@final
class ExchangeDeleteOk(Method):
    """exchange.delete-ok."""

    def code(self) -> i64:
        return spec.CODE_EXCHANGE_DELETE_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_EXCHANGE_DELETE_OK)
        return w.getvalue()


@final
class ExchangeBind(Method):
    """exchange.bind."""

    destination: str
    source: str
    routing_key: str
    no_wait: bool
    arguments: dict[str, object]

    def __init__(
        self,
        destination: str = "",
        source: str = "",
        routing_key: str = "",
        no_wait: bool = False,
        arguments: dict[str, object] | None = None,
    ) -> None:
        self.destination = destination
        self.source = source
        self.routing_key = routing_key
        self.no_wait = no_wait
        self.arguments = {} if arguments is None else arguments

    def code(self) -> i64:
        return spec.CODE_EXCHANGE_BIND

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_EXCHANGE_BIND)
        put_u16(w, 0)
        put_shortstr(w, self.destination)
        put_shortstr(w, self.source)
        put_shortstr(w, self.routing_key)
        w.append(1 if self.no_wait else 0)
        put_table(w, self.arguments)
        return w.getvalue()


@final
class ExchangeBindOk(Method):
    """exchange.bind-ok."""

    def code(self) -> i64:
        return spec.CODE_EXCHANGE_BIND_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_EXCHANGE_BIND_OK)
        return w.getvalue()


@final
class ExchangeUnbind(Method):
    """exchange.unbind."""

    destination: str
    source: str
    routing_key: str
    no_wait: bool
    arguments: dict[str, object]

    def __init__(
        self,
        destination: str = "",
        source: str = "",
        routing_key: str = "",
        no_wait: bool = False,
        arguments: dict[str, object] | None = None,
    ) -> None:
        self.destination = destination
        self.source = source
        self.routing_key = routing_key
        self.no_wait = no_wait
        self.arguments = {} if arguments is None else arguments

    def code(self) -> i64:
        return spec.CODE_EXCHANGE_UNBIND

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_EXCHANGE_UNBIND)
        put_u16(w, 0)
        put_shortstr(w, self.destination)
        put_shortstr(w, self.source)
        put_shortstr(w, self.routing_key)
        w.append(1 if self.no_wait else 0)
        put_table(w, self.arguments)
        return w.getvalue()


@final
class ExchangeUnbindOk(Method):
    """exchange.unbind-ok."""

    def code(self) -> i64:
        return spec.CODE_EXCHANGE_UNBIND_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_EXCHANGE_UNBIND_OK)
        return w.getvalue()


@final
class QueueDeclare(Method):
    """queue.declare."""

    queue: str
    passive: bool
    durable: bool
    exclusive: bool
    auto_delete: bool
    no_wait: bool
    arguments: dict[str, object]

    def __init__(
        self,
        queue: str = "",
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        no_wait: bool = False,
        arguments: dict[str, object] | None = None,
    ) -> None:
        self.queue = queue
        self.passive = passive
        self.durable = durable
        self.exclusive = exclusive
        self.auto_delete = auto_delete
        self.no_wait = no_wait
        self.arguments = {} if arguments is None else arguments

    def code(self) -> i64:
        return spec.CODE_QUEUE_DECLARE

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_QUEUE_DECLARE)
        put_u16(w, 0)
        put_shortstr(w, self.queue)
        w.append(
            (1 if self.passive else 0)
            | (2 if self.durable else 0)
            | (4 if self.exclusive else 0)
            | (8 if self.auto_delete else 0)
            | (16 if self.no_wait else 0)
        )
        put_table(w, self.arguments)
        return w.getvalue()


@final
class QueueDeclareOk(Method):
    """queue.declare-ok."""

    queue: str
    message_count: i64
    consumer_count: i64

    def __init__(self, queue: str = "", message_count: i64 = 0, consumer_count: i64 = 0) -> None:
        self.queue = queue
        self.message_count = message_count
        self.consumer_count = consumer_count

    def code(self) -> i64:
        return spec.CODE_QUEUE_DECLARE_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_QUEUE_DECLARE_OK)
        put_shortstr(w, self.queue)
        put_u32(w, self.message_count)
        put_u32(w, self.consumer_count)
        return w.getvalue()


@final
class QueueBind(Method):
    """queue.bind."""

    queue: str
    exchange: str
    routing_key: str
    no_wait: bool
    arguments: dict[str, object]

    def __init__(
        self,
        queue: str = "",
        exchange: str = "",
        routing_key: str = "",
        no_wait: bool = False,
        arguments: dict[str, object] | None = None,
    ) -> None:
        self.queue = queue
        self.exchange = exchange
        self.routing_key = routing_key
        self.no_wait = no_wait
        self.arguments = {} if arguments is None else arguments

    def code(self) -> i64:
        return spec.CODE_QUEUE_BIND

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_QUEUE_BIND)
        put_u16(w, 0)
        put_shortstr(w, self.queue)
        put_shortstr(w, self.exchange)
        put_shortstr(w, self.routing_key)
        w.append(1 if self.no_wait else 0)
        put_table(w, self.arguments)
        return w.getvalue()


@final
class QueueBindOk(Method):
    """queue.bind-ok."""

    def code(self) -> i64:
        return spec.CODE_QUEUE_BIND_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_QUEUE_BIND_OK)
        return w.getvalue()


@final
class QueuePurge(Method):
    """queue.purge."""

    queue: str
    no_wait: bool

    def __init__(self, queue: str = "", no_wait: bool = False) -> None:
        self.queue = queue
        self.no_wait = no_wait

    def code(self) -> i64:
        return spec.CODE_QUEUE_PURGE

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_QUEUE_PURGE)
        put_u16(w, 0)
        put_shortstr(w, self.queue)
        w.append(1 if self.no_wait else 0)
        return w.getvalue()


@final
class QueuePurgeOk(Method):
    """queue.purge-ok."""

    message_count: i64

    def __init__(self, message_count: i64 = 0) -> None:
        self.message_count = message_count

    def code(self) -> i64:
        return spec.CODE_QUEUE_PURGE_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_QUEUE_PURGE_OK)
        put_u32(w, self.message_count)
        return w.getvalue()


@final
class QueueDelete(Method):
    """queue.delete."""

    queue: str
    if_unused: bool
    if_empty: bool
    no_wait: bool

    def __init__(
        self,
        queue: str = "",
        if_unused: bool = False,
        if_empty: bool = False,
        no_wait: bool = False,
    ) -> None:
        self.queue = queue
        self.if_unused = if_unused
        self.if_empty = if_empty
        self.no_wait = no_wait

    def code(self) -> i64:
        return spec.CODE_QUEUE_DELETE

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_QUEUE_DELETE)
        put_u16(w, 0)
        put_shortstr(w, self.queue)
        w.append(
            (1 if self.if_unused else 0) | (2 if self.if_empty else 0) | (4 if self.no_wait else 0)
        )
        return w.getvalue()


@final
class QueueDeleteOk(Method):
    """queue.delete-ok."""

    message_count: i64

    def __init__(self, message_count: i64 = 0) -> None:
        self.message_count = message_count

    def code(self) -> i64:
        return spec.CODE_QUEUE_DELETE_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_QUEUE_DELETE_OK)
        put_u32(w, self.message_count)
        return w.getvalue()


@final
class QueueUnbind(Method):
    """queue.unbind."""

    queue: str
    exchange: str
    routing_key: str
    arguments: dict[str, object]

    def __init__(
        self,
        queue: str = "",
        exchange: str = "",
        routing_key: str = "",
        arguments: dict[str, object] | None = None,
    ) -> None:
        self.queue = queue
        self.exchange = exchange
        self.routing_key = routing_key
        self.arguments = {} if arguments is None else arguments

    def code(self) -> i64:
        return spec.CODE_QUEUE_UNBIND

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_QUEUE_UNBIND)
        put_u16(w, 0)
        put_shortstr(w, self.queue)
        put_shortstr(w, self.exchange)
        put_shortstr(w, self.routing_key)
        put_table(w, self.arguments)
        return w.getvalue()


@final
class QueueUnbindOk(Method):
    """queue.unbind-ok."""

    def code(self) -> i64:
        return spec.CODE_QUEUE_UNBIND_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_QUEUE_UNBIND_OK)
        return w.getvalue()


@final
class BasicQos(Method):
    """basic.qos."""

    prefetch_size: i64
    prefetch_count: i64
    global_: bool

    def __init__(
        self,
        prefetch_size: i64 = 0,
        prefetch_count: i64 = 0,
        global_: bool = False,
    ) -> None:
        self.prefetch_size = prefetch_size
        self.prefetch_count = prefetch_count
        self.global_ = global_

    def code(self) -> i64:
        return spec.CODE_BASIC_QOS

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_BASIC_QOS)
        put_u32(w, self.prefetch_size)
        put_u16(w, self.prefetch_count)
        w.append(1 if self.global_ else 0)
        return w.getvalue()


@final
class BasicQosOk(Method):
    """basic.qos-ok."""

    def code(self) -> i64:
        return spec.CODE_BASIC_QOS_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_BASIC_QOS_OK)
        return w.getvalue()


@final
class BasicConsume(Method):
    """basic.consume."""

    queue: str
    consumer_tag: str
    no_local: bool
    no_ack: bool
    exclusive: bool
    no_wait: bool
    arguments: dict[str, object]

    def __init__(
        self,
        queue: str = "",
        consumer_tag: str = "",
        no_local: bool = False,
        no_ack: bool = False,
        exclusive: bool = False,
        no_wait: bool = False,
        arguments: dict[str, object] | None = None,
    ) -> None:
        self.queue = queue
        self.consumer_tag = consumer_tag
        self.no_local = no_local
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.no_wait = no_wait
        self.arguments = {} if arguments is None else arguments

    def code(self) -> i64:
        return spec.CODE_BASIC_CONSUME

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_BASIC_CONSUME)
        put_u16(w, 0)
        put_shortstr(w, self.queue)
        put_shortstr(w, self.consumer_tag)
        w.append(
            (1 if self.no_local else 0)
            | (2 if self.no_ack else 0)
            | (4 if self.exclusive else 0)
            | (8 if self.no_wait else 0)
        )
        put_table(w, self.arguments)
        return w.getvalue()


@final
class BasicConsumeOk(Method):
    """basic.consume-ok."""

    consumer_tag: str

    def __init__(self, consumer_tag: str = "") -> None:
        self.consumer_tag = consumer_tag

    def code(self) -> i64:
        return spec.CODE_BASIC_CONSUME_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_BASIC_CONSUME_OK)
        put_shortstr(w, self.consumer_tag)
        return w.getvalue()


@final
class BasicCancel(Method):
    """basic.cancel."""

    consumer_tag: str
    no_wait: bool

    def __init__(self, consumer_tag: str = "", no_wait: bool = False) -> None:
        self.consumer_tag = consumer_tag
        self.no_wait = no_wait

    def code(self) -> i64:
        return spec.CODE_BASIC_CANCEL

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_BASIC_CANCEL)
        put_shortstr(w, self.consumer_tag)
        w.append(1 if self.no_wait else 0)
        return w.getvalue()


@final
class BasicCancelOk(Method):
    """basic.cancel-ok."""

    consumer_tag: str

    def __init__(self, consumer_tag: str = "") -> None:
        self.consumer_tag = consumer_tag

    def code(self) -> i64:
        return spec.CODE_BASIC_CANCEL_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_BASIC_CANCEL_OK)
        put_shortstr(w, self.consumer_tag)
        return w.getvalue()


@final
class BasicPublish(Method):
    """basic.publish."""

    exchange: str
    routing_key: str
    mandatory: bool
    immediate: bool

    def __init__(
        self,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        immediate: bool = False,
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.mandatory = mandatory
        self.immediate = immediate

    def code(self) -> i64:
        return spec.CODE_BASIC_PUBLISH

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_BASIC_PUBLISH)
        put_u16(w, 0)
        put_shortstr(w, self.exchange)
        put_shortstr(w, self.routing_key)
        w.append((1 if self.mandatory else 0) | (2 if self.immediate else 0))
        return w.getvalue()


@final
class BasicReturn(Method):
    """basic.return."""

    reply_code: i64
    reply_text: str
    exchange: str
    routing_key: str

    def __init__(
        self,
        reply_code: i64 = 0,
        reply_text: str = "",
        exchange: str = "",
        routing_key: str = "",
    ) -> None:
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.exchange = exchange
        self.routing_key = routing_key

    def code(self) -> i64:
        return spec.CODE_BASIC_RETURN

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_BASIC_RETURN)
        put_u16(w, self.reply_code)
        put_shortstr(w, self.reply_text)
        put_shortstr(w, self.exchange)
        put_shortstr(w, self.routing_key)
        return w.getvalue()


@final
class BasicDeliver(Method):
    """basic.deliver."""

    consumer_tag: str
    delivery_tag: i64
    redelivered: bool
    exchange: str
    routing_key: str

    def __init__(
        self,
        consumer_tag: str = "",
        delivery_tag: i64 = 0,
        redelivered: bool = False,
        exchange: str = "",
        routing_key: str = "",
    ) -> None:
        self.consumer_tag = consumer_tag
        self.delivery_tag = delivery_tag
        self.redelivered = redelivered
        self.exchange = exchange
        self.routing_key = routing_key

    def code(self) -> i64:
        return spec.CODE_BASIC_DELIVER

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_BASIC_DELIVER)
        put_shortstr(w, self.consumer_tag)
        put_u64(w, self.delivery_tag)
        w.append(1 if self.redelivered else 0)
        put_shortstr(w, self.exchange)
        put_shortstr(w, self.routing_key)
        return w.getvalue()


@final
class BasicGet(Method):
    """basic.get."""

    queue: str
    no_ack: bool

    def __init__(self, queue: str = "", no_ack: bool = False) -> None:
        self.queue = queue
        self.no_ack = no_ack

    def code(self) -> i64:
        return spec.CODE_BASIC_GET

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_BASIC_GET)
        put_u16(w, 0)
        put_shortstr(w, self.queue)
        w.append(1 if self.no_ack else 0)
        return w.getvalue()


@final
class BasicGetOk(Method):
    """basic.get-ok."""

    delivery_tag: i64
    redelivered: bool
    exchange: str
    routing_key: str
    message_count: i64

    def __init__(
        self,
        delivery_tag: i64 = 0,
        redelivered: bool = False,
        exchange: str = "",
        routing_key: str = "",
        message_count: i64 = 0,
    ) -> None:
        self.delivery_tag = delivery_tag
        self.redelivered = redelivered
        self.exchange = exchange
        self.routing_key = routing_key
        self.message_count = message_count

    def code(self) -> i64:
        return spec.CODE_BASIC_GET_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_BASIC_GET_OK)
        put_u64(w, self.delivery_tag)
        w.append(1 if self.redelivered else 0)
        put_shortstr(w, self.exchange)
        put_shortstr(w, self.routing_key)
        put_u32(w, self.message_count)
        return w.getvalue()


@final
class BasicGetEmpty(Method):
    """basic.get-empty."""

    def code(self) -> i64:
        return spec.CODE_BASIC_GET_EMPTY

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_BASIC_GET_EMPTY)
        put_shortstr(w, "")
        return w.getvalue()


@final
class BasicAck(Method):
    """basic.ack."""

    delivery_tag: i64
    multiple: bool

    def __init__(self, delivery_tag: i64 = 0, multiple: bool = False) -> None:
        self.delivery_tag = delivery_tag
        self.multiple = multiple

    def code(self) -> i64:
        return spec.CODE_BASIC_ACK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_BASIC_ACK)
        put_u64(w, self.delivery_tag)
        w.append(1 if self.multiple else 0)
        return w.getvalue()


@final
class BasicReject(Method):
    """basic.reject."""

    delivery_tag: i64
    requeue: bool

    def __init__(self, delivery_tag: i64 = 0, requeue: bool = True) -> None:
        self.delivery_tag = delivery_tag
        self.requeue = requeue

    def code(self) -> i64:
        return spec.CODE_BASIC_REJECT

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_BASIC_REJECT)
        put_u64(w, self.delivery_tag)
        w.append(1 if self.requeue else 0)
        return w.getvalue()


@final
class BasicRecoverAsync(Method):
    """basic.recover-async."""

    requeue: bool

    def __init__(self, requeue: bool = False) -> None:
        self.requeue = requeue

    def code(self) -> i64:
        return spec.CODE_BASIC_RECOVER_ASYNC

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_BASIC_RECOVER_ASYNC)
        w.append(1 if self.requeue else 0)
        return w.getvalue()


@final
class BasicRecover(Method):
    """basic.recover."""

    requeue: bool

    def __init__(self, requeue: bool = False) -> None:
        self.requeue = requeue

    def code(self) -> i64:
        return spec.CODE_BASIC_RECOVER

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_BASIC_RECOVER)
        w.append(1 if self.requeue else 0)
        return w.getvalue()


@final
class BasicRecoverOk(Method):
    """basic.recover-ok."""

    def code(self) -> i64:
        return spec.CODE_BASIC_RECOVER_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_BASIC_RECOVER_OK)
        return w.getvalue()


@final
class BasicNack(Method):
    """basic.nack."""

    delivery_tag: i64
    multiple: bool
    requeue: bool

    def __init__(self, delivery_tag: i64 = 0, multiple: bool = False, requeue: bool = True) -> None:
        self.delivery_tag = delivery_tag
        self.multiple = multiple
        self.requeue = requeue

    def code(self) -> i64:
        return spec.CODE_BASIC_NACK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_BASIC_NACK)
        put_u64(w, self.delivery_tag)
        w.append((1 if self.multiple else 0) | (2 if self.requeue else 0))
        return w.getvalue()


@final
class ConfirmSelect(Method):
    """confirm.select."""

    no_wait: bool

    def __init__(self, no_wait: bool = False) -> None:
        self.no_wait = no_wait

    def code(self) -> i64:
        return spec.CODE_CONFIRM_SELECT

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CONFIRM_SELECT)
        w.append(1 if self.no_wait else 0)
        return w.getvalue()


@final
class ConfirmSelectOk(Method):
    """confirm.select-ok."""

    def code(self) -> i64:
        return spec.CODE_CONFIRM_SELECT_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CONFIRM_SELECT_OK)
        return w.getvalue()


@final
class ConfirmLevel(Method):
    """confirm.level."""

    delivery_tag: i64
    level: i64

    def __init__(self, delivery_tag: i64 = 0, level: i64 = 0) -> None:
        self.delivery_tag = delivery_tag
        self.level = level

    def code(self) -> i64:
        return spec.CODE_CONFIRM_LEVEL

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_CONFIRM_LEVEL)
        put_u64(w, self.delivery_tag)
        put_u8(w, self.level)
        return w.getvalue()


@final
class TxSelect(Method):
    """tx.select."""

    def code(self) -> i64:
        return spec.CODE_TX_SELECT

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_TX_SELECT)
        return w.getvalue()


@final
class TxSelectOk(Method):
    """tx.select-ok."""

    def code(self) -> i64:
        return spec.CODE_TX_SELECT_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_TX_SELECT_OK)
        return w.getvalue()


@final
class TxCommit(Method):
    """tx.commit."""

    def code(self) -> i64:
        return spec.CODE_TX_COMMIT

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_TX_COMMIT)
        return w.getvalue()


@final
class TxCommitOk(Method):
    """tx.commit-ok."""

    def code(self) -> i64:
        return spec.CODE_TX_COMMIT_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_TX_COMMIT_OK)
        return w.getvalue()


@final
class TxRollback(Method):
    """tx.rollback."""

    def code(self) -> i64:
        return spec.CODE_TX_ROLLBACK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_TX_ROLLBACK)
        return w.getvalue()


@final
class TxRollbackOk(Method):
    """tx.rollback-ok."""

    def code(self) -> i64:
        return spec.CODE_TX_ROLLBACK_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_TX_ROLLBACK_OK)
        return w.getvalue()


@final
class SessionFailoverMap(Method):
    """session.failover-map."""

    version: i64
    entries: dict[str, object]

    def __init__(self, version: i64 = 0, entries: dict[str, object] | None = None) -> None:
        self.version = version
        self.entries = {} if entries is None else entries

    def code(self) -> i64:
        return spec.CODE_SESSION_FAILOVER_MAP

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_SESSION_FAILOVER_MAP)
        put_u64(w, self.version)
        put_table(w, self.entries)
        return w.getvalue()


@final
class SessionMove(Method):
    """session.move."""

    host: str
    known_hosts: str

    def __init__(self, host: str = "", known_hosts: str = "") -> None:
        self.host = host
        self.known_hosts = known_hosts

    def code(self) -> i64:
        return spec.CODE_SESSION_MOVE

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_SESSION_MOVE)
        put_shortstr(w, self.host)
        put_shortstr(w, self.known_hosts)
        return w.getvalue()


@final
class SessionMessage(Method):
    """session.message."""

    queue_id: i64
    epoch: i64
    index: i64

    def __init__(self, queue_id: i64 = 0, epoch: i64 = 0, index: i64 = 0) -> None:
        self.queue_id = queue_id
        self.epoch = epoch
        self.index = index

    def code(self) -> i64:
        return spec.CODE_SESSION_MESSAGE

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_SESSION_MESSAGE)
        put_u64(w, self.queue_id)
        put_u32(w, self.epoch)
        put_u64(w, self.index)
        return w.getvalue()


@final
class SessionResume(Method):
    """session.resume."""

    entries: bytes

    def __init__(self, entries: bytes = b"") -> None:
        self.entries = entries

    def code(self) -> i64:
        return spec.CODE_SESSION_RESUME

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_SESSION_RESUME)
        put_longstr(w, self.entries)
        return w.getvalue()


@final
class SessionResumeOk(Method):
    """session.resume-ok."""

    first_tag: i64

    def __init__(self, first_tag: i64 = 0) -> None:
        self.first_tag = first_tag

    def code(self) -> i64:
        return spec.CODE_SESSION_RESUME_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_SESSION_RESUME_OK)
        put_u64(w, self.first_tag)
        return w.getvalue()


@final
class SessionResumed(Method):
    """session.resumed."""

    def code(self) -> i64:
        return spec.CODE_SESSION_RESUMED

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_SESSION_RESUMED)
        return w.getvalue()


@final
class SessionSync(Method):
    """session.sync."""

    def code(self) -> i64:
        return spec.CODE_SESSION_SYNC

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_SESSION_SYNC)
        return w.getvalue()


@final
class SessionSyncOk(Method):
    """session.sync-ok."""

    def code(self) -> i64:
        return spec.CODE_SESSION_SYNC_OK

    def encode(self) -> bytes:
        w = BytesWriter()
        put_u32(w, spec.CODE_SESSION_SYNC_OK)
        return w.getvalue()


def _read_connection_start(r: FieldReader) -> ConnectionStart:
    version_major = r.octet()
    version_minor = r.octet()
    server_properties = r.table()
    mechanisms = r.longstr()
    locales = r.longstr()
    return ConnectionStart(version_major, version_minor, server_properties, mechanisms, locales)


def _read_connection_start_ok(r: FieldReader) -> ConnectionStartOk:
    client_properties = r.table()
    mechanism = r.shortstr()
    response = r.longstr()
    locale = r.shortstr()
    return ConnectionStartOk(client_properties, mechanism, response, locale)


def _read_connection_secure(r: FieldReader) -> ConnectionSecure:
    challenge = r.longstr()
    return ConnectionSecure(challenge)


def _read_connection_secure_ok(r: FieldReader) -> ConnectionSecureOk:
    response = r.longstr()
    return ConnectionSecureOk(response)


def _read_connection_tune(r: FieldReader) -> ConnectionTune:
    channel_max = r.short()
    frame_max = r.long()
    heartbeat = r.short()
    return ConnectionTune(channel_max, frame_max, heartbeat)


def _read_connection_tune_ok(r: FieldReader) -> ConnectionTuneOk:
    channel_max = r.short()
    frame_max = r.long()
    heartbeat = r.short()
    return ConnectionTuneOk(channel_max, frame_max, heartbeat)


def _read_connection_open(r: FieldReader) -> ConnectionOpen:
    virtual_host = r.shortstr()
    r.shortstr()
    r.octet()
    return ConnectionOpen(virtual_host)


def _read_connection_open_ok(r: FieldReader) -> ConnectionOpenOk:
    known_hosts = r.shortstr()
    return ConnectionOpenOk(known_hosts)


def _read_connection_redirect(r: FieldReader) -> ConnectionRedirect:
    host = r.shortstr()
    known_hosts = r.shortstr()
    return ConnectionRedirect(host, known_hosts)


def _read_connection_close(r: FieldReader) -> ConnectionClose:
    reply_code = r.short()
    reply_text = r.shortstr()
    class_id = r.short()
    method_id = r.short()
    return ConnectionClose(reply_code, reply_text, class_id, method_id)


def _read_connection_blocked(r: FieldReader) -> ConnectionBlocked:
    reason = r.shortstr()
    return ConnectionBlocked(reason)


def _read_connection_update_secret(r: FieldReader) -> ConnectionUpdateSecret:
    new_secret = r.longstr()
    reason = r.shortstr()
    return ConnectionUpdateSecret(new_secret, reason)


def _read_channel_open(r: FieldReader) -> ChannelOpen:
    r.shortstr()
    return ChannelOpen()


def _read_channel_open_ok(r: FieldReader) -> ChannelOpenOk:
    r.longstr()
    return ChannelOpenOk()


def _read_channel_flow(r: FieldReader) -> ChannelFlow:
    bits = r.octet()
    return ChannelFlow(bits & 1 != 0)


def _read_channel_flow_ok(r: FieldReader) -> ChannelFlowOk:
    bits = r.octet()
    return ChannelFlowOk(bits & 1 != 0)


def _read_channel_close(r: FieldReader) -> ChannelClose:
    reply_code = r.short()
    reply_text = r.shortstr()
    class_id = r.short()
    method_id = r.short()
    return ChannelClose(reply_code, reply_text, class_id, method_id)


def _read_exchange_declare(r: FieldReader) -> ExchangeDeclare:
    r.short()
    exchange = r.shortstr()
    type_ = r.shortstr()
    bits = r.octet()
    arguments = r.table()
    return ExchangeDeclare(
        exchange,
        type_,
        bits & 1 != 0,
        bits & 2 != 0,
        bits & 4 != 0,
        bits & 8 != 0,
        bits & 16 != 0,
        arguments,
    )


def _read_exchange_delete(r: FieldReader) -> ExchangeDelete:
    r.short()
    exchange = r.shortstr()
    bits = r.octet()
    return ExchangeDelete(exchange, bits & 1 != 0, bits & 2 != 0)


def _read_exchange_bind(r: FieldReader) -> ExchangeBind:
    r.short()
    destination = r.shortstr()
    source = r.shortstr()
    routing_key = r.shortstr()
    bits = r.octet()
    arguments = r.table()
    return ExchangeBind(destination, source, routing_key, bits & 1 != 0, arguments)


def _read_exchange_unbind(r: FieldReader) -> ExchangeUnbind:
    r.short()
    destination = r.shortstr()
    source = r.shortstr()
    routing_key = r.shortstr()
    bits = r.octet()
    arguments = r.table()
    return ExchangeUnbind(destination, source, routing_key, bits & 1 != 0, arguments)


def _read_queue_declare(r: FieldReader) -> QueueDeclare:
    r.short()
    queue = r.shortstr()
    bits = r.octet()
    arguments = r.table()
    return QueueDeclare(
        queue, bits & 1 != 0, bits & 2 != 0, bits & 4 != 0, bits & 8 != 0, bits & 16 != 0, arguments
    )


def _read_queue_declare_ok(r: FieldReader) -> QueueDeclareOk:
    queue = r.shortstr()
    message_count = r.long()
    consumer_count = r.long()
    return QueueDeclareOk(queue, message_count, consumer_count)


def _read_queue_bind(r: FieldReader) -> QueueBind:
    r.short()
    queue = r.shortstr()
    exchange = r.shortstr()
    routing_key = r.shortstr()
    bits = r.octet()
    arguments = r.table()
    return QueueBind(queue, exchange, routing_key, bits & 1 != 0, arguments)


def _read_queue_purge(r: FieldReader) -> QueuePurge:
    r.short()
    queue = r.shortstr()
    bits = r.octet()
    return QueuePurge(queue, bits & 1 != 0)


def _read_queue_purge_ok(r: FieldReader) -> QueuePurgeOk:
    message_count = r.long()
    return QueuePurgeOk(message_count)


def _read_queue_delete(r: FieldReader) -> QueueDelete:
    r.short()
    queue = r.shortstr()
    bits = r.octet()
    return QueueDelete(queue, bits & 1 != 0, bits & 2 != 0, bits & 4 != 0)


def _read_queue_delete_ok(r: FieldReader) -> QueueDeleteOk:
    message_count = r.long()
    return QueueDeleteOk(message_count)


def _read_queue_unbind(r: FieldReader) -> QueueUnbind:
    r.short()
    queue = r.shortstr()
    exchange = r.shortstr()
    routing_key = r.shortstr()
    arguments = r.table()
    return QueueUnbind(queue, exchange, routing_key, arguments)


def _read_basic_qos(r: FieldReader) -> BasicQos:
    prefetch_size = r.long()
    prefetch_count = r.short()
    bits = r.octet()
    return BasicQos(prefetch_size, prefetch_count, bits & 1 != 0)


def _read_basic_consume(r: FieldReader) -> BasicConsume:
    r.short()
    queue = r.shortstr()
    consumer_tag = r.shortstr()
    bits = r.octet()
    arguments = r.table()
    return BasicConsume(
        queue, consumer_tag, bits & 1 != 0, bits & 2 != 0, bits & 4 != 0, bits & 8 != 0, arguments
    )


def _read_basic_consume_ok(r: FieldReader) -> BasicConsumeOk:
    consumer_tag = r.shortstr()
    return BasicConsumeOk(consumer_tag)


def _read_basic_cancel(r: FieldReader) -> BasicCancel:
    consumer_tag = r.shortstr()
    bits = r.octet()
    return BasicCancel(consumer_tag, bits & 1 != 0)


def _read_basic_cancel_ok(r: FieldReader) -> BasicCancelOk:
    consumer_tag = r.shortstr()
    return BasicCancelOk(consumer_tag)


def _read_basic_publish(r: FieldReader) -> BasicPublish:
    r.short()
    exchange = r.shortstr()
    routing_key = r.shortstr()
    bits = r.octet()
    return BasicPublish(exchange, routing_key, bits & 1 != 0, bits & 2 != 0)


def _read_basic_return(r: FieldReader) -> BasicReturn:
    reply_code = r.short()
    reply_text = r.shortstr()
    exchange = r.shortstr()
    routing_key = r.shortstr()
    return BasicReturn(reply_code, reply_text, exchange, routing_key)


def _read_basic_deliver(r: FieldReader) -> BasicDeliver:
    consumer_tag = r.shortstr()
    delivery_tag = r.longlong()
    bits = r.octet()
    exchange = r.shortstr()
    routing_key = r.shortstr()
    return BasicDeliver(consumer_tag, delivery_tag, bits & 1 != 0, exchange, routing_key)


def _read_basic_get(r: FieldReader) -> BasicGet:
    r.short()
    queue = r.shortstr()
    bits = r.octet()
    return BasicGet(queue, bits & 1 != 0)


def _read_basic_get_ok(r: FieldReader) -> BasicGetOk:
    delivery_tag = r.longlong()
    bits = r.octet()
    exchange = r.shortstr()
    routing_key = r.shortstr()
    message_count = r.long()
    return BasicGetOk(delivery_tag, bits & 1 != 0, exchange, routing_key, message_count)


def _read_basic_get_empty(r: FieldReader) -> BasicGetEmpty:
    r.shortstr()
    return BasicGetEmpty()


def _read_basic_ack(r: FieldReader) -> BasicAck:
    delivery_tag = r.longlong()
    bits = r.octet()
    return BasicAck(delivery_tag, bits & 1 != 0)


def _read_basic_reject(r: FieldReader) -> BasicReject:
    delivery_tag = r.longlong()
    bits = r.octet()
    return BasicReject(delivery_tag, bits & 1 != 0)


def _read_basic_recover_async(r: FieldReader) -> BasicRecoverAsync:
    bits = r.octet()
    return BasicRecoverAsync(bits & 1 != 0)


def _read_basic_recover(r: FieldReader) -> BasicRecover:
    bits = r.octet()
    return BasicRecover(bits & 1 != 0)


def _read_basic_nack(r: FieldReader) -> BasicNack:
    delivery_tag = r.longlong()
    bits = r.octet()
    return BasicNack(delivery_tag, bits & 1 != 0, bits & 2 != 0)


def _read_confirm_select(r: FieldReader) -> ConfirmSelect:
    bits = r.octet()
    return ConfirmSelect(bits & 1 != 0)


def _read_confirm_level(r: FieldReader) -> ConfirmLevel:
    delivery_tag = r.longlong()
    level = r.octet()
    return ConfirmLevel(delivery_tag, level)


def _read_session_failover_map(r: FieldReader) -> SessionFailoverMap:
    version = r.longlong()
    entries = r.table()
    return SessionFailoverMap(version, entries)


def _read_session_move(r: FieldReader) -> SessionMove:
    host = r.shortstr()
    known_hosts = r.shortstr()
    return SessionMove(host, known_hosts)


def _read_session_message(r: FieldReader) -> SessionMessage:
    queue_id = r.longlong()
    epoch = r.long()
    index = r.longlong()
    return SessionMessage(queue_id, epoch, index)


def _read_session_resume(r: FieldReader) -> SessionResume:
    entries = r.longstr()
    return SessionResume(entries)


def _read_session_resume_ok(r: FieldReader) -> SessionResumeOk:
    first_tag = r.longlong()
    return SessionResumeOk(first_tag)


def _dispatch_connection(code: i64, r: FieldReader) -> Method | None:
    if code == spec.CODE_CONNECTION_START:
        return _read_connection_start(r)
    if code == spec.CODE_CONNECTION_START_OK:
        return _read_connection_start_ok(r)
    if code == spec.CODE_CONNECTION_SECURE:
        return _read_connection_secure(r)
    if code == spec.CODE_CONNECTION_SECURE_OK:
        return _read_connection_secure_ok(r)
    if code == spec.CODE_CONNECTION_TUNE:
        return _read_connection_tune(r)
    if code == spec.CODE_CONNECTION_TUNE_OK:
        return _read_connection_tune_ok(r)
    if code == spec.CODE_CONNECTION_OPEN:
        return _read_connection_open(r)
    if code == spec.CODE_CONNECTION_OPEN_OK:
        return _read_connection_open_ok(r)
    if code == spec.CODE_CONNECTION_REDIRECT:
        return _read_connection_redirect(r)
    if code == spec.CODE_CONNECTION_CLOSE:
        return _read_connection_close(r)
    if code == spec.CODE_CONNECTION_CLOSE_OK:
        return ConnectionCloseOk()
    if code == spec.CODE_CONNECTION_BLOCKED:
        return _read_connection_blocked(r)
    if code == spec.CODE_CONNECTION_UNBLOCKED:
        return ConnectionUnblocked()
    if code == spec.CODE_CONNECTION_UPDATE_SECRET:
        return _read_connection_update_secret(r)
    if code == spec.CODE_CONNECTION_UPDATE_SECRET_OK:
        return ConnectionUpdateSecretOk()
    return None


def _dispatch_channel(code: i64, r: FieldReader) -> Method | None:
    if code == spec.CODE_CHANNEL_OPEN:
        return _read_channel_open(r)
    if code == spec.CODE_CHANNEL_OPEN_OK:
        return _read_channel_open_ok(r)
    if code == spec.CODE_CHANNEL_FLOW:
        return _read_channel_flow(r)
    if code == spec.CODE_CHANNEL_FLOW_OK:
        return _read_channel_flow_ok(r)
    if code == spec.CODE_CHANNEL_CLOSE:
        return _read_channel_close(r)
    if code == spec.CODE_CHANNEL_CLOSE_OK:
        return ChannelCloseOk()
    return None


def _dispatch_exchange(code: i64, r: FieldReader) -> Method | None:
    if code == spec.CODE_EXCHANGE_DECLARE:
        return _read_exchange_declare(r)
    if code == spec.CODE_EXCHANGE_DECLARE_OK:
        return ExchangeDeclareOk()
    if code == spec.CODE_EXCHANGE_DELETE:
        return _read_exchange_delete(r)
    if code == spec.CODE_EXCHANGE_DELETE_OK:
        return ExchangeDeleteOk()
    if code == spec.CODE_EXCHANGE_BIND:
        return _read_exchange_bind(r)
    if code == spec.CODE_EXCHANGE_BIND_OK:
        return ExchangeBindOk()
    if code == spec.CODE_EXCHANGE_UNBIND:
        return _read_exchange_unbind(r)
    if code == spec.CODE_EXCHANGE_UNBIND_OK:
        return ExchangeUnbindOk()
    return None


def _dispatch_queue(code: i64, r: FieldReader) -> Method | None:
    if code == spec.CODE_QUEUE_DECLARE:
        return _read_queue_declare(r)
    if code == spec.CODE_QUEUE_DECLARE_OK:
        return _read_queue_declare_ok(r)
    if code == spec.CODE_QUEUE_BIND:
        return _read_queue_bind(r)
    if code == spec.CODE_QUEUE_BIND_OK:
        return QueueBindOk()
    if code == spec.CODE_QUEUE_PURGE:
        return _read_queue_purge(r)
    if code == spec.CODE_QUEUE_PURGE_OK:
        return _read_queue_purge_ok(r)
    if code == spec.CODE_QUEUE_DELETE:
        return _read_queue_delete(r)
    if code == spec.CODE_QUEUE_DELETE_OK:
        return _read_queue_delete_ok(r)
    if code == spec.CODE_QUEUE_UNBIND:
        return _read_queue_unbind(r)
    if code == spec.CODE_QUEUE_UNBIND_OK:
        return QueueUnbindOk()
    return None


def _dispatch_basic(code: i64, r: FieldReader) -> Method | None:
    if code == spec.CODE_BASIC_QOS:
        return _read_basic_qos(r)
    if code == spec.CODE_BASIC_QOS_OK:
        return BasicQosOk()
    if code == spec.CODE_BASIC_CONSUME:
        return _read_basic_consume(r)
    if code == spec.CODE_BASIC_CONSUME_OK:
        return _read_basic_consume_ok(r)
    if code == spec.CODE_BASIC_CANCEL:
        return _read_basic_cancel(r)
    if code == spec.CODE_BASIC_CANCEL_OK:
        return _read_basic_cancel_ok(r)
    if code == spec.CODE_BASIC_PUBLISH:
        return _read_basic_publish(r)
    if code == spec.CODE_BASIC_RETURN:
        return _read_basic_return(r)
    if code == spec.CODE_BASIC_DELIVER:
        return _read_basic_deliver(r)
    if code == spec.CODE_BASIC_GET:
        return _read_basic_get(r)
    if code == spec.CODE_BASIC_GET_OK:
        return _read_basic_get_ok(r)
    if code == spec.CODE_BASIC_GET_EMPTY:
        return _read_basic_get_empty(r)
    if code == spec.CODE_BASIC_ACK:
        return _read_basic_ack(r)
    if code == spec.CODE_BASIC_REJECT:
        return _read_basic_reject(r)
    if code == spec.CODE_BASIC_RECOVER_ASYNC:
        return _read_basic_recover_async(r)
    if code == spec.CODE_BASIC_RECOVER:
        return _read_basic_recover(r)
    if code == spec.CODE_BASIC_RECOVER_OK:
        return BasicRecoverOk()
    if code == spec.CODE_BASIC_NACK:
        return _read_basic_nack(r)
    return None


def _dispatch_confirm(code: i64, r: FieldReader) -> Method | None:
    if code == spec.CODE_CONFIRM_SELECT:
        return _read_confirm_select(r)
    if code == spec.CODE_CONFIRM_SELECT_OK:
        return ConfirmSelectOk()
    if code == spec.CODE_CONFIRM_LEVEL:
        return _read_confirm_level(r)
    return None


def _dispatch_tx(code: i64, r: FieldReader) -> Method | None:
    if code == spec.CODE_TX_SELECT:
        return TxSelect()
    if code == spec.CODE_TX_SELECT_OK:
        return TxSelectOk()
    if code == spec.CODE_TX_COMMIT:
        return TxCommit()
    if code == spec.CODE_TX_COMMIT_OK:
        return TxCommitOk()
    if code == spec.CODE_TX_ROLLBACK:
        return TxRollback()
    if code == spec.CODE_TX_ROLLBACK_OK:
        return TxRollbackOk()
    return None


def _dispatch_session(code: i64, r: FieldReader) -> Method | None:
    if code == spec.CODE_SESSION_FAILOVER_MAP:
        return _read_session_failover_map(r)
    if code == spec.CODE_SESSION_MOVE:
        return _read_session_move(r)
    if code == spec.CODE_SESSION_MESSAGE:
        return _read_session_message(r)
    if code == spec.CODE_SESSION_RESUME:
        return _read_session_resume(r)
    if code == spec.CODE_SESSION_RESUME_OK:
        return _read_session_resume_ok(r)
    if code == spec.CODE_SESSION_RESUMED:
        return SessionResumed()
    if code == spec.CODE_SESSION_SYNC:
        return SessionSync()
    if code == spec.CODE_SESSION_SYNC_OK:
        return SessionSyncOk()
    return None


def decode_method(payload: bytes) -> Method:
    """Decode the payload of a method frame.

    Bytes after the last field are ignored, as RabbitMQ does. Raises SyntaxErrorFault if the fields
    are cut short or garbled, CommandInvalid if there is no such method.
    """
    if len(payload) < 4:
        raise SyntaxErrorFault("method frame is too short for a class and a method id")
    code = u32_at(payload, 0)
    try:
        method = _dispatch(code, FieldReader(payload, 4))
    except SyntaxErrorFault as fault:
        fault.class_id = int(u16_at(payload, 0))
        fault.method_id = int(u16_at(payload, 2))
        raise
    if method is None:
        class_id, method_id = int(u16_at(payload, 0)), int(u16_at(payload, 2))
        raise CommandInvalid(f"unknown method {class_id}.{method_id}", class_id, method_id)
    return method


def _dispatch(code: i64, r: FieldReader) -> Method | None:
    class_id = code >> 16
    if class_id == spec.BASIC:
        return _dispatch_basic(code, r)
    if class_id == spec.CONNECTION:
        return _dispatch_connection(code, r)
    if class_id == spec.CHANNEL:
        return _dispatch_channel(code, r)
    if class_id == spec.EXCHANGE:
        return _dispatch_exchange(code, r)
    if class_id == spec.QUEUE:
        return _dispatch_queue(code, r)
    if class_id == spec.CONFIRM:
        return _dispatch_confirm(code, r)
    if class_id == spec.TX:
        return _dispatch_tx(code, r)
    if class_id == spec.SESSION:
        return _dispatch_session(code, r)
    return None


def has_content(code: i64) -> bool:
    """Tell whether a content header and body follow the method."""
    return (
        code == spec.CODE_BASIC_PUBLISH
        or code == spec.CODE_BASIC_RETURN
        or code == spec.CODE_BASIC_DELIVER
        or code == spec.CODE_BASIC_GET_OK
    )
