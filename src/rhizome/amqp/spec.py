"""The numbers of AMQP 0-9-1 and of RabbitMQ's extensions.

Written by tools/generate_amqp.py. Change the facts there, then run `python tools/generate_amqp.py`.
"""

from typing import Final

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
FRAME_MIN_SIZE: Final = 4096
FRAME_OVERHEAD: Final = 8
FRAME_HEADER_SIZE: Final = 7
PORT: Final = 5672
PORT_TLS: Final = 5671
REPLY_SUCCESS: Final = 200
REPLY_CONTENT_TOO_LARGE: Final = 311
REPLY_NO_ROUTE: Final = 312
REPLY_NO_CONSUMERS: Final = 313
REPLY_CONNECTION_FORCED: Final = 320
REPLY_INVALID_PATH: Final = 402
REPLY_ACCESS_REFUSED: Final = 403
REPLY_NOT_FOUND: Final = 404
REPLY_RESOURCE_LOCKED: Final = 405
REPLY_PRECONDITION_FAILED: Final = 406
REPLY_FRAME_ERROR: Final = 501
REPLY_SYNTAX_ERROR: Final = 502
REPLY_COMMAND_INVALID: Final = 503
REPLY_CHANNEL_ERROR: Final = 504
REPLY_UNEXPECTED_FRAME: Final = 505
REPLY_RESOURCE_ERROR: Final = 506
REPLY_NOT_ALLOWED: Final = 530
REPLY_NOT_IMPLEMENTED: Final = 540
REPLY_INTERNAL_ERROR: Final = 541

# Class ids.
CONNECTION: Final = 10
CHANNEL: Final = 20
EXCHANGE: Final = 40
QUEUE: Final = 50
BASIC: Final = 60
CONFIRM: Final = 85
TX: Final = 90
SESSION: Final = 61697

# Method ids, unique within their class.
CONNECTION_START: Final = 10
CONNECTION_START_OK: Final = 11
CONNECTION_SECURE: Final = 20
CONNECTION_SECURE_OK: Final = 21
CONNECTION_TUNE: Final = 30
CONNECTION_TUNE_OK: Final = 31
CONNECTION_OPEN: Final = 40
CONNECTION_OPEN_OK: Final = 41
CONNECTION_REDIRECT: Final = 42
CONNECTION_CLOSE: Final = 50
CONNECTION_CLOSE_OK: Final = 51
CONNECTION_BLOCKED: Final = 60
CONNECTION_UNBLOCKED: Final = 61
CONNECTION_UPDATE_SECRET: Final = 70
CONNECTION_UPDATE_SECRET_OK: Final = 71
CHANNEL_OPEN: Final = 10
CHANNEL_OPEN_OK: Final = 11
CHANNEL_FLOW: Final = 20
CHANNEL_FLOW_OK: Final = 21
CHANNEL_CLOSE: Final = 40
CHANNEL_CLOSE_OK: Final = 41
EXCHANGE_DECLARE: Final = 10
EXCHANGE_DECLARE_OK: Final = 11
EXCHANGE_DELETE: Final = 20
EXCHANGE_DELETE_OK: Final = 21
EXCHANGE_BIND: Final = 30
EXCHANGE_BIND_OK: Final = 31
EXCHANGE_UNBIND: Final = 40
EXCHANGE_UNBIND_OK: Final = 51
QUEUE_DECLARE: Final = 10
QUEUE_DECLARE_OK: Final = 11
QUEUE_BIND: Final = 20
QUEUE_BIND_OK: Final = 21
QUEUE_PURGE: Final = 30
QUEUE_PURGE_OK: Final = 31
QUEUE_DELETE: Final = 40
QUEUE_DELETE_OK: Final = 41
QUEUE_UNBIND: Final = 50
QUEUE_UNBIND_OK: Final = 51
BASIC_QOS: Final = 10
BASIC_QOS_OK: Final = 11
BASIC_CONSUME: Final = 20
BASIC_CONSUME_OK: Final = 21
BASIC_CANCEL: Final = 30
BASIC_CANCEL_OK: Final = 31
BASIC_PUBLISH: Final = 40
BASIC_RETURN: Final = 50
BASIC_DELIVER: Final = 60
BASIC_GET: Final = 70
BASIC_GET_OK: Final = 71
BASIC_GET_EMPTY: Final = 72
BASIC_ACK: Final = 80
BASIC_REJECT: Final = 90
BASIC_RECOVER_ASYNC: Final = 100
BASIC_RECOVER: Final = 110
BASIC_RECOVER_OK: Final = 111
BASIC_NACK: Final = 120
CONFIRM_SELECT: Final = 10
CONFIRM_SELECT_OK: Final = 11
CONFIRM_LEVEL: Final = 20
TX_SELECT: Final = 10
TX_SELECT_OK: Final = 11
TX_COMMIT: Final = 20
TX_COMMIT_OK: Final = 21
TX_ROLLBACK: Final = 30
TX_ROLLBACK_OK: Final = 31
SESSION_FAILOVER_MAP: Final = 10
SESSION_MOVE: Final = 20
SESSION_MESSAGE: Final = 30
SESSION_RESUME: Final = 40
SESSION_RESUME_OK: Final = 41
SESSION_RESUMED: Final = 50
SESSION_SYNC: Final = 60
SESSION_SYNC_OK: Final = 61

# Class id << 16 | method id: the first four bytes of a method frame's payload.
CODE_CONNECTION_START: Final = 10 << 16 | 10
CODE_CONNECTION_START_OK: Final = 10 << 16 | 11
CODE_CONNECTION_SECURE: Final = 10 << 16 | 20
CODE_CONNECTION_SECURE_OK: Final = 10 << 16 | 21
CODE_CONNECTION_TUNE: Final = 10 << 16 | 30
CODE_CONNECTION_TUNE_OK: Final = 10 << 16 | 31
CODE_CONNECTION_OPEN: Final = 10 << 16 | 40
CODE_CONNECTION_OPEN_OK: Final = 10 << 16 | 41
CODE_CONNECTION_REDIRECT: Final = 10 << 16 | 42
CODE_CONNECTION_CLOSE: Final = 10 << 16 | 50
CODE_CONNECTION_CLOSE_OK: Final = 10 << 16 | 51
CODE_CONNECTION_BLOCKED: Final = 10 << 16 | 60
CODE_CONNECTION_UNBLOCKED: Final = 10 << 16 | 61
CODE_CONNECTION_UPDATE_SECRET: Final = 10 << 16 | 70
CODE_CONNECTION_UPDATE_SECRET_OK: Final = 10 << 16 | 71
CODE_CHANNEL_OPEN: Final = 20 << 16 | 10
CODE_CHANNEL_OPEN_OK: Final = 20 << 16 | 11
CODE_CHANNEL_FLOW: Final = 20 << 16 | 20
CODE_CHANNEL_FLOW_OK: Final = 20 << 16 | 21
CODE_CHANNEL_CLOSE: Final = 20 << 16 | 40
CODE_CHANNEL_CLOSE_OK: Final = 20 << 16 | 41
CODE_EXCHANGE_DECLARE: Final = 40 << 16 | 10
CODE_EXCHANGE_DECLARE_OK: Final = 40 << 16 | 11
CODE_EXCHANGE_DELETE: Final = 40 << 16 | 20
CODE_EXCHANGE_DELETE_OK: Final = 40 << 16 | 21
CODE_EXCHANGE_BIND: Final = 40 << 16 | 30
CODE_EXCHANGE_BIND_OK: Final = 40 << 16 | 31
CODE_EXCHANGE_UNBIND: Final = 40 << 16 | 40
CODE_EXCHANGE_UNBIND_OK: Final = 40 << 16 | 51
CODE_QUEUE_DECLARE: Final = 50 << 16 | 10
CODE_QUEUE_DECLARE_OK: Final = 50 << 16 | 11
CODE_QUEUE_BIND: Final = 50 << 16 | 20
CODE_QUEUE_BIND_OK: Final = 50 << 16 | 21
CODE_QUEUE_PURGE: Final = 50 << 16 | 30
CODE_QUEUE_PURGE_OK: Final = 50 << 16 | 31
CODE_QUEUE_DELETE: Final = 50 << 16 | 40
CODE_QUEUE_DELETE_OK: Final = 50 << 16 | 41
CODE_QUEUE_UNBIND: Final = 50 << 16 | 50
CODE_QUEUE_UNBIND_OK: Final = 50 << 16 | 51
CODE_BASIC_QOS: Final = 60 << 16 | 10
CODE_BASIC_QOS_OK: Final = 60 << 16 | 11
CODE_BASIC_CONSUME: Final = 60 << 16 | 20
CODE_BASIC_CONSUME_OK: Final = 60 << 16 | 21
CODE_BASIC_CANCEL: Final = 60 << 16 | 30
CODE_BASIC_CANCEL_OK: Final = 60 << 16 | 31
CODE_BASIC_PUBLISH: Final = 60 << 16 | 40
CODE_BASIC_RETURN: Final = 60 << 16 | 50
CODE_BASIC_DELIVER: Final = 60 << 16 | 60
CODE_BASIC_GET: Final = 60 << 16 | 70
CODE_BASIC_GET_OK: Final = 60 << 16 | 71
CODE_BASIC_GET_EMPTY: Final = 60 << 16 | 72
CODE_BASIC_ACK: Final = 60 << 16 | 80
CODE_BASIC_REJECT: Final = 60 << 16 | 90
CODE_BASIC_RECOVER_ASYNC: Final = 60 << 16 | 100
CODE_BASIC_RECOVER: Final = 60 << 16 | 110
CODE_BASIC_RECOVER_OK: Final = 60 << 16 | 111
CODE_BASIC_NACK: Final = 60 << 16 | 120
CODE_CONFIRM_SELECT: Final = 85 << 16 | 10
CODE_CONFIRM_SELECT_OK: Final = 85 << 16 | 11
CODE_CONFIRM_LEVEL: Final = 85 << 16 | 20
CODE_TX_SELECT: Final = 90 << 16 | 10
CODE_TX_SELECT_OK: Final = 90 << 16 | 11
CODE_TX_COMMIT: Final = 90 << 16 | 20
CODE_TX_COMMIT_OK: Final = 90 << 16 | 21
CODE_TX_ROLLBACK: Final = 90 << 16 | 30
CODE_TX_ROLLBACK_OK: Final = 90 << 16 | 31
CODE_SESSION_FAILOVER_MAP: Final = 61697 << 16 | 10
CODE_SESSION_MOVE: Final = 61697 << 16 | 20
CODE_SESSION_MESSAGE: Final = 61697 << 16 | 30
CODE_SESSION_RESUME: Final = 61697 << 16 | 40
CODE_SESSION_RESUME_OK: Final = 61697 << 16 | 41
CODE_SESSION_RESUMED: Final = 61697 << 16 | 50
CODE_SESSION_SYNC: Final = 61697 << 16 | 60
CODE_SESSION_SYNC_OK: Final = 61697 << 16 | 61

METHOD_NAMES: Final[dict[int, str]] = {
    CODE_CONNECTION_START: "connection.start",
    CODE_CONNECTION_START_OK: "connection.start-ok",
    CODE_CONNECTION_SECURE: "connection.secure",
    CODE_CONNECTION_SECURE_OK: "connection.secure-ok",
    CODE_CONNECTION_TUNE: "connection.tune",
    CODE_CONNECTION_TUNE_OK: "connection.tune-ok",
    CODE_CONNECTION_OPEN: "connection.open",
    CODE_CONNECTION_OPEN_OK: "connection.open-ok",
    CODE_CONNECTION_REDIRECT: "connection.redirect",
    CODE_CONNECTION_CLOSE: "connection.close",
    CODE_CONNECTION_CLOSE_OK: "connection.close-ok",
    CODE_CONNECTION_BLOCKED: "connection.blocked",
    CODE_CONNECTION_UNBLOCKED: "connection.unblocked",
    CODE_CONNECTION_UPDATE_SECRET: "connection.update-secret",
    CODE_CONNECTION_UPDATE_SECRET_OK: "connection.update-secret-ok",
    CODE_CHANNEL_OPEN: "channel.open",
    CODE_CHANNEL_OPEN_OK: "channel.open-ok",
    CODE_CHANNEL_FLOW: "channel.flow",
    CODE_CHANNEL_FLOW_OK: "channel.flow-ok",
    CODE_CHANNEL_CLOSE: "channel.close",
    CODE_CHANNEL_CLOSE_OK: "channel.close-ok",
    CODE_EXCHANGE_DECLARE: "exchange.declare",
    CODE_EXCHANGE_DECLARE_OK: "exchange.declare-ok",
    CODE_EXCHANGE_DELETE: "exchange.delete",
    CODE_EXCHANGE_DELETE_OK: "exchange.delete-ok",
    CODE_EXCHANGE_BIND: "exchange.bind",
    CODE_EXCHANGE_BIND_OK: "exchange.bind-ok",
    CODE_EXCHANGE_UNBIND: "exchange.unbind",
    CODE_EXCHANGE_UNBIND_OK: "exchange.unbind-ok",
    CODE_QUEUE_DECLARE: "queue.declare",
    CODE_QUEUE_DECLARE_OK: "queue.declare-ok",
    CODE_QUEUE_BIND: "queue.bind",
    CODE_QUEUE_BIND_OK: "queue.bind-ok",
    CODE_QUEUE_PURGE: "queue.purge",
    CODE_QUEUE_PURGE_OK: "queue.purge-ok",
    CODE_QUEUE_DELETE: "queue.delete",
    CODE_QUEUE_DELETE_OK: "queue.delete-ok",
    CODE_QUEUE_UNBIND: "queue.unbind",
    CODE_QUEUE_UNBIND_OK: "queue.unbind-ok",
    CODE_BASIC_QOS: "basic.qos",
    CODE_BASIC_QOS_OK: "basic.qos-ok",
    CODE_BASIC_CONSUME: "basic.consume",
    CODE_BASIC_CONSUME_OK: "basic.consume-ok",
    CODE_BASIC_CANCEL: "basic.cancel",
    CODE_BASIC_CANCEL_OK: "basic.cancel-ok",
    CODE_BASIC_PUBLISH: "basic.publish",
    CODE_BASIC_RETURN: "basic.return",
    CODE_BASIC_DELIVER: "basic.deliver",
    CODE_BASIC_GET: "basic.get",
    CODE_BASIC_GET_OK: "basic.get-ok",
    CODE_BASIC_GET_EMPTY: "basic.get-empty",
    CODE_BASIC_ACK: "basic.ack",
    CODE_BASIC_REJECT: "basic.reject",
    CODE_BASIC_RECOVER_ASYNC: "basic.recover-async",
    CODE_BASIC_RECOVER: "basic.recover",
    CODE_BASIC_RECOVER_OK: "basic.recover-ok",
    CODE_BASIC_NACK: "basic.nack",
    CODE_CONFIRM_SELECT: "confirm.select",
    CODE_CONFIRM_SELECT_OK: "confirm.select-ok",
    CODE_CONFIRM_LEVEL: "confirm.level",
    CODE_TX_SELECT: "tx.select",
    CODE_TX_SELECT_OK: "tx.select-ok",
    CODE_TX_COMMIT: "tx.commit",
    CODE_TX_COMMIT_OK: "tx.commit-ok",
    CODE_TX_ROLLBACK: "tx.rollback",
    CODE_TX_ROLLBACK_OK: "tx.rollback-ok",
    CODE_SESSION_FAILOVER_MAP: "session.failover-map",
    CODE_SESSION_MOVE: "session.move",
    CODE_SESSION_MESSAGE: "session.message",
    CODE_SESSION_RESUME: "session.resume",
    CODE_SESSION_RESUME_OK: "session.resume-ok",
    CODE_SESSION_RESUMED: "session.resumed",
    CODE_SESSION_SYNC: "session.sync",
    CODE_SESSION_SYNC_OK: "session.sync-ok",
}
