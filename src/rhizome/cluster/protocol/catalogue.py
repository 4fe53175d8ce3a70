"""Catalogue: every frame between brokers, with its number, direction, payload and handler.

A frame is an AMQP method frame of a private class (`link/frame_codec.py`); its number is the
method. Invariant: each number is defined here and nowhere else, and never changes its meaning. A
release that adds a frame sends it only to brokers that know it (docs/adr/0015): see `features` in
`broker_hello.py` and `LINK_VERSIONS`.

A broker that gets a frame whose number is below `RESERVED_FOR_LINKS`, and unknown, ignores it. Any
other frame with an unknown number ends the link: a broker that skipped it would differ from the
others.

How payloads are described: `u8`, `u16`, `u32`, `u64` and `i64` are big-endian; a shortstr has its
length in a u8; a table is an AMQP table; `n * (...)` is repeated n times. Of a table the names of
its fields are listed. `applied` is how far the sender has applied the cluster's log: a receiver
that is behind keeps the frame, and everything behind it, until it has caught up (R10).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HELLO: Final = 1

ROUTE: Final = 16
PUBLISH: Final = 17
CONFIRM: Final = 18
REFUSE: Final = 19
DELIVER: Final = 20
SETTLE: Final = 21
CREDIT: Final = 22
UNROUTED: Final = 23
FENCE: Final = 24
SETTLED: Final = 25
HELD: Final = 26
HAS_SETTLED: Final = 27

ATTACH: Final = 33
DETACH: Final = 34
DETACHED: Final = 35
END_SESSION: Final = 36
PREFETCH: Final = 37
CALL: Final = 38
ANSWER: Final = 39
ATTACH_BEGIN: Final = 40
ATTACH_END: Final = 41
ATTACHED_TO: Final = 42
REATTACH: Final = 43
META_BINDINGS: Final = 44
META_BINDINGS_KNOWN: Final = 45
SESSION_OF: Final = 46
SESSION_GONE: Final = 47

INVITE: Final = 48
FOLLOW: Final = 49
LIVE: Final = 50
RECORDS: Final = 51
REPLICATED: Final = 52
WANT: Final = 53
BACKFILL: Final = 54
REFUSED: Final = 55
FETCH: Final = 56
FETCHED: Final = 57
RESTORE: Final = 58
ASK_COPY_PROGRESS: Final = 59
COPY_PROGRESS: Final = 60

CONSENSUS: Final = 64
PROPOSE: Final = 65
GOSSIP: Final = 66
DEATH: Final = 67
RESUMABLE_CLIENTS: Final = 68

TX_ASK: Final = 72
TX_OUTCOME: Final = 73
TX_SETTLED: Final = 74

HTTP_REQUEST: Final = 200
HTTP_RESPONSE: Final = 201

RESERVED_FOR_LINKS: Final = 16
"""Numbers below this one belong to links themselves; unknown ones are ignored."""

FRAME_NUMBERS: Final = 256
"""Numbers are below this one, though a frame has room for larger ones: tables of handlers and
counts are indexed by them. The last number is never given to a frame: it stands for all larger
ones."""


@dataclass(frozen=True)
class Frame:
    """One kind of frame.

    ``sender`` and ``receiver`` are roles that brokers have to each other; ``urgent`` frames
    overtake the others that wait for the socket. ``handler`` is the function that takes it, by its
    full name, or the handler class of a frame that is too frequent for a Python function call.
    """

    number: int
    name: str
    sender: str
    receiver: str
    when: str
    payload: str
    handler: str
    urgent: bool = False


EDGE: Final = "edge"
HOME: Final = "home"
STANDBY: Final = "standby"
ROOT: Final = "root"
ANY: Final = "broker"

LINKS: Final = (
    Frame(
        HELLO,
        "HELLO",
        ANY,
        ANY,
        "the sender's hello has changed: it has another address, or was admitted to a cluster",
        "hello (`cluster/link/broker_hello.py`), as in the handshake",
        "rhizome.cluster.protocol.frame_dispatch.HelloHandler",
        urgent=True,
    ),
)

MESSAGES: Final = (
    Frame(
        ROUTE,
        "ROUTE",
        EDGE,
        HOME,
        "before the first publish on a route, and after the route has changed. It says what a slot "
        "stands for from now on. A slot may be given again; a link keeps the order of its frames, "
        "so both ends always mean the same by it",
        "applied u64, slot u16, vhost shortstr, tail (exchange shortstr, routing key shortstr), "
        "targets u8, each: group u16, n u16, n * queue u64; and if the group is 0: n u16, n * "
        "exchange shortstr, n u16, n * further key shortstr, n u16, n * private queue shortstr, "
        "relay u8. Group 0 stands for what is meant for private queues",
        "rhizome.cluster.peer_frame_dispatch.PeerBroker.routed",
    ),
    Frame(
        PUBLISH,
        "PUBLISH",
        EDGE,
        HOME,
        "an application has published a message whose queues are at home at the receiver, or "
        "private there. The sender keeps it until CONFIRM (A1)",
        "slot u16, flags u8 (1 persistent, 2 steered, 4 mandatory, 8 identity, 16 sequence, 32 "
        "letter), largest frame u32, for each target of the slot its number u64, [steered: "
        "expiration i64, priority u8], [letter: identity], content. Numbers are consecutive per "
        "edge and group",
        "rhizome.cluster.peer_frame_dispatch.PublishHandler",
    ),
    Frame(
        CONFIRM,
        "CONFIRM",
        HOME,
        EDGE,
        "at the end of a turn in which publishes became safe; cumulative",
        "group u16, number u64: everything up to it is safe; copied u8: 1 if standbys have what "
        "lies above the number confirmed before (release 0.1.0 sends no `copied`)",
        "rhizome.cluster.peer_frame_dispatch.ConfirmHandler",
    ),
    Frame(
        REFUSE,
        "REFUSE",
        HOME,
        EDGE,
        "a queue has refused a publish (it is full, and its overflow is reject-publish)",
        "group u16, number u64",
        "rhizome.cluster.peer_frame_dispatch.PeerBroker.publish_refused",
    ),
    Frame(
        DELIVER,
        "DELIVER",
        HOME,
        EDGE,
        "a consumer of the edge's applications is given a message",
        "consumer u32, tag u64, index u64, flags u8 (1 redelivered), largest frame u32, length "
        "u16 and tail (exchange and routing key as shortstrs; empty: that of the consumer's "
        "delivery before), content. A tag is that of the session's channel at the home",
        "rhizome.cluster.peer_frame_dispatch.DeliverHandler",
    ),
    Frame(
        SETTLE,
        "SETTLE",
        EDGE,
        HOME,
        "applications have acked, rejected or given back deliveries; at most one per turn, session "
        "and kind",
        "group u16, session u32, kind u8, number u64, n u32, n * (first tag u64, last tag u64)",
        "rhizome.cluster.peer_frame_dispatch.SettleHandler",
    ),
    Frame(
        CREDIT,
        "CREDIT",
        EDGE,
        HOME,
        "the application of a consumer has taken what was delivered: so many bytes more may come",
        "consumer u32, bytes u64",
        "rhizome.cluster.peer_frame_dispatch.CreditHandler",
    ),
    Frame(
        UNROUTED,
        "UNROUTED",
        HOME,
        EDGE,
        "a mandatory message has reached no queue",
        "group u16, number u64",
        "rhizome.cluster.peer_frame_dispatch.PeerBroker.publish_unrouted",
    ),
    Frame(
        FENCE,
        "FENCE",
        EDGE,
        HOME,
        "an application waits until what it has settled is safe: confirmed like a publish once "
        "everything settled before it is",
        "group u16, number u64",
        "rhizome.cluster.peer_frame_dispatch.PeerBroker.fenced",
    ),
    Frame(
        SETTLED,
        "SETTLED",
        HOME,
        EDGE,
        "at the end of a turn in which settlements were committed; cumulative",
        "group u16, number u64: what was settled up to it is committed",
        "rhizome.cluster.peer_frame_dispatch.SettledHandler",
    ),
)

ATTACHES: Final = (
    Frame(
        ATTACH_BEGIN,
        "ATTACH_BEGIN",
        EDGE,
        HOME,
        "an edge begins to attach to the home of a group: the link is up, an epoch has begun, or "
        "REATTACH came. What it presents follows, then ATTACH_END (A2)",
        "table {applied, group, epoch, first: the number of its oldest unconfirmed publish, since: "
        "the epoch in which it was home itself if something is left from then, seen}",
        "rhizome.cluster.home.edge_channels.EdgeConnection.attach_begin",
    ),
    Frame(
        HELD,
        "HELD",
        EDGE,
        HOME,
        "once for each session of an attach, and when a client resumes later: what the session "
        "holds, in the order of the tags from 1 on that both ends give it",
        "group u16, session u32, share i64, n u32, n * (consumer u32 (0: none that is attached), "
        "queue u64, first index u64, last index u64)",
        "rhizome.cluster.peer_frame_dispatch.PeerBroker.presented",
    ),
    Frame(
        HAS_SETTLED,
        "HAS_SETTLED",
        EDGE,
        HOME,
        "in an attach: everything that the edge has settled and that isn't committed yet",
        "group u16, kind u8, number u64, queue u64, n u32, n * (first index u64, last index u64)",
        "rhizome.cluster.peer_frame_dispatch.PeerBroker.has_settled",
    ),
    Frame(
        ATTACH_END,
        "ATTACH_END",
        EDGE,
        HOME,
        "the edge has presented everything",
        "table {applied, group, epoch, attach: the number of this attach}",
        "rhizome.cluster.home.edge_channels.EdgeConnection.attach_end",
    ),
    Frame(
        ATTACHED_TO,
        "ATTACHED_TO",
        HOME,
        EDGE,
        "the answer to ATTACH_END, before anything else of this epoch",
        "table {group, epoch, last: the last publish that was taken, after which the edge goes on "
        "(A1), start: below this index everything is known that the edge had in its log when it "
        "was home, void_from, doubtful, attach, starts}",
        "rhizome.cluster.peer_frame_dispatch.PeerBroker.attached_to",
    ),
    Frame(
        REATTACH,
        "REATTACH",
        HOME,
        EDGE,
        "a home that had stepped aside for a transfer serves again: attach anew",
        "table {group, epoch}",
        "rhizome.cluster.peer_frame_dispatch.PeerBroker.reattach",
    ),
    Frame(
        ATTACH,
        "ATTACH",
        EDGE,
        HOME,
        "an application consumes, or a consumer is attached again after ATTACH_BEGIN; answered by "
        "ANSWER",
        "table {applied, call, group, vhost, queue, id, session, share, consumer, tag, exclusive, "
        "priority, prefetch, window, delivered, reached, arguments}",
        "rhizome.cluster.home.edge_channels.EdgeConnection.attach",
    ),
    Frame(
        DETACH,
        "DETACH",
        EDGE,
        HOME,
        "a consumer is gone",
        "table {applied, group, consumer}",
        "rhizome.cluster.home.edge_channels.EdgeConnection.detach",
    ),
    Frame(
        DETACHED,
        "DETACHED",
        HOME,
        EDGE,
        "the answer to DETACH, behind the consumer's last delivery",
        "table {consumer, unused}",
        "rhizome.cluster.peer_frame_dispatch.PeerBroker.detached",
    ),
    Frame(
        END_SESSION,
        "END_SESSION",
        EDGE,
        HOME,
        "a channel is closed: the home takes back what it holds",
        "table {applied, group, session}",
        "rhizome.cluster.home.edge_channels.EdgeConnection.end_session",
    ),
    Frame(
        PREFETCH,
        "PREFETCH",
        EDGE,
        HOME,
        "how much a channel may hold of this home has changed, for all its consumers together",
        "table {applied, group, session, share: 0 for any number, -1 for none}",
        "rhizome.cluster.home.edge_channels.EdgeConnection.set_prefetch",
    ),
    Frame(
        SESSION_OF,
        "SESSION_OF",
        EDGE,
        HOME,
        "whose a session is, if its client can resume; again when the client is cut off or back",
        "table {applied, group, session, client, visit, kept: it only keeps what the client held, "
        "back: the client has presented everything there}",
        "rhizome.cluster.home.edge_channels.EdgeConnection.session_of",
    ),
    Frame(
        SESSION_GONE,
        "SESSION_GONE",
        HOME,
        EDGE,
        "a session has nothing to keep any more: its client is back elsewhere",
        "table {group, session}",
        "rhizome.cluster.peer_frame_dispatch.PeerBroker.session_gone",
    ),
    Frame(
        CALL,
        "CALL",
        EDGE,
        HOME,
        "an application gets, counts, purges or deletes at a queue; answered by ANSWER",
        "table {applied, call, group, vhost, queue, id, op: get, counts, purge or delete, and what "
        "the operation takes}",
        "rhizome.cluster.home.edge_channels.EdgeConnection.call",
    ),
    Frame(
        ANSWER,
        "ANSWER",
        HOME,
        EDGE,
        "ATTACH or CALL is done, or failed",
        "table {call, group, code: 0, or that of an error, text, and what the operation answers}",
        "rhizome.cluster.peer_frame_dispatch.PeerBroker.answered",
    ),
    Frame(
        META_BINDINGS,
        "META_BINDINGS",
        ANY,
        ANY,
        "what the sender's private queues want has changed; the first on a link is the whole (A3)",
        "table {applied, number, whole, changes, root, private, leased, private_behind}",
        "rhizome.cluster.peer_frame_dispatch.PeerBroker.meta_bindings_came",
    ),
    Frame(
        META_BINDINGS_KNOWN,
        "META_BINDINGS_KNOWN",
        ANY,
        ANY,
        "everything up to a number is known at the sender, and wherever it would relay it",
        "table {applied, number}",
        "rhizome.cluster.peer_frame_dispatch.PeerBroker.meta_bindings_known",
    ),
)

REPLICATION: Final = (
    Frame(
        INVITE,
        "INVITE",
        HOME,
        STANDBY,
        "a home wants a copy at this broker: the link is up, an epoch has begun, or the standby "
        "refused a while ago",
        "table {applied, group, epoch, starts: n * (epoch u32, first index u64), whole: the epoch "
        "began with everything that the log had, not with what a disk had kept of it; of a stream "
        "also segment, number, offset: where the home's log begins}",
        "rhizome.cluster.group_roles.GroupRoles.invited",
    ),
    Frame(
        FOLLOW,
        "FOLLOW",
        STANDBY,
        HOME,
        "the answer to INVITE: a copy is kept from now on",
        "table {applied, group, epoch, incarnation, resume: it lacks nothing up to `memory`, "
        "memory: where the copy is, offset: of a stream, that of the next message, refusals: it "
        "understands REFUSALS in LIVE (since 0.2)}",
        "rhizome.cluster.group_roles.GroupRoles.followed",
    ),
    Frame(
        LIVE,
        "LIVE",
        HOME,
        STANDBY,
        "a copy can't go on from where it is: what is alive, in several frames",
        "group u16, epoch u32, n u64: true at this end of the log, listing u32, flags u8 (1 the "
        "last of its listing, 2 the first), items (`cluster/protocol/replication_codec.py`)",
        "rhizome.cluster.group_roles.GroupRoles.live",
    ),
    Frame(
        RECORDS,
        "RECORDS",
        HOME,
        STANDBY,
        "at the end of a turn in which the group's log has grown; the records are the bytes of the "
        "journal",
        "group u16, epoch u32, first u64, last u64, committed in memory u64, committed on disk "
        "u64, records",
        "rhizome.cluster.group_roles.RecordsHandler",
    ),
    Frame(
        REPLICATED,
        "REPLICATED",
        STANDBY,
        HOME,
        "at the end of a turn in which the copy, or its disk, has got further; cumulative",
        "group u16, epoch u32, memory u64, disk u64, state u8 (0 installing, 1 on disk, 2 whole), "
        "listing u32 (the last one that it has begun since FOLLOW; 0: none)",
        "rhizome.cluster.group_roles.ReplicatedHandler",
    ),
    Frame(
        WANT,
        "WANT",
        STANDBY,
        HOME,
        "messages of a live set are missing; one at a time",
        "group u16, epoch u32, listing u32, n u32, n * (queue u32, first u64, count u32)",
        "rhizome.cluster.group_roles.GroupRoles.wanted",
    ),
    Frame(
        BACKFILL,
        "BACKFILL",
        HOME,
        STANDBY,
        "the answer to WANT, in several frames",
        "group u16, epoch u32, answered u64, records: of the first `answered` messages of the WANT "
        "those that are still alive",
        "rhizome.cluster.group_roles.GroupRoles.backfilled",
    ),
    Frame(
        REFUSED,
        "REFUSED",
        ANY,
        HOME,
        "a broker doesn't follow this home: a later epoch has begun, or it can't go on; it is "
        "invited again",
        "table {applied, group, epoch, reason}",
        "rhizome.cluster.group_roles.GroupRoles.refused",
    ),
    Frame(
        FETCH,
        "FETCH",
        HOME,
        ANY,
        "the home can't read a message from its disk; only to brokers with the feature `fetches`",
        "group u16, epoch u32, queue u32, index u64, in epoch u32: the message that took this "
        "index in that epoch",
        "rhizome.cluster.group_roles.GroupRoles.fetch",
    ),
    Frame(
        FETCHED,
        "FETCHED",
        ANY,
        HOME,
        "the answer to FETCH",
        "group u16, epoch u32, queue u32, index u64, record: of that message; nothing if it isn't "
        "here, or can't be read here either",
        "rhizome.cluster.group_roles.GroupRoles.fetched",
    ),
    Frame(
        RESTORE,
        "RESTORE",
        HOME,
        STANDBY,
        "the home has got from elsewhere a message that it could not read, and so could not send; "
        "only to brokers with the feature `fetches`",
        "group u16, epoch u32, record",
        "rhizome.cluster.group_roles.GroupRoles.restored",
    ),
)

AGREEMENT: Final = (
    Frame(
        CONSENSUS,
        "CONSENSUS",
        ANY,
        ANY,
        "votes, entries of the cluster's log, heartbeats and leases (R1 to R9)",
        "one message of `cluster/consensus/consensus_messages.py`",
        "rhizome.cluster.node.Node.consensus_message",
        urgent=True,
    ),
    Frame(
        PROPOSE,
        "PROPOSE",
        ANY,
        ROOT,
        "a broker wants the cluster's state changed; sent again to every new root (R10)",
        "a command in its envelope (`cluster/state/cluster_commands.py`)",
        "rhizome.cluster.node.Node.proposed",
        urgent=True,
    ),
    Frame(
        GOSSIP,
        "GOSSIP",
        ANY,
        ANY,
        "every second: what people are shown, what counts for limits of the whole cluster, and "
        "what is known of logins. No promise about messages relies on it",
        "table {connections, isolated, ready, used, relayed, messages, records, lags, links, "
        "disk_full, backlog_fills_disk, failed_homes, known_logins, upgrades}",
        "rhizome.cluster.node.Node.gossiped",
    ),
    Frame(
        DEATH,
        "DEATH",
        ANY,
        ANY,
        "somebody has seen that the process of an incarnation ended; each broker passes it on once "
        "(R15). Only to brokers with the feature `deaths`",
        "certificate (`cluster/link/death_certificate.py`): table {whose, seen_by, proofs}",
        "rhizome.cluster.death_notices.DeathNotices.told",
        urgent=True,
    ),
    Frame(
        RESUMABLE_CLIENTS,
        "RESUMABLE_CLIENTS",
        ANY,
        ANY,
        "which clients here can resume, when that has changed: if this broker goes, a new home "
        "waits for them (J12). Only to primaries with the feature `resumable-clients`",
        'table of resume ids, each with an array of the groups from which the client consumes; "" '
        "stands for clients that are not named",
        "rhizome.cluster.clients.resumable_clients.ResumableClients.received",
    ),
    Frame(
        ASK_COPY_PROGRESS,
        "ASK_COPY_PROGRESS",
        ROOT,
        ANY,
        "a home is gone, and no copy is known to be whole: how far are the copies at this broker? "
        "(G3)",
        "table {groups: [number, ...]}",
        "rhizome.cluster.takeover.takeover_driver.TakeoverDriver.asked",
        urgent=True,
    ),
    Frame(
        COPY_PROGRESS,
        "COPY_PROGRESS",
        ANY,
        ROOT,
        "the answer to ASK_COPY_PROGRESS",
        "table {standings: [{group, epoch, index}, ...]}: of the last record that each copy has; "
        "index -1: there is none that may become home",
        "rhizome.cluster.takeover.takeover_driver.TakeoverDriver.answered",
        urgent=True,
    ),
)

TRANSACTIONS: Final = (
    Frame(
        TX_ASK,
        "TX_ASK",
        HOME,
        HOME,
        "a group that has prepared its part and has heard nothing asks the first group of the "
        "transaction; sent again until it is answered (L4)",
        "table {edge, number, decider, party, groups}",
        "rhizome.cluster.transactions.transaction_transport.TransactionTransport.outcome_asked",
    ),
    Frame(
        TX_OUTCOME,
        "TX_OUTCOME",
        HOME,
        "home, edge",
        "the first group tells what was decided; sent again until TX_SETTLED",
        "table {edge, number, decider, party: the group that is told, 0 for the edge, committed}",
        "rhizome.cluster.transactions.transaction_transport.TransactionTransport.outcome_told",
    ),
    Frame(
        TX_SETTLED,
        "TX_SETTLED",
        "home, edge",
        HOME,
        "the outcome is safe at the sender",
        "table {edge, number, decider, party: the group that has it, 0 for the edge}",
        "rhizome.cluster.transactions.transaction_transport.TransactionTransport.part_settled",
    ),
)

MANAGEMENT: Final = (
    Frame(
        HTTP_REQUEST,
        "HTTP_REQUEST",
        ANY,
        ANY,
        "the HTTP API of one broker asks another one's; a primary passes on what secondaries ask "
        "each other",
        "number u64, length u32 and head (JSON), body",
        "rhizome.server.clustered_broker.peer_rpc.PeerRpc.asked",
    ),
    Frame(
        HTTP_RESPONSE,
        "HTTP_RESPONSE",
        ANY,
        ANY,
        "the answer to HTTP_REQUEST, in pieces that go out only while the link has room",
        "number u64, 1 if it is the last u8, a piece of: length u32 and head (JSON), body",
        "rhizome.server.clustered_broker.peer_rpc.PeerRpc.told",
    ),
)

TOPICS: Final = (
    ("Links", LINKS),
    ("Messages between an edge and a home", MESSAGES),
    ("Attaching, consumers and private queues", ATTACHES),
    ("Replication between a home and its standbys", REPLICATION),
    ("Agreement", AGREEMENT),
    ("Transactions", TRANSACTIONS),
    ("Management", MANAGEMENT),
)
"""The order in which the frames are shown to people."""

FRAMES: Final[dict[int, Frame]] = {
    frame.number: frame
    for frame in sorted(
        (each for _, frames in TOPICS for each in frames), key=lambda frame: frame.number
    )
}


def name_of(number: int) -> str:
    """The name of a frame; its number if this release doesn't know it."""
    frame = FRAMES.get(number)
    return str(number) if frame is None else frame.name
