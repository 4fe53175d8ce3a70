"""Markers for tests that a version of RabbitMQ does not pass, because it does something else.

Each says which version, what it does, what Rhizome does and why. docs/compatibility.md is made of
them (tools/generate_compatibility_docs.py), and a marked test must fail on that version.
"""

from __future__ import annotations

import pytest

differs = pytest.mark.differs

GLOBAL_PREFETCH = differs(
    "4.3",
    "basic.qos with global=true sets a prefetch of each consumer",
    ours="basic.qos with global=true limits what all consumers of a channel hold together",
    why="many applications depend on it",
)
SMALL_FRAMES = differs(
    "4.3",
    "a frame-max below 8,192 ends the connection",
    ours="a frame-max of 4,096 or more is taken",
    why="AMQP 0-9-1 says so, and small devices ask for it",
)
LONG_LOGIN = differs(
    "3.10",
    "frames of more than 4,096 octets before connection.tune-ok end the connection",
    ours="frames of up to 16 KiB are taken before connection.tune-ok",
    why="tokens of OAuth 2 come as passwords and are long",
)
LONGER_LOGIN = differs(
    "4.3",
    "frames of more than 8,192 octets before connection.tune-ok end the connection",
    ours="frames of up to 16 KiB are taken before connection.tune-ok",
    why="tokens of OAuth 2 come as passwords and are long",
)
PROTOCOL_HEADER = differs(
    "4.3",
    "another protocol header is answered with that of AMQP 1.0, which it speaks",
    ours="another protocol header is answered with that of AMQP 0-9-1",
    why="Rhizome speaks AMQP 0-9-1 only",
)
LAST_DEATH = differs(
    "4.3",
    "dead letters have x-last-death-queue, -reason and -exchange, too",
    ours="dead letters have x-death and x-first-death-queue, -reason and -exchange",
    why="recorded from 3.10",
)
DEATHS_FROM_CLIENTS = differs(
    "4.3",
    "what a publisher writes into x-death is not looked at: the first death begins a new array",
    ours="deaths in the x-death of a publisher are counted on, one entry per queue and reason",
    why="messages that applications publish again keep their history",
)
CC_OF_DEAD_LETTERS = differs(
    "4.3",
    "a dead letter with a routing key of its own keeps its header CC",
    ours="a dead letter with a routing key of its own loses its header CC",
    why="it isn't routed by it any more",
)
REFUSAL_TEXTS = differs(
    "4.3",
    "the text of a refusal says which access: `write access to exchange ...`",
    ours="the text of a refusal says `access to exchange ...`",
    why="clients compare texts; codes are the same",
)
PASSIVE_DECLARE = differs(
    "4.3",
    "a passive declaration needs the permission to configure",
    ours="a passive declaration needs no permission",
    why="what worked with 3.10 works",
)
UNKNOWN_EXCHANGE_TYPE = differs(
    "4.3",
    "an unknown exchange type closes the channel (406)",
    ours="an unknown exchange type closes the connection (503)",
    why="the code of AMQP 0-9-1; clients know it",
)
QUEUE_MODES = differs(
    "4.3",
    "x-queue-mode is not looked at",
    ours="an x-queue-mode other than default and lazy is refused (406)",
    why="a typing error is told",
)
DELIVERY_MODES = differs(
    "4.3",
    "any delivery mode is taken",
    ours="a delivery mode other than 1 and 2 is refused",
    why="a message that is not durable by mistake is lost silently",
)
QUEUE_TYPE_TEXT = differs(
    "4.3",
    "a queue that was declared without a type is said to be classic",
    ours="a queue that was declared without a type is said to have none",
    why="clients compare texts; codes are the same",
)
CLASSIC_NAMED = differs(
    "4.3",
    "a queue that was declared without a type shows the argument x-queue-type",
    ours="queues show the arguments that they were declared with",
    why="what is exported can be imported anywhere",
)
QUEUE_VERSION = differs(
    "4.3",
    "x-queue-version 1 is refused",
    ours="x-queue-version 1 and 2 are accepted and change nothing",
    why="what either accepts is accepted",
)
CONSUMER_TIMEOUT = differs(
    "4.3",
    "x-consumer-timeout is refused for classic queues",
    ours="x-consumer-timeout is obeyed by every queue",
    why="what either accepts is accepted",
)
MASTER_LOCATOR = differs(
    "4.3",
    "x-queue-master-locator is refused (541): deprecated",
    ours="x-queue-master-locator is accepted and changes nothing",
    why="what either accepts is accepted",
)
DELIVERY_COUNT = differs(
    "4.3",
    "a requeue by basic.nack is no delivery in x-delivery-count",
    ours="a requeue by basic.nack counts in x-delivery-count, up to x-delivery-limit",
    why="a message that a consumer always gives back reaches its limit",
)
REPLY_ADDRESS = differs(
    "4.3",
    "a reply to a channel that is gone is dropped, mandatory or not",
    ours="a mandatory reply to a channel that is gone is returned (312)",
    why="a server learns that nobody waits for its answer",
)
EXCLUSIVE_BINDINGS = differs(
    "4.3",
    "exclusive queues may outlive close-ok of their connection for a moment",
    ours="exclusive queues and their bindings are gone when close-ok comes",
    why="a client that connects again finds their names free",
    sometimes=True,
)
HEADER_TABLES = differs(
    "4.3",
    "header tables are decoded and encoded again: sorted, some types changed, empty ones left out",
    ours="header tables come out byte for byte as they went in",
    why="property values are opaque",
)
LOGIN_TEXT = differs(
    "4.3",
    "the reason of a 401 is `Not_Authorized`",
    ours="the reason of a 401 is `Login failed`",
    why="recorded from 3.10; the status is the same",
)
MIRROR_CHECK = differs(
    "4.3",
    "/api/health/checks/node-is-mirror-sync-critical is gone",
    ours="/api/health/checks/node-is-mirror-sync-critical answers",
    why="monitoring that is set up keeps working",
)
OTHERS_QUEUES = differs(
    "4.3",
    "a queue of a vhost that the caller may not enter is 404",
    ours="a queue of a vhost that the caller may not enter is 401",
    why="recorded from 3.10; nothing is told in both",
)
BROKEN_DEFINITIONS = differs(
    "4.3",
    "definitions with a queue without vhost are answered with 500",
    ours="definitions with a queue without vhost are answered with 400 and a reason",
    why="it is the caller's mistake",
)
IDLE_SINCE = differs(
    "4.3",
    "queues have no idle_since in lists",
    ours="queues have idle_since in lists",
    why="tools show it",
)
HTTP_PERMISSIONS = differs(
    "4.3",
    "some paths are open to other users, gone, or answered with 404 or 405 instead of 401",
    ours="each path is open to the users that 3.10 lets in",
    why="docs/operating/permissions.md lists them",
)
AMQP_PERMISSIONS = differs(
    "4.3",
    "passive declarations and some others ask for more permissions",
    ours="each operation asks for the permissions that 3.10 asks for",
    why="docs/operating/permissions.md lists them",
)
EXPIRY_BEHIND_THE_HEAD = differs(
    "3.10",
    "a message that expires behind one that doesn't stays until it is the first",
    ours="a message expires at its time, wherever it is in its queue",
    why="that is what `expiration` says; dead letters come when they are due",
)
EXPIRY_BEHIND_THE_HEAD_TOO = differs(
    "4.3",
    "a message that expires behind one that doesn't stays until it is the first",
    ours="a message expires at its time, wherever it is in its queue",
    why="that is what `expiration` says; dead letters come when they are due",
)
