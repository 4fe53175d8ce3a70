"""Home group: this broker as the home of one group, for one epoch (G1). Compiled.

It owns everything that the role needs: the log, the replicator, the sessions of edges, the planned
transfer, and one phase (``HomePhase``):

    recovering      the group has a past. Nothing is confirmed or shown before the copies have
                    answered or are left out (G7), and before every broker that may hold messages
                    of the group has attached, or has had the duration of a lease to do so (A2).
                    Clients that may come back from a broker that is gone, with what they hold, are
                    waited for, too, for `resume_patience` at the most (J12).
    serving         messages are taken, replicated, shown and confirmed.
    handing over    a planned transfer (G11): the home admits nothing more. What applications do
                    waits at their edges, this broker's own included, until the successor has
                    everything and the root is asked.
    failed          a fault left the home in the middle of something: it shows and confirms nothing
                    any more, and the root is told.
    ended           another broker is home, or this one in another epoch, or the group is gone.

    (new) to recovering or serving    ``__init__``: ``GroupRoles.become_home``, for a committed
                                      entry that says so (G1)
    recovering to serving             ``_update_recovered``: copies, edges and clients were heard
    serving to handing over           ``Transfer.run``: the group is to move (`Group.moving_to`),
                                      its copy there is a whole member, and nothing else about the
                                      in-sync set is open
    handing over to serving           ``step_back``: the transfer was refused, called off, or not
                                      committed within `transfer_patience`. The home goes on in its
                                      epoch, and tries again after a pause.
    any but ended to failed           ``fail``: ``GroupRoles`` caught an exception
    any to ended                      ``end``: ``GroupRoles.lose_home``, for a committed entry: a
                                      transfer, a takeover, or the end of the group
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64, mypyc_attr

from rhizome.broker.cluster_port import Waiter
from rhizome.broker.metadata.metadata_changes import Outcome
from rhizome.cluster.consensus.settings import EXCUSES_MAX
from rhizome.cluster.home.home_phase import (
    ENDED,
    FAILED,
    HANDING_OVER,
    PHASES,
    RECOVERING,
    SERVING,
)
from rhizome.cluster.home.settings import HomeSettings
from rhizome.cluster.link.broker_hello import FETCHES
from rhizome.cluster.replication.replicable_log import ReplicableLog
from rhizome.cluster.replication.replicator import Replicator
from rhizome.cluster.replication.replicator_port import ReplicatorPort, ReplicatorSettings
from rhizome.cluster.state.cluster_commands import TransferHome
from rhizome.cluster.state.groups_and_placement import Group, wanted_standbys

if TYPE_CHECKING:
    from rhizome.broker.metadata.metadata_commands import Command
    from rhizome.cluster.home.edge_reconciliation import EdgeSessions
    from rhizome.cluster.home.home_change import LocalEdgeReturn
    from rhizome.cluster.link.link import Link
    from rhizome.cluster.state.broker_registry import Registry


@mypyc_attr(allow_interpreted_subclasses=True)
class HomePort:
    """What the home of a group needs of its broker."""

    def now_ms(self) -> int:
        raise NotImplementedError

    def name(self) -> str:
        """The name of this broker."""
        raise NotImplementedError

    def registry(self) -> Registry:
        """The brokers of the cluster."""
        raise NotImplementedError

    def open_links(self) -> list[Link]:
        raise NotImplementedError

    def absent_clients(self, group: int) -> dict[str, str]:
        """The clients that consumed from a group, can resume, and have lost their broker, each with
        the incarnation of that broker."""
        raise NotImplementedError

    def propose(self, command: Command, waiter: Waiter) -> None:
        raise NotImplementedError

    def committed(self) -> None:
        """More of the log is committed, or may be shown."""
        raise NotImplementedError

    def recovered(self, took_ms: int) -> None:
        """The home serves, so long after it was appointed."""
        raise NotImplementedError

    def step_aside(self, home: HomeGroup) -> None:
        """Have applications, here and elsewhere, wait for the next home with what they have."""
        raise NotImplementedError

    def come_home(self, home: HomeGroup) -> LocalEdgeReturn:
        """Have this broker's own applications come back to the home after all."""
        raise NotImplementedError

    def came_home(self, home: HomeGroup) -> None:
        """The home serves again: lead queues here, and have edges attach anew."""
        raise NotImplementedError


@final
class HomeGroup:
    """This broker as the home of one group, for one epoch.

    Invariant: the log is still in every phase but serving, and silent while recovering and failed;
    an ended home leaves its log as it was.
    """

    def __init__(
        self,
        port: HomePort,
        copies: ReplicatorPort,
        group: Group,
        log: ReplicableLog,
        whole: bool,
        sessions: EdgeSessions,
        settings: HomeSettings,
    ) -> None:
        """``copies``: what the replicator needs of this broker. ``whole``: the copy that the home
        begins with lacks nothing. ``begin`` follows, when the queues are active."""
        self.port = port
        self.group = group
        self.log = log
        self.sessions = sessions
        self.phase = sessions.phase
        self.settings = settings
        patience = ReplicatorSettings(
            settings.sync_timeout_ms, backfill_bytes_max=settings.catch_up_bytes
        )
        self.begun_ms = port.now_ms()
        self.attach_ms = self.begun_ms + settings.attach_patience_ms
        self.resume_ms = self.begun_ms
        self.excuses = 0
        self.transfer = Transfer(self)
        log.alone = not group.in_sync
        if len(log.starts) > 1:
            log.forget_committed()
            self._enter(RECOVERING)
            self._await_clients()
        else:
            self._enter(SERVING)
        self.copies = Replicator(log, whole, copies, patience, self.begun_ms)

    def begin(self) -> None:
        """Invite standbys: the queues are active, and their log takes records."""
        for link in self.port.open_links():
            self.link_up(link)
        self.changed(self.group)

    # ---- the phase ------------------------------------------------------------------------------

    def _enter(self, phase: i64) -> None:
        self.phase.now = phase
        silent = phase in (RECOVERING, FAILED)
        self.log.restrict(phase != SERVING, silent)

    @property
    def is_recovering(self) -> bool:
        return self.phase.now == RECOVERING

    @property
    def is_handing_over(self) -> bool:
        return self.phase.now == HANDING_OVER

    @property
    def failed(self) -> bool:
        return self.phase.now == FAILED

    def phase_name(self) -> str:
        """The phase, for people."""
        return PHASES[self.phase.now]

    def _update_recovered(self) -> None:
        if not self.copies.settled() or not self._all_attached() or self.missing_clients():
            return
        self.port.recovered(self.port.now_ms() - self.begun_ms)
        self._enter(SERVING)
        self.copies.recovered()
        self.sessions.resolve_all()

    def step_aside(self) -> None:
        """Admit nothing more; what applications of this broker do waits for the next home."""
        self._enter(HANDING_OVER)
        self.port.step_aside(self)

    def step_back(self) -> None:
        """Be home as before; edges attach anew.

        Until it is resolved what applications hold, those messages are among the ready ones. So
        nothing may leave a queue, not even if a queue exceeds its limits with what was published
        meanwhile.
        """
        own = self.port.come_home(self)
        self._enter(SERVING)
        own.answer_calls()
        self.port.came_home(self)

    def fail(self) -> None:
        """A fault has left this home in the middle of something.

        It shows and confirms nothing any more, until the broker is started again or another one is
        home. The root is told of it, and appoints a standby that is in sync.
        """
        self._enter(FAILED)

    def end(self) -> bool:
        """This broker is home no more; returns whether it had stopped admitting anything."""
        was_handing_over = self.is_handing_over
        self.phase.now = ENDED
        return was_handing_over

    # ---- links and turns ------------------------------------------------------------------------

    def link_up(self, link: Link) -> None:
        self.copies.link_up(link.name, link.peer.incarnation)
        if FETCHES in link.peer.features:
            self.copies.fetches.link_up(link.name)

    def link_down(self, name: str) -> None:
        self.copies.link_down(name)
        if self.is_recovering:
            self._await_clients()

    def _await_clients(self) -> None:
        """Wait for clients that may come back from a broker that is gone. Streams keep nothing for
        their readers."""
        if not self.sessions.rules.clients_awaited or self.group.stream:
            return
        absent = self.port.absent_clients(self.group.id)
        if not absent.keys() <= self.sessions.absent.keys():
            self.sessions.absent.update(absent)
            self.resume_ms = self.port.now_ms() + self.settings.resume_patience_ms

    def changed(self, group: Group) -> None:
        """The group, or the set of brokers, has changed to what is committed now."""
        self.group = group
        self.copies.group_changed(group)
        self.copies.wanted(wanted_standbys(group, self.port.registry()))

    def end_turn(self) -> None:
        """Replicate what this turn has recorded; go on with whatever waited for the copies."""
        if self.failed:
            return
        log = self.log
        memory, disk, visible = log.committed_memory, log.committed_disk, log.visible
        if self.is_recovering:
            self._update_recovered()
        self.copies.end_turn(self.port.now_ms())
        self.transfer.run()
        if log.committed_memory != memory or log.committed_disk != disk or log.visible != visible:
            self.port.committed()

    def rests(self) -> bool:
        """Whether there is nothing to do before something happens to the group. Only streams are
        asked: other groups are few, and something happens to them all the time."""
        log = self.log
        if not log.stored or log.still or self.group.moving_to:
            return False
        last = log.next_index - 1
        return log.disk() >= last and log.committed_disk >= last and self.copies.rests()

    def _all_attached(self) -> bool:
        if self.port.now_ms() >= self.attach_ms:
            return True
        return not self.sessions.rules.lists_awaited or not self.missing_edges()

    def missing_edges(self) -> list[str]:
        """Brokers that may hold messages of the group and have not attached."""
        attached = self.sessions.attached()
        me = self.port.name()
        return [
            broker.name
            for broker in self.port.registry().brokers.values()
            if broker.incarnation and not broker.away and broker.name != me
            if broker.name not in attached
        ]

    def missing_clients(self) -> int:
        """How many clients are still awaited; each may hold messages of the group."""
        return 0 if self.port.now_ms() >= self.resume_ms else len(self.sessions.absent)

    def stood_still(self, away_ms: int) -> None:
        """This broker stood still: brokers that answered or attached meanwhile aren't heard yet,
        and must not be taken for silent."""
        self.copies.stood_still(away_ms)
        if (self.is_recovering or self.failed) and self.excuses < EXCUSES_MAX:
            self.excuses += 1
            self.attach_ms += away_ms
            self.resume_ms += away_ms

    def tick(self) -> None:
        self.copies.tick(self.port.now_ms())

    def stall(self) -> str:
        """What publishers of this group wait for; empty if nothing unusual."""
        if self.failed:
            return (
                f"the home of group {self.group.id} had a fault; if no standby is in sync to take"
                f" over, {self.port.name()} must be started again"
            )
        if self.copies.in_sync.too_few():
            return f"group {self.group.id} has fewer copies than its policy demands"
        if self.copies.congested:
            waits_for = ", ".join(self.copies.status().waits_for)
            return f"the copies of group {self.group.id} at {waits_for} are slow"
        return ""


@final
class Transfer:
    """The planned transfer of one group to a whole copy while both live (G11): when the home begins
    to hand over, and when it gives up. A commit that comes late is a takeover."""

    def __init__(self, home: HomeGroup) -> None:
        self.home = home
        self._since_ms = 0
        self._asked = False
        self._not_before_ms = 0

    def run(self) -> None:
        """Run once per turn, after the copies have been heard."""
        home = self.home
        if home.is_handing_over:
            self._go_on()
        elif home.group.moving_to and home.phase.is_serving():
            if home.port.now_ms() >= self._not_before_ms and self._is_due():
                self._asked = False
                self._since_ms = home.port.now_ms()
                home.step_aside()

    def _is_due(self) -> bool:
        group = self.home.group
        target = self.home.port.registry().brokers.get(group.moving_to)
        if target is None or not group.is_whole(target.name, target.incarnation):
            return False
        return self.home.copies.in_sync.proposed is None

    def _go_on(self) -> None:
        home = self.home
        port = home.port
        group = home.group
        waited_ms = port.now_ms() - self._since_ms
        if waited_ms >= home.settings.transfer_patience_ms or not group.moving_to:
            self.give_up()
        elif not self._asked and home.copies.has_everything(group.moving_to):
            self._asked = True
            record = port.registry().brokers[group.moving_to]
            command = TransferHome(
                group.id, record.name, record.incarnation, group.epoch, group.version
            )
            port.propose(command, TransferOutcome(self))

    def give_up(self) -> None:
        """Be home again and try later, unless another broker has taken over meanwhile. This broker
        may be home anew since, in another epoch, which this transfer does not concern (G1)."""
        home = self.home
        if home.is_handing_over:
            self._not_before_ms = home.port.now_ms() + home.settings.transfer_patience_ms
            home.step_back()


class TransferOutcome(Waiter):
    """Hears the outcome of a transfer. If it was made, this home is over already."""

    def __init__(self, transfer: Transfer) -> None:
        super().__init__()
        self.transfer = transfer

    def resolved(self, outcome: Outcome) -> None:
        if outcome.error is not None:
            self.transfer.give_up()
