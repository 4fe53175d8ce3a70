"""Node: one broker's place in its cluster, and the broker's port to it. Sans-IO.

It composes consensus, the cluster state, the links and what goes over them. Its driver (the server,
the simulator) keeps to this order in every wake-up:

1. ``begin(now_ms)``, with a monotonic clock, before any input of links, store or clients;
2. inputs: of links (``link/link.py``), ``written`` after a sync, ``tick`` every 100 ms;
3. the broker's ``end_turn``; then ``end_turn`` here;
4. submit what the journal has; flush clients and links.

A broker is ready once it holds a lease and has applied the registration of its own incarnation.
Before that it admits no application, and frames of other brokers about messages wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from rhizome.broker.access.application_cluster_token import ApplicationTokens
from rhizome.broker.cluster_port import Away, Cluster, Holdings, Waiter
from rhizome.broker.fault_log import FAULT_GROUP, FAULT_LINK, FAULT_TIMER, FAULT_TURN
from rhizome.broker.metadata.metadata_changes import Outcome
from rhizome.broker.metadata.metadata_commands import (
    Command,
    DamagedCommandError,
    DeclareExchange,
    DeclareQueue,
)
from rhizome.broker.metadata.new_queue_arguments import check_known_to
from rhizome.broker.metadata.vhost_metadata_byte_quota import check_command, vhost_of
from rhizome.broker.publishing.delayed_messages import DELAYED_QUEUE
from rhizome.broker.publishing.recent_history import history_of
from rhizome.broker.queue.queue_recovery import restore_queue
from rhizome.broker.routing.exchange_types import DELAYED_KIND
from rhizome.broker.turn import TURN_WORK_MAX
from rhizome.cluster.clients.client_relocation import ClientDrain
from rhizome.cluster.clients.connect_policy import Admission, AdmissionRules
from rhizome.cluster.clients.failover_map_push import FailoverMapPush
from rhizome.cluster.clients.resumable_clients import ResumableClients
from rhizome.cluster.committed_backlog import CommittedBacklog
from rhizome.cluster.consensus import Consensus, consensus_messages
from rhizome.cluster.consensus.consensus_events import (
    ClusterNamed,
    Event,
    LeaseGained,
    LeaseLost,
    PeerRefused,
    RootKnown,
    RootReady,
)
from rhizome.cluster.consensus.consensus_output import Ready
from rhizome.cluster.consensus.dataclass_codec import decode
from rhizome.cluster.consensus.log.cluster_store import ClusterStore, Entry
from rhizome.cluster.consensus.log.log_entry_payloads import (
    APPLICATION,
    REGISTRATION,
    RETIREMENT,
    Registration,
    Retirement,
)
from rhizome.cluster.consensus.settings import STALL_MS
from rhizome.cluster.death_notices import DeathNotices
from rhizome.cluster.edge.edge import Edge
from rhizome.cluster.edge.edge_group import EdgeGroup
from rhizome.cluster.gossip import Gossip
from rhizome.cluster.group_roles import GroupRoles
from rhizome.cluster.home.edge_reconciliation import EdgeSessionsByGroup
from rhizome.cluster.home.resumed_client_holdings import ClientResumedDeliveries
from rhizome.cluster.home.settings import HomeSettings
from rhizome.cluster.link.broker_hello import PLAIN_NAMES, SECONDARY, Hello
from rhizome.cluster.link.link import Link
from rhizome.cluster.link.link_manager import LinkTable
from rhizome.cluster.node_observer import NodeObserver
from rhizome.cluster.node_port import NodePort
from rhizome.cluster.peer_frame_dispatch import PeerBroker
from rhizome.cluster.peer_link_state import Applied
from rhizome.cluster.private_queues.auto_delete_exchanges import drop_unused_exchanges
from rhizome.cluster.private_queues.broker_generated_names import name_ending, owner_of
from rhizome.cluster.private_queues.meta_binding_entry import MetaBinding, meta_binding_of
from rhizome.cluster.private_queues.meta_bindings import MetaBindings
from rhizome.cluster.protocol.attach_rule_switches import AttachRules
from rhizome.cluster.protocol.catalogue import (
    ASK_COPY_PROGRESS,
    CONSENSUS,
    COPY_PROGRESS,
    DEATH,
    GOSSIP,
    PROPOSE,
    RESUMABLE_CLIENTS,
)
from rhizome.cluster.protocol.frame_dispatch import FrameTable, PayloadHandler
from rhizome.cluster.state.cluster_commands import PutSettings, RegisterBroker, RetireBroker
from rhizome.cluster.state.cluster_state import Applied as AppliedEntry
from rhizome.cluster.state.cluster_state import ClusterState, StateFailed
from rhizome.cluster.state.failover_map import UnknownPolicyError
from rhizome.cluster.state.pending_proposals import Proposal, Proposals
from rhizome.cluster.state_listener import StateListener, forget_departed_brokers
from rhizome.cluster.takeover.settings import RootSettings
from rhizome.cluster.takeover.takeover_driver import TakeoverDriver
from rhizome.errors import AmqpError, CommandInvalid, InternalFault
from rhizome.journal.recovery import Recovered

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.connection.connection import Connection
    from rhizome.broker.queue.queue import Queue
    from rhizome.broker.routing.bindings_and_destinations import Binding, Destination
    from rhizome.broker.routing.exchange import Exchange
    from rhizome.journal.checkpoint import CheckpointBuilder
    from rhizome.journal.paged_index import PagedIndex
    from rhizome.journal.salvaged_messages import SalvageManifest

TICK_PARTS: Final = (
    "the timers of links",
    "the timers of elections",
    "the timers of takeovers",
    "the timers of groups",
    "proposals that wait",
    "the timers of edges",
    "the timers of homes",
    "the timers of private queues",
    "gossip",
)
"""What happens because time passes, in this order."""
TURN_PARTS: Final = (
    "what the cluster has agreed on",
    "answers to proposals",
    "what edges send",
    "what homes and standbys send",
    "what homes answer edges",
)
"""What a turn ends with, in this order; then each peer broker."""

EXPLAIN_AFTER_MS: Final = 1_000
"""Publishers that wait for a broker are told so when it has been away for this long."""


class Node(Cluster):
    """One broker's place in its cluster.

    Invariant: ``applied.index`` is that of the last committed entry whose effects the broker's
    state has. ``frames`` has the handlers of frames that aren't about messages; other parts add
    theirs before the first link is up. ``when_down`` hears of each link that is gone.
    """

    broker: Broker
    consensus: Consensus
    links: LinkTable
    state: ClusterState
    store: ClusterStore
    observer: NodeObserver
    applied: Applied
    backlog: CommittedBacklog
    frames: FrameTable
    meta_bindings: MetaBindings
    edge: Edge
    tenures: EdgeSessionsByGroup
    deaths: DeathNotices
    peer_brokers: dict[str, PeerBroker]
    proposals: Proposals
    now_ms: int
    ready: bool
    isolated: bool

    def __init__(
        self,
        broker: Broker,
        me: Hello,
        consensus: Consensus,
        state: ClusterState,
        store: ClusterStore,
        observer: NodeObserver,
        settings: PutSettings,
        first_commands: Callable[[], list[Command]],
        recovered: Recovered,
        rules: AdmissionRules,
        root_settings: RootSettings,
        home_settings: HomeSettings,
        now_ms: int,
    ) -> None:
        """``settings`` and ``first_commands``: what a root proposes to a cluster that has none yet.
        ``recovered``: what the journal has kept."""
        super().__init__()
        self.broker = broker
        self.me = me
        self.consensus = consensus
        self.state = state
        self.store = store
        self.observer = observer
        self.settings = settings
        self.first_commands = first_commands
        attach_rules = AttachRules()
        self.edge = Edge(broker, attach_rules)
        self.tenures = EdgeSessionsByGroup(broker, state, attach_rules)
        self.now_ms = now_ms
        self.frames = FrameTable()
        self.admission = Admission(self, rules)
        self.failover_map_push = FailoverMapPush(state, me.name)
        self.client_drain = ClientDrain(self)
        self.applied = Applied()
        self.backlog = CommittedBacklog()
        self.takeover_driver = TakeoverDriver(self, root_settings)
        self.meta_bindings = MetaBindings(broker, me.role == SECONDARY)
        port = RolesNodePort(self, me, state, self.applied)
        self.roles = GroupRoles(port, self.edge, self.tenures, recovered, home_settings)
        self.kept = recovered.queues
        """Messages of queues without copies, until the queues are made."""
        self.crashed = not recovered.clean
        """Whether the last process that used the journal did not stop cleanly."""
        self.peer_brokers = {}
        self.proposals = Proposals(me.incarnation)
        self.ready = self._begun = False
        self.isolated = True
        self.when_ready: list[Callable[[], None]] = []
        self.when_down: list[Callable[[Link], None]] = []
        self.gossip, self.resumable_clients = Gossip(self), ResumableClients(self)
        broker.limits.elsewhere = self.gossip.used_elsewhere
        broker.limits.queues_elsewhere = self.meta_bindings.queues_elsewhere
        self.state_listener = StateListener(self)
        self.down_since_ms: dict[str, int] = {}
        self._register()
        broker.isolate("this broker has not joined its cluster yet")

    def attach(self, links: LinkTable) -> None:
        """Set the links, which need a handler before there is a node."""
        self.links = links

    def recover(self) -> None:
        """Apply what the store knows to be committed; then this broker may vote (R5)."""
        try:
            self._pump()
            while not self.backlog.is_empty() and not self.broker.disabled:
                self._pump()
        except StateFailed as error:
            # The node starts all the same, to say why it serves nobody.
            self._fault(0, error)
        self.consensus.started(self.now_ms)

    # ---- the port -------------------------------------------------------------------------------

    def propose(self, command: Command, waiter: Waiter | None) -> None:
        vhost = vhost_of(command)
        if vhost is not None:
            under_way = self.proposals.bytes_under_way.get(vhost, 0)
            takes_whole = waiter is not None and waiter.takes_whole_state()
            try:
                check_command(self.broker.state, command, under_way, takes_whole)
                check_known_to(self.broker.older_peers, command)
            except AmqpError as error:
                if waiter is not None:
                    waiter.resolved(Outcome(error=error))
                return
        if isinstance(command, DeclareExchange) and command.kind == DELAYED_KIND:
            # Messages published there must find a place to wait at once.
            held = DeclareQueue(command.vhost, DELAYED_QUEUE, durable=True)
            self._send(self.proposals.make(held, None, self.now_ms))
        history = history_of(self.broker.state, command)
        if history is not None:
            self._send(self.proposals.make(history, None, self.now_ms))
        self._send(self.proposals.make(command, waiter, self.now_ms))

    def _send(self, proposal: Proposal) -> None:
        """Bring a proposal to the root; it is sent again when there is another root."""
        if self.consensus.is_root:
            self.consensus.submit(proposal.payload, self.now_ms)
            return
        link = self.links.link_to(self.consensus.root)
        if link is not None:
            link.send_urgent(PROPOSE, proposal.payload)

    def _send_all(self) -> None:
        for proposal in self.proposals.open.values():
            self._send(proposal)

    def queue_made(self, queue: Queue) -> None:
        self.roles.queue_made(queue)
        queue.away = self.away(queue)
        found = self.kept.pop(queue.definition.id, None)
        if found is not None:
            restore_queue(queue, found, self.crashed)

    def _drop_orphans(self) -> None:
        """Drop the messages of queues that were deleted while this broker was away (H13)."""
        for queue_id, found in self.kept.items():
            for level in found.levels.values():
                self.broker.pager.release_paged(level)
            self.broker.log.drop(queue_id)
        self.kept = {}
        self.broker.streams.forget_others()

    def away(self, queue: Queue) -> Away | None:
        group = self.state.group_of(queue.definition)
        if group is None or self.roles.serves(group.id):
            return None
        return self.edge_group(group.id)

    def handed_over(self, token: i64) -> None:
        self.roles.handed_over(token)

    def tell_news(self) -> None:
        self.gossip.tell_news()

    def alarm_of_copies(self) -> str:
        return self.gossip.alarm_of_copies()

    def write_checkpoint(self, builder: CheckpointBuilder) -> None:
        self.roles.write_checkpoint(builder)

    def passive_indexes(self) -> list[tuple[int, PagedIndex]]:
        return self.roles.passive_indexes()

    def submitted(self) -> None:
        for peer_broker in self.peer_brokers.values():
            if peer_broker.edge_connection is not None:
                peer_broker.edge_connection.answers.try_again()

    def ask_copies(self, queue: Queue, index: i64) -> bool:
        home = self.roles.homes.get(queue.definition.group)
        return home is not None and home.copies.fetches.ask(queue.id, index)

    def holdings_of(self, connection: Connection) -> Holdings:
        return ClientResumedDeliveries(self.tenures, connection.resume_id, connection.visit)

    def client_left(self, channel: Channel) -> None:
        self.tenures.client_left(channel.connection.resume_id, channel.visit)
        self.edge.client_left(channel)

    def client_came_back(self, connection: Connection) -> None:
        self.tenures.client_came_back(connection.resume_id, connection.visit)
        self.edge.client_came_back(connection)

    def channel_released(self, channel: Channel) -> None:
        self.edge.release(channel)

    def private_declared(self, vhost: str, name: str) -> None:
        if owner_of(name) != self.me.name:
            self.meta_bindings.add(meta_binding_of(vhost, "", name, {}), {})

    def private_deleted(self, vhost: str, name: str) -> None:
        if owner_of(name) != self.me.name:
            self.meta_bindings.remove(meta_binding_of(vhost, "", name, {}))

    def private_bound(self, vhost: str, binding: Binding) -> None:
        self.meta_bindings.add(self._interest(vhost, binding), binding.arguments)

    def private_unbound(self, vhost: str, binding: Binding) -> None:
        self.meta_bindings.remove(self._interest(vhost, binding))

    def _interest(self, vhost: str, binding: Binding) -> MetaBinding:
        queue = binding.destination.name if binding.chooses else ""
        return meta_binding_of(vhost, binding.source, binding.key, binding.arguments, queue)

    def private_applied(self, outcome: Outcome, waiter: Waiter) -> None:
        queue = outcome.queue
        if queue is not None and self.broker.limits.counts_queues(queue.vhost, queue.user):
            self.meta_bindings.recount()
        self.meta_bindings.when_known(outcome, waiter)

    def private_elsewhere(self, vhost: str, name: str) -> Destination | None:
        return self.meta_bindings.private_elsewhere(vhost, name)

    def is_private_elsewhere(self, vhost: str, name: str) -> bool:
        return self.meta_bindings.is_private_elsewhere(vhost, name)

    def exchange_unused(self, exchange: Exchange) -> None:
        """The exchange is deleted once it is certain that nobody else has private queues bound to
        it."""
        self.meta_bindings.unused[exchange] = None

    def demand(self, tokens: ApplicationTokens) -> None:
        self.admission.tokens = tokens

    def application_tokens(self) -> ApplicationTokens:
        return self.admission.tokens

    def destination(self, connection: Connection) -> str:
        return self.admission.destination(connection)

    def known_hosts(self) -> str:
        return self.admission.known_hosts()

    def opened(self, connection: Connection) -> None:
        self.failover_map_push.opened(connection)

    def name_suffix(self) -> str:
        return name_ending(self.me.name, self._has_older_peer())

    def _has_older_peer(self) -> bool:
        for peer in self.meta_bindings.peers.values():
            link_channel = peer.link_channel
            if link_channel is not None and PLAIN_NAMES not in link_channel.link.peer.features:
                return True
        return False

    # ---- peer brokers ----------------------------------------------------------------------------

    def peer_broker(self, name: str) -> PeerBroker:
        peer_broker = self.peer_brokers.get(name)
        if peer_broker is None:
            peer_broker = PeerBroker(
                self.broker,
                self.frames,
                self.applied,
                self.meta_bindings,
                self.edge,
                self.tenures,
                name,
            )
            peer_broker.waits = not self.ready
            self.peer_brokers[name] = peer_broker
        return peer_broker

    def edge_group(self, group: int) -> EdgeGroup:
        """What this broker has of a group whose home is another one."""
        return self.edge.group(group)

    def link_up(self, link: Link) -> None:
        self.down_since_ms.pop(link.name, None)
        self.observer.link_up(link.name)
        self.gossip.link_up()
        self.resumable_clients.link_up(link)
        self.peer_broker(link.name).connect(link)
        self.edge.explain(self.peer_broker(link.name), "")
        self.consensus.peer_up(link.peer, self.now_ms)
        self.roles.link_up(link)
        if link.name == self.consensus.root:
            self._send_all()

    def link_down(self, link: Link, reason: str) -> None:
        for hear in self.when_down:
            hear(link)
        self.down_since_ms[link.name] = self.now_ms
        self.gossip.forget(link.name)
        self.resumable_clients.link_down(link)
        self.observer.link_down(link.name, reason)
        try:
            self.peer_broker(link.name).disconnect()
        except Exception as error:
            self.broker.report_bug(error, f"the end of the link with {link.name}", FAULT_LINK)
        self.roles.link_down(link.name)
        self.consensus.peer_down(link.name, self.now_ms)

    def _register(self) -> None:
        """Take the frames that aren't about messages; each peer broker takes those that are."""
        frames = self.frames
        self.deaths = DeathNotices(self)
        frames.register(CONSENSUS, PayloadHandler(self.consensus_message))
        frames.register(PROPOSE, PayloadHandler(self.proposed))
        frames.register(GOSSIP, PayloadHandler(self.gossiped))
        frames.register(DEATH, PayloadHandler(self.deaths.told))
        frames.register(RESUMABLE_CLIENTS, PayloadHandler(self.resumable_clients.received))
        frames.register(ASK_COPY_PROGRESS, PayloadHandler(self.takeover_driver.asked))
        frames.register(COPY_PROGRESS, PayloadHandler(self.takeover_driver.answered))
        self.roles.register(frames)

    def consensus_message(self, link: Link, payload: bytes) -> None:
        self.consensus.step(link.name, consensus_messages.decode(payload), self.now_ms)

    def proposed(self, link: Link, payload: bytes) -> None:
        """A broker proposes a command; one that can't be applied here ends the link."""
        try:
            self.state.check(payload)
        except (DamagedCommandError, UnknownPolicyError) as error:
            raise CommandInvalid(f"what {link.name} proposes can't be applied: {error}") from None
        self.consensus.submit(payload, self.now_ms)

    def gossiped(self, link: Link, payload: bytes) -> None:
        self.gossip.received(link.name, payload)
        self.admission.heard_of(link.name)

    # ---- turns ----------------------------------------------------------------------------------

    def begin(self, now_ms: int) -> None:
        """A wake-up begins. A lease that is over counts from here on, not from its event: what is
        read in this wake-up would be routed by a topology that others have changed (R9, R10)."""
        if self.consensus.woken(self.now_ms, now_ms) and self.broker.may_deliver:
            self._set_isolated(True)
            self.meta_bindings.set_leaseless(True)
        away_ms = now_ms - self.now_ms
        self.now_ms = now_ms
        self.links.now_ms = now_ms
        self.takeover_driver.begin(now_ms)
        if away_ms > STALL_MS:
            self.takeover_driver.takeover.stood_still(away_ms)
            self.roles.stood_still(away_ms)

    def tick(self) -> None:
        """Time has passed. A fault in one part must not keep the others from their turn."""
        part = 0
        while part < len(TICK_PARTS):
            try:
                self._tick(part)
            except Exception as error:
                self.broker.report_bug(error, TICK_PARTS[part], FAULT_TIMER)
            part += 1

    def _tick(self, part: int) -> None:
        if part == 0:
            self.links.tick(self.now_ms)
        elif part == 1:
            self.consensus.tick(self.now_ms)
        elif part == 2:
            self.takeover_driver.tick()
        elif part == 3:
            self.roles.tick()
        elif part == 4:
            self._give_up_proposals()
            self._explain_waiting()
        elif part == 5:
            self.edge.tick(self.broker.turn.now_ms)
        elif part == 6:
            self.tenures.tick(self.broker.turn.now_ms)
        elif part == 7:
            self.meta_bindings.tick(self.broker.turn.now_ms)
        else:
            self.gossip.tick()
            self.client_drain.tick()
            self.resumable_clients.tick()

    def next_deadline_ms(self) -> int:
        return min(
            self.consensus.next_deadline_ms(),
            self.links.next_deadline_ms(),
            self.takeover_driver.deadline_ms(),
        )

    def synced(self, token: i64) -> None:
        """The journal has synced everything below this position."""
        self.roles.synced(token)

    def written(self, token: int) -> None:
        """The store has synced everything up to ``token``."""
        self.consensus.written(token, self.now_ms)

    def end_turn(self) -> None:
        """After the broker's own end of the turn: agree, apply, and put onto the links what this
        turn made. Whatever one part raises, the others are done."""
        part = 0
        while part < len(TURN_PARTS):
            try:
                self._end_part(part)
            except Exception as error:
                self._fault(part, error)
            part += 1
        for peer_broker in self.peer_brokers.values():
            try:
                peer_broker.end_turn()
            except Exception as failure:
                self._link_fault(peer_broker, failure)

    def _end_part(self, part: int) -> None:
        if part == 0:
            self._pump()
        elif part == 1:
            self._answer_settled()
            if self.meta_bindings.unused:
                drop_unused_exchanges(self)
        elif part == 2:
            self.edge.end_turn()
        elif part == 3:
            self.roles.end_turn()
        else:
            self.tenures.end_turn()

    def _fault(self, part: int, error: Exception) -> None:
        if isinstance(error, StateFailed):
            self.broker.disable(error, "the cluster's log", str(error))
        elif part == 0:
            # What was agreed on may be half done, and what was promised may not be written.
            self.broker.disable(error, TURN_PARTS[part])
        else:
            self.broker.report_bug(error, TURN_PARTS[part], FAULT_TURN)

    def _link_fault(self, peer_broker: PeerBroker, error: Exception) -> None:
        self.broker.report_bug(error, f"link with {peer_broker.name}", FAULT_LINK)
        link = self.links.link_to(peer_broker.name)
        if link is not None:
            link.fail(InternalFault("the broker made a mistake; its log has the details"))

    def flushed(self, link: Link) -> None:
        """The driver has written what the link's socket takes."""
        peer_broker = self.peer_brokers.get(link.name)
        if peer_broker is not None:
            peer_broker.flushed()

    def _pump(self) -> None:
        """Hand on what consensus has for the store and the links, and apply what is committed.

        What a turn has no time for is applied in later ones. The others hear of this broker between
        them, so it keeps its lease, or its role of root, while many commands come that take long.
        """
        limit = self.broker.turn.work + (TURN_WORK_MAX if self.backlog.takes_turn() else 0)
        # A broker that was disabled is silent: its lease ends, and others take over.
        while not self.broker.disabled:
            ready = self.consensus.ready() if self.consensus.touched else Ready()
            is_full = self.broker.turn.work >= limit or self.backlog.is_empty()
            if ready.is_empty() and is_full:
                break
            if ready.batch is not None:
                self.store.submit(ready.batch, ready.token)
            for name, message in ready.messages:
                link = self.links.link_to(name)
                if link is not None:
                    link.send_urgent(CONSENSUS, consensus_messages.encode(message))
            self.backlog.take(ready)
            if ready.snapshot is not None:
                self._install(ready.snapshot.index, ready.snapshot.data)
            if self._apply_until(limit) or ready.snapshot is not None:
                self._caught_up()
            if not self.backlog.is_empty():
                self._notice_lost_lease()
                continue
            for event in self.backlog.take_events():
                self._react(event)
            if self.consensus.snapshot_due:
                self.consensus.snapshot_taken(self.state.snapshot())
            self._check_ready()
        self.backlog.rest(self.broker.turn)

    def _apply_until(self, limit: i64) -> bool:
        """Apply committed entries until this turn is full; whether there was one."""
        backlog = self.backlog
        before = self.applied.index
        while self.broker.turn.work < limit and not backlog.is_empty():
            if backlog.begun is None:
                self._apply(backlog.entries.popleft())
            else:
                self._go_on(*backlog.begun)
        return self.applied.index > before

    def _caught_up(self) -> None:
        """Tell the others, and what waits for it here, how far this broker has applied."""
        self.consensus.applied(int(self.applied.index), self.now_ms)
        self.edge.caught_up()
        for peer_broker in self.peer_brokers.values():
            peer_broker.caught_up()
        self.takeover_driver.state_changed()

    def _notice_lost_lease(self) -> None:
        """A lease that is lost ends at once, whatever is still to be applied (R9)."""
        if any(isinstance(event, LeaseLost) for event in self.backlog.events):
            self._set_isolated(True)
            self.meta_bindings.set_leaseless(True)

    def _advance(self, index: int) -> None:
        if index > self.applied.index:
            self.applied.index = index

    def _install(self, index: int, data: bytes) -> None:
        """Replace the state by that of a snapshot; proposals that it answers are answered."""
        for outcome in self.state.restore(index, data):
            self.broker.announce(outcome)
        self._advance(index)
        self.state_listener.everything()
        for number in list(self.proposals.open):
            answer = self.state.outcome_of(self.me.incarnation, number)
            if answer is not None:
                self.proposals.applied(self.me.incarnation, number, index, answer)

    def _apply(self, entry: Entry) -> None:
        """Apply an entry. If it fails, nothing more is applied.

        A failed entry may be half done, and may have failed on this broker alone. After the next
        entry this broker's state would differ from everybody's, and it would vote and serve by it.
        """
        try:
            applied = self._applied(entry)
        except Exception as error:
            raise StateFailed(entry.index, error) from error
        if applied is not None and self.state.is_unfinished():
            self.backlog.begun = (entry, applied)
        else:
            self._end(entry, applied)

    def _go_on(self, entry: Entry, applied: AppliedEntry) -> None:
        """Apply more of the entry that was begun."""
        try:
            applied.facts.extend(self.state.go_on())
        except Exception as error:
            raise StateFailed(entry.index, error) from error
        if not self.state.is_unfinished():
            self.backlog.begun = None
            self._end(entry, applied)

    def _end(self, entry: Entry, applied: AppliedEntry | None) -> None:
        """An entry is applied as a whole."""
        self._advance(entry.index)
        if applied is not None:
            if applied.facts:
                self._learn(applied)
            self._resolve(entry.index, applied)
        self.observer.applied(entry)

    def _learn(self, applied: AppliedEntry) -> None:
        """Act on an applied entry. The consequences here are this broker's own affair: a fault must
        not keep the entries behind it from being applied."""
        try:
            self.state_listener.learn(applied.facts)
        except Exception as error:
            self.broker.report_bug(error, "what follows from a change of groups", FAULT_GROUP)

    def _applied(self, entry: Entry) -> AppliedEntry | None:
        if entry.kind == APPLICATION:
            return self.state.apply(entry.index, entry.payload)
        if entry.kind == REGISTRATION:
            registration = decode(Registration, entry.payload)
            return self.state.apply_command(
                entry.index,
                RegisterBroker(
                    registration.name,
                    registration.uuid,
                    registration.incarnation,
                    registration.role,
                    registration.addresses,
                    registration.machine,
                ),
            )
        if entry.kind == RETIREMENT:
            retirement = decode(Retirement, entry.payload)
            return self.state.apply_command(
                entry.index, RetireBroker(retirement.name, retirement.incarnation)
            )
        return None

    def _resolve(self, index: int, applied: AppliedEntry) -> None:
        envelope = applied.envelope
        is_mine = self.proposals.applied(
            envelope.incarnation, envelope.number, index, applied.outcome, envelope.command
        )
        if not is_mine and not applied.duplicate:
            self.broker.announce(applied.outcome)

    def _answer_settled(self) -> None:
        """Answer what every broker with a lease has applied (R10)."""
        if not self.proposals.settling:
            return
        for settled in self.proposals.take_settled(self.consensus.settled_index):
            if settled.waiter is not None:
                settled.waiter.resolved(settled.outcome)
            self.broker.announce(settled.outcome)
            if settled.command is not None:
                self.broker.events.changed(settled.command, settled.outcome, settled.waiter)

    def _begin_cluster(self) -> None:
        """At the root: give a new cluster its first settings and definitions."""
        if self._begun or not self.consensus.is_root or not self._is_registered():
            return
        self._begun = True
        if not self.state.settings_given:
            self.propose(self.settings, None)
        if not self.broker.state.vhosts:
            for command in self.first_commands():
                self.propose(command, None)

    def _is_registered(self) -> bool:
        return self.state.registry.is_current(self.me.incarnation)

    # ---- events ---------------------------------------------------------------------------------

    def _react(self, event: Event) -> None:
        self.observer.event(event)
        self.takeover_driver.react(event)
        self.meta_bindings.react(event)
        if isinstance(event, RootReady):
            self._begun = False
            self._send_all()
        elif isinstance(event, RootKnown):
            self._send_all()
        elif isinstance(event, LeaseGained):
            # It may have waited for entries to be applied, and the lease be over.
            self._set_isolated(not self.consensus.holds_lease(self.now_ms))
        elif isinstance(event, LeaseLost):
            self._set_isolated(True)
        elif isinstance(event, ClusterNamed):
            self._named(event)
        elif isinstance(event, PeerRefused):
            link = self.links.link_to(event.name)
            if link is not None:
                link.close(event.reason)

    def _named(self, event: ClusterNamed) -> None:
        self.me = replace(self.me, cluster_uuid=event.cluster_uuid)
        self.links.set_me(self.me)
        if event.parent_uuid:
            for link in self.links.open_links():
                link.close(f"broker {self.me.name!r} has left the cluster {event.parent_uuid}")

    def _set_isolated(self, isolated: bool) -> None:
        """Without a lease a broker neither delivers nor confirms, nor admits publishes (R9)."""
        self.isolated = isolated
        if isolated:
            reason = self.consensus.status().waits_for
            self.broker.isolate(f"broker '{self.me.name}' is isolated: it waits for {reason}")
        elif self.ready:
            self.broker.isolate("")
            self.edge.lease_gained()

    def _check_ready(self) -> None:
        self._begin_cluster()
        if self.ready or self.isolated or not self._is_registered():
            return
        if not self.broker.state.vhosts:
            return
        self.ready = True
        self._drop_orphans()
        self.broker.delayed.recover()
        self.broker.isolate("")
        self.edge.begin()
        for peer_broker in self.peer_brokers.values():
            peer_broker.wait(False)
        waiting = self.when_ready
        self.when_ready = []
        for work in waiting:
            work()

    # ---- what waits -----------------------------------------------------------------------------

    def _give_up_proposals(self) -> None:
        if self.isolated or not self.consensus.root:
            reason = self.consensus.status().waits_for
            self.proposals.give_up(
                self.now_ms,
                f"broker '{self.me.name}' is isolated and can't change the cluster: "
                f"it waits for {reason}",
            )

    def _explain_waiting(self) -> None:
        if any(name not in self.state.registry.brokers for name in self.down_since_ms):
            forget_departed_brokers(self)
        for name, since_ms in self.down_since_ms.items():
            if self.now_ms - since_ms >= EXPLAIN_AFTER_MS:
                self.edge.explain(
                    self.peer_broker(name),
                    f"broker '{name}', home of a queue published to, can't be reached",
                )

    def stop(self) -> None:
        """Stop in good order: give the lease back, so that nobody waits for it."""
        self.consensus.leave(self.now_ms)
        self._pump()


class RolesNodePort(NodePort):
    """Connects this broker's roles in groups to its node."""

    node: Node

    def __init__(self, node: Node, me: Hello, state: ClusterState, applied: Applied) -> None:
        super().__init__(node.broker, me.name, me.incarnation, state, applied)
        self.node = node

    def now_ms(self) -> int:
        return self.node.now_ms

    def is_ready(self) -> bool:
        return self.node.ready

    def links(self) -> LinkTable:
        return self.node.links

    def propose(self, command: Command, waiter: Waiter | None) -> None:
        self.node.propose(command, waiter)

    def absent_clients(self, group: int) -> dict[str, str]:
        return self.node.resumable_clients.absent(group)

    def homes_changed(self, groups: Iterable[int]) -> None:
        self.node.state_listener.homes_changed(groups)

    def salvaged(self, about: SalvageManifest) -> None:
        self.node.observer.salvaged(about)
