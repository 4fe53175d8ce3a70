"""Faults of the scenario "messages": to applications, to journals, and at the worst moment.

The ambushes here wait for what applications are told (a confirm, an ack, a commit) and for changes
of groups (another home, another in-sync set). They strike the home, the edge or a standby concerned
within milliseconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from rhizome.cluster.consensus.consensus import NotRoot
from rhizome.cluster.consensus.membership_changes import ChangeRefused
from rhizome.cluster.state.cluster_commands import PinHome, PlanMove, SetDraining
from rhizome.cluster.state.groups_and_placement import Group
from rhizome.journal.files import SEGMENT_SUFFIX
from rhizome.testing.sim.brokers.broker_program import BrokerProgram
from rhizome.testing.sim.checkers.fault_timeline import pair
from rhizome.testing.sim.checkers.message_history import History, Message
from rhizome.testing.sim.events import application_events as told
from rhizome.testing.sim.faults.fault_schedule import Fault, Faults
from rhizome.testing.sim.seed_run import Simulation
from rhizome.testing.sim.world.event_scheduler import MS
from rhizome.testing.sim.world.sim_host import Process

STRIKE_US_MAX: Final = 20 * MS
MOMENTS: Final = (
    "confirm",
    "first-confirm",
    "delivery",
    "ack",
    "transaction",
    "edge",
    "home",
    "member",
)
AT_ONCE_CHANCE: Final = 0.4
DRAIN_GRACE_MS: Final = 1_000
PINS: Final = ("", "pin", "unpin")
"""What a person does about a group's pin when it is moved; each as often as the others."""
LONE_US_MIN: Final = 6_000 * MS
"""How long, at least, a lone home can't reach its standbys, so that it continues without them."""
LONE_POWER_CHANCE: Final = 0.7
"""How often a lone home ends by a power cut instead of a kill."""
FLIP_MESSAGE: Final = "flip-message"
LONE_DISK_FACTOR: Final = 40
"""How much slower the disk of a lone home is, so that it ends before its disk has what it
showed."""


class MessageFaults:
    """Makes these faults for one run."""

    def __init__(self, simulation: Simulation, history: History, faults: Faults) -> None:
        self._simulation = simulation
        self._history = history
        self._faults = faults
        self._world = simulation.world
        self._brokers = {process.name: process for process in simulation.processes}
        self.ambushes = MessageAmbushes(simulation, history, faults)
        self._flipped = ""

    def kinds(self, dropped: bool = False) -> dict[str, Fault]:
        """``dropped``: there are applications that continue at another broker with what they
        know."""
        return {
            **({"drop-app": self.drop_app} if dropped else {}),
            "cut-app": self.cut_app,
            "kill-app": self.kill_app,
            "flip-journal": self.flip_journal,
            "lone-home": self.lone_home,
            **({FLIP_MESSAGE: self.flip_message} if self._is_asked(FLIP_MESSAGE) else {}),
            "drain": self.drain,
            "move": self.move,
            "hand-over": self.hand_over,
            **self.ambushes.kinds(),
        }

    # --- applications

    def cut_app(self, chance: random.Random) -> None:
        """An application and the brokers cannot hear each other, or only one way."""
        app = self._some(chance, self._simulation.applications)
        ways = [(app.name, name) for name in self._brokers]
        back = [(name, app.name) for name in self._brokers]
        draw = chance.random()
        blocked = ways + back if draw < 0.5 else ways if draw < 0.75 else back
        places = " ".join(pair(app.name, name) for name in self._brokers)
        self._faults.watch.see(told.Struck("cut", places))
        for way in blocked:
            self._simulation.network.block(way)

        def unblock() -> None:
            for way in blocked:
                self._simulation.network.unblock(way)
            self._faults.watch.see(told.Struck("cut", places))

        self._faults.on_ways_for_a_while(unblock, blocked)

    def drop_app(self, chance: random.Random) -> None:
        """The connections of some applications break, and nothing else."""
        share = chance.random()
        for app in self._simulation.applications:
            if chance.random() < share:
                for name in self._brokers:
                    for connection in self._simulation.network.between(app.name, name):
                        self._faults.break_connection(connection)

    def kill_app(self, chance: random.Random) -> None:
        """An application is killed, and starts again knowing nothing."""
        app = self._some(chance, self._simulation.applications)
        app.kill()

        def start() -> None:
            if not app.is_running():
                app.start()

        self._faults.for_a_while(start)

    # --- disks

    def flip_journal(self, chance: random.Random) -> None:
        """A bit of a journal flips while its broker is down: of one broker in a run, and only if
        others have everything that it has."""
        name = self._flipped or self._some(chance, list(self._brokers.values())).name
        process = self._brokers[name]
        if not self._is_backed_up(name):
            return
        process.kill()
        place = process.disk.flip_bit("journal/")
        self._world.note(f"{name} flipped {place}")
        if place:
            self._flipped = name
            self._faults.watch.see(told.Struck("damage", name))
        self._faults.restart_later(process)

    def flip_message(self, chance: random.Random) -> None:
        """A bit flips in the body of a message that a running broker keeps on disk only, as home
        or as standby: of one broker in a run, and only if others have what it has."""
        name = self._flipped or self._some(chance, list(self._brokers.values())).name
        process = self._brokers[name]
        if not isinstance(process.program, BrokerProgram) or not self._is_backed_up(name):
            return
        places = process.program.places_on_disk()
        if not places:
            return
        segment, offset = places[int(chance.random() * len(places))]
        file = process.disk.files[f"journal/{segment:010d}{SEGMENT_SUFFIX}"]
        if offset >= len(file.durable):
            return
        file.flip(offset * 8 + int(chance.random() * 8))
        process.disk.flips += 1
        self._world.note(f"{name} flipped a bit of a message at {segment}:{offset}")
        self._flipped = name
        self._faults.watch.see(told.Struck("damage", name))

    def _is_asked(self, kind: str) -> bool:
        """Whether a run has a fault only because it was named: seeds don't draw it."""
        return kind in self._simulation.plan.kinds

    def lone_home(self, chance: random.Random) -> None:
        """A home can't reach its standbys, so that it continues without them; its disk is slow; and
        it ends when a consumer at another broker has something that it showed.

        If there is a choice, neither the home nor its standbys are root: otherwise it has no lease,
        or no broker has one when it ends, and that excuses much."""
        groups = [each for each in self._groups() if each.in_sync and each.home in self._brokers]
        apart = [each for each in groups if not self._has_root(each)]
        groups = apart or groups
        if not groups:
            return
        group = groups[int(chance.random() * len(groups))]
        for member in group.in_sync:
            self._faults.part(group.home, member.broker, LONE_US_MIN)
        disk = self._brokers[group.home].disk
        disk.slow(LONE_DISK_FACTOR)
        self._faults.for_a_while(lambda: disk.slow(1))
        self.ambushes.await_lone_delivery(group.id)

    def _has_root(self, group: Group) -> bool:
        """Whether the home or a standby of a group believes that it is root."""
        for name in (group.home, *[member.broker for member in group.in_sync]):
            program = self._brokers[name].program
            if isinstance(program, BrokerProgram) and program.node.consensus.is_root:
                return True
        return False

    def _groups(self) -> list[Group]:
        """The groups as the first broker that runs knows them."""
        for process in self._brokers.values():
            if isinstance(process.program, BrokerProgram):
                return list(process.program.node.state.groups.groups.values())
        return []

    def _is_backed_up(self, name: str) -> bool:
        """Whether other brokers that are up have all that this one keeps of each group."""
        program = self._brokers[name].program
        if not isinstance(program, BrokerProgram):
            return False
        for group in program.node.state.groups.groups.values():
            holders = [group.home, *[each.broker for each in group.in_sync]]
            if name in holders:
                others = [each for each in holders if each != name]
                if not any(self._brokers[each].is_running() for each in others if each):
                    return False
        return True

    # --- orders of people

    def drain(self, chance: random.Random) -> None:
        """A person drains a broker, and ends the drain after a while."""
        name = self._some(chance, list(self._brokers.values())).name
        self._order(f"drain {name}", lambda program: _drain(program, name, True))
        self._faults.for_a_while(
            lambda: self._order(f"undrain {name}", lambda program: _drain(program, name, False))
        )

    def move(self, chance: random.Random) -> None:
        """A person moves a group to another broker, and perhaps pins it there or unpins it."""
        target = self._some(chance, list(self._brokers.values())).name
        draw = chance.random()
        pin = PINS[int(draw * 1_000) % len(PINS)]

        def order(program: BrokerProgram) -> None:
            groups = list(program.node.state.groups.groups.values())
            if groups:
                group = groups[int(draw * len(groups))]
                program.node.propose(PlanMove(group.id, target, group.epoch), None)
                if pin:
                    to = target if pin == "pin" else ""
                    program.node.propose(PinHome(group.id, to, group.epoch), None)

        self._order(f"move a group to {target}", order)

    def hand_over(self, chance: random.Random) -> None:
        """A person has the root hand over to another primary."""
        name = self._some(chance, list(self._brokers.values())).name

        def order(program: BrokerProgram) -> None:
            try:
                program.node.consensus.transfer_root(name, program.host.now_ms())
            except (ChangeRefused, NotRoot) as refusal:
                self._world.note(f"refused: {refusal}")

        self._order(f"hand over to {name}", order)

    def _order(self, text: str, order: Callable[[BrokerProgram], None]) -> None:
        """Give an order to every broker that believes it is root; there may be two."""
        for process in self._brokers.values():
            program = process.program
            if isinstance(program, BrokerProgram) and program.node.consensus.is_root:
                self._world.note(f"{process.name} is told to {text}")
                process.put(order, program)

    def _some(self, chance: random.Random, processes: Sequence[Process]) -> Process:
        return processes[int(chance.random() * len(processes))]


def _drain(program: BrokerProgram, name: str, draining: bool) -> None:
    if name in program.node.state.registry.brokers:
        program.node.propose(SetDraining(name, draining, DRAIN_GRACE_MS), None)


class MessageAmbushes:
    """The ambushes that are set, each for one kind of event."""

    def __init__(self, simulation: Simulation, history: History, faults: Faults) -> None:
        self._world = simulation.world
        self._history = history
        self._faults = faults
        self._disks = {process.name: process.disk for process in simulation.processes}
        self._chance = simulation.world.chance("message ambush")
        self._set: dict[str, bool] = {}
        self._groups: dict[int, tuple[int, int]] = {}
        self._new: dict[int, bool] = {}
        self._sessions: dict[int, str] = {}
        self._lone: dict[int, None] = {}
        """Groups whose home is struck when it has no standby and shows something."""
        listeners: dict[type, Callable[[Any], None]] = {
            told.Confirmed: self._confirmed,
            told.Delivered: self._delivered,
            told.SettledBy: self._settled,
            told.TransactionEnds: self._transaction,
            told.GroupAt: self._group,
        }
        for kind, listener in listeners.items():
            simulation.watch.listen(kind, listener)

    def kinds(self) -> dict[str, Fault]:
        """The faults that set an ambush."""
        return {f"ambush-{moment}": self.arm(moment) for moment in MOMENTS}

    def arm(self, moment: str) -> Fault:
        def set_it(_: random.Random) -> None:
            self._set[moment] = True

        return set_it

    # --- moments

    def _confirmed(self, seen: told.Confirmed) -> None:
        """The sender believes it safe, and it is: at its home, and wherever there are copies."""
        message = self._history.messages[seen.message]
        homes = self.homes(message.queues)
        self.spring("confirm", [*homes, message.session.broker])
        for queue in message.queues:
            if self._new.pop(self._history.groups.get(queue, -1), False):
                self.spring("first-confirm", self.homes([queue]))

    def await_lone_delivery(self, group: int) -> None:
        """Strike the home of a group when it has shown a message that came while it had no
        standby."""
        self._lone[group] = None

    def _strike_lone_home(self, message: Message, queue: str, broker: str) -> None:
        """Strike it if a publish of another broker was shown at another broker and isn't confirmed,
        while the disk is behind: if that is lost with its home, it is sent again."""
        group = self._history.groups.get(queue, -1)
        homes = self.homes([queue])
        if group not in self._lone or broker in homes or not message.persistent:
            return
        if message.session.broker in homes or message.outcome or message.session.over_us >= 0:
            return
        if not homes or not self._disks[homes[0]].is_behind("journal/"):
            return
        if self._history.was_alone_throughout(group, message.at_us, self._world.now_us):
            del self._lone[group]
            strikes = (self._faults.kill_host, self._cut_power_at_worst)
            strike = strikes[self._chance.random() < LONE_POWER_CHANCE]
            self._world.note(f"ambush of {homes[0]}, which has no standby")
            self._world.after(0, self._strike, strike, homes[0])

    def _cut_power_at_worst(self, name: str) -> None:
        """A machine loses power, and its disk all that was not synced."""
        self._disks[name].lose_unsynced()
        self._faults.cut_power_of(name)

    def _delivered(self, seen: told.Delivered) -> None:
        session = self._history.sessions[seen.session]
        if self._lone:
            message = self._history.messages[seen.message]
            self._strike_lone_home(message, seen.queue, session.broker)
        self.spring("delivery", [*self.homes([seen.queue]), session.broker])

    def _settled(self, seen: told.SettledBy) -> None:
        delivery = self._history.last_settled
        if delivery is not None and seen.verdict == told.ACK:
            self.spring("ack", [*self.homes([delivery.queue]), delivery.session.broker])

    def _transaction(self, seen: told.TransactionEnds) -> None:
        """Between here and its answer it is in doubt."""
        transaction = self._history.transactions.get(seen.transaction)
        if transaction is not None and seen.verdict == told.COMMIT:
            queues = [
                queue
                for message in transaction.messages
                for queue in self._history.messages[message].queues
            ]
            self.spring("transaction", [*self.homes(queues), transaction.session.broker])
            self.spring("edge", [transaction.session.broker], [self._faults.kill_host])

    def _group(self, seen: told.GroupAt) -> None:
        """A group has another home, or another in-sync set."""
        epoch, version = self._groups.get(seen.group, (seen.epoch, seen.version))
        if (seen.epoch, seen.version) <= (epoch, version):
            self._groups.setdefault(seen.group, (epoch, version))
            return
        self._groups[seen.group] = (seen.epoch, seen.version)
        members = [each.partition(":")[0] for each in seen.members.split()]
        if seen.epoch > epoch:
            self._new[seen.group] = True
            self.spring("home", [seen.home])
        else:
            self.spring("member", [seen.home, *members])

    # --- striking

    def homes(self, queues: Sequence[str]) -> list[str]:
        found: dict[str, None] = {}
        for queue in queues:
            homes = self._history.homes.get(self._history.groups.get(queue, -1), [])
            if homes and homes[-1][1]:
                found[homes[-1][1]] = None
        return list(found)

    def spring(
        self, moment: str, names: list[str], strikes: Sequence[Callable[[str], None]] = ()
    ) -> None:
        """Strike one of these, in one of these ways or in any."""
        if not names or not self._set.pop(moment, False):
            return
        striker = self._faults
        strikes = strikes or [
            striker.kill_host,
            striker.cut_power_of,
            striker.isolate_host,
            striker.pause_host,
            striker.stall_host,
        ]
        name = names[int(self._chance.random() * len(names))]
        strike = strikes[int(self._chance.random() * len(strikes))]
        at_once = self._chance.random() < AT_ONCE_CHANCE
        delay_us = 0 if at_once else int(self._chance.random() * STRIKE_US_MAX)
        self._world.note(f"ambush of {name} at {moment}")
        self._world.after(delay_us, self._strike, strike, name)

    def _strike(self, strike: Callable[[str], None], name: str) -> None:
        if not self._faults.is_over():
            strike(name)
