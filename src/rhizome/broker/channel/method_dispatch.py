"""MethodDispatch: which function carries out a method on a channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhizome.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicGet,
    BasicNack,
    BasicQos,
    BasicRecover,
    BasicRecoverAsync,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ConfirmSelect,
    ConfirmSelectOk,
    Method,
    TxCommit,
    TxRollback,
    TxSelect,
)
from rhizome.amqp.spec import SESSION
from rhizome.broker.channel import channel_transaction, consume_methods, topology_methods
from rhizome.broker.channel.content_frames import expected_content
from rhizome.broker.channel.resource_lookup import unimplemented
from rhizome.broker.channel.unacked import REJECT, REQUEUE
from rhizome.broker.connection import session_resume
from rhizome.broker.publishing.publisher_confirms import Confirms
from rhizome.broker.publishing.reliability_levels import Levels, is_asked
from rhizome.errors import (
    NotImplementedFault,
    PreconditionFailed,
)

if TYPE_CHECKING:
    from rhizome.broker.channel.channel import Channel


def handle(channel: Channel, method: Method) -> None:
    """Carry out a method other than publish."""
    if channel.content_key is not None:
        raise expected_content(channel)
    class_id = method.code() >> 16
    if class_id == 60:
        _basic(channel, method)
    elif class_id == 50 or class_id == 40:
        topology_methods.handle(channel, method)
    elif class_id == 90:
        _tx(channel, method)
    elif isinstance(method, ConfirmSelect):
        _confirm_select(channel, method)
    elif class_id == SESSION:
        session_resume.handle(channel, method)
    else:
        _channel_method(channel, method)


def _basic(channel: Channel, method: Method) -> None:
    if isinstance(method, BasicAck):
        channel.ack(method.delivery_tag, method.multiple)
    elif isinstance(method, BasicNack):
        kind = REQUEUE if method.requeue else REJECT
        channel.settle(method.delivery_tag, method.multiple, kind, 120)
    elif isinstance(method, BasicReject):
        channel.settle(method.delivery_tag, False, REQUEUE if method.requeue else REJECT, 90)
    elif isinstance(method, BasicGet):
        consume_methods.get(channel, method)
    elif isinstance(method, BasicConsume):
        consume_methods.consume(channel, method)
    elif isinstance(method, BasicCancel):
        consume_methods.cancel(channel, method)
    elif isinstance(method, BasicQos):
        consume_methods.qos(channel, method)
    elif isinstance(method, BasicRecover):
        consume_methods.recover(channel, method.requeue, True)
    elif isinstance(method, BasicRecoverAsync):
        consume_methods.recover(channel, method.requeue, False)
    elif not isinstance(method, BasicCancelOk):  # answers a cancel of ours, and asks nothing
        raise unimplemented(method)


def _tx(channel: Channel, method: Method) -> None:
    if isinstance(method, TxSelect):
        channel_transaction.select(channel)
    elif isinstance(method, TxCommit):
        channel_transaction.commit(channel)
    elif isinstance(method, TxRollback):
        channel_transaction.rollback(channel)
    else:
        raise unimplemented(method)


def _confirm_select(channel: Channel, method: ConfirmSelect) -> None:
    if channel.transaction is not None:
        raise PreconditionFailed("cannot switch from tx to confirm mode", 85, 10)
    if channel.confirms is None:
        channel.confirms = Confirms(channel.connection.broker.confirm_latencies)
        if is_asked(channel.connection.client_properties):
            channel.confirms.levels = Levels()
    if not method.no_wait:
        channel.send(ConfirmSelectOk())


def _channel_method(channel: Channel, method: Method) -> None:
    if isinstance(method, ChannelClose):
        channel.flush_confirms()
        connection = channel.connection
        channel.release(ChannelCloseOk())
        connection.forget_channel(channel)
    elif isinstance(method, ChannelFlow):
        if not method.active:
            raise NotImplementedFault("active=false", 20, 20)
        channel.send(ChannelFlowOk(True))
    elif not isinstance(method, (ChannelCloseOk, ChannelFlowOk)):
        raise unimplemented(method)
