"""Direct reply-to: whom a token leads to."""

from __future__ import annotations

from rhizome.amqp.methods import ChannelClose, QueueDeclare
from rhizome.amqp.properties import Properties
from rhizome.broker.metadata.metadata_commands import PutVhost
from rhizome.testing.in_memory_broker import make_core


def test_a_reply_goes_to_no_other_vhost() -> None:
    core = make_core()
    client = core.connect()
    core.broker.apply(PutVhost("other"))
    requests = client.declare("requests")
    client.consume("amq.rabbitmq.reply-to", no_ack=True)
    client.publish("", requests, b"question", Properties(reply_to="amq.rabbitmq.reply-to"))
    question = client.get(requests)
    assert question is not None
    address = question.properties.reply_to or ""
    stranger = core.connect(vhost="other")
    stranger.publish("", address, b"forged", mandatory=True)
    assert stranger.take() != []
    stranger.send(QueueDeclare(address, passive=True))
    assert stranger.pick(ChannelClose).reply_code == 404
    assert client.deliveries() == []
    client.publish("", address, b"answer")
    assert client.bodies() == [b"answer"]
