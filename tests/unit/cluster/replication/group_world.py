"""One group in a world of lists: brokers with disks, links that are lists of frames, and a register
in place of the root. Whoever answers, answers the truth, and that is checked at every answer.
"""

from __future__ import annotations

import copy as copying
from dataclasses import dataclass, field

from mypy_extensions import i64

from rhizome.broker.message import Message, Route
from rhizome.cluster.home.replicated_group_log import ReplicatedGroupLog
from rhizome.cluster.protocol import catalogue
from rhizome.cluster.protocol import replication_codec as codec
from rhizome.cluster.replication.catch_up_sender import LiveQueue
from rhizome.cluster.replication.group_copy import GroupCopy
from rhizome.cluster.replication.queue_standby import QueueStandby, QueueStandbyPort
from rhizome.cluster.replication.replicator import Replicator
from rhizome.cluster.replication.replicator_port import ReplicatorPort, ReplicatorSettings
from rhizome.cluster.state.cluster_commands import DISK, WHOLE, Member
from rhizome.cluster.state.groups_and_placement import Group
from rhizome.journal.dedup_state import DedupIdentity, DedupState
from rhizome.journal.paged_index import PagedIndex
from rhizome.journal.record_replay import starts_with
from rhizome.journal.records import FLAG_DURABLE, enqueue_record, position_of
from rhizome.journal.recovery import RecoveredQueue
from tests.unit.cluster.replication.broker_disk import GROUP, Place, references
from tests.unit.cluster.replication.log_model import Body, Content, check

ROUTE = Route("", "key", b"\0\0")


@dataclass
class Register:
    """What the root has committed (G1, G2, G5)."""

    home: str = "a"
    incarnation: str = "a1"
    epoch: int = 1
    version: int = 1
    members: tuple[Member, ...] = ()
    home_restarted: bool = False
    home_was_whole: bool = True
    registered: dict[str, str] = field(default_factory=dict)
    min_copies: int = 1

    def group(self) -> Group:
        return Group(
            GROUP,
            self.home,
            self.home,
            self.incarnation,
            self.epoch,
            self.version,
            self.members,
            min_copies=self.min_copies,
        )

    def register(self, name: str, incarnation: str) -> None:
        self.registered[name] = incarnation
        changed = tuple(
            Member(name, incarnation, DISK) if each.broker == name else each
            for each in self.members
        )
        if changed != self.members:
            self.members = changed
            self.version += 1
        if self.home == name and self.incarnation != incarnation:
            self.home_restarted = True

    def set_members(self, members: list[Member], epoch: int, version: int) -> bool:
        if (epoch, version) != (self.epoch, self.version):
            return False
        if any(self.registered.get(each.broker) != each.incarnation for each in members):
            return False
        self.members = tuple(members)
        self.version += 1
        return True

    def appoint(self, name: str, incarnation: str) -> None:
        self.home_was_whole = Member(name, incarnation, WHOLE) in self.members
        self.home, self.incarnation = name, incarnation
        self.epoch += 1
        self.version += 1
        self.home_restarted = False
        self.members = tuple(each for each in self.members if each.broker != name)


class Home(ReplicatorPort):
    """The group at its home: the log, its standbys, and queues reduced to what is alive in them."""

    def __init__(self, broker: Broker, epoch: int, copy: GroupCopy, now_ms: int) -> None:
        self.broker = broker
        place = broker.place
        self.truth = Content()
        self.positions: dict[tuple[int, int], int] = {}
        self.seen: dict[int, DedupState] = {}
        for queue_id in list(copy.queues):
            found = copy.recovered(queue_id)
            assert found is not None
            self._take_over(found)
        self.truth.origins = dict(copy.origins)
        self.truth.refused = {each: list(found) for each, found in copy.known.refused.items()}
        start = int(copy.index) + 1
        starts = starts_with(copy.starts, epoch, start)
        place.journal.epoch(GROUP, epoch, start)
        origins = dict(self.truth.origins)
        self.log = ReplicatedGroupLog(
            place.journal, GROUP, epoch, start, starts, origins, copy.disk
        )
        self.log.refused = copy.known.refused
        self.log.restrict(still=True, silent=True)
        self.copies = Replicator(self.log, copy.whole, self, broker.world.settings, now_ms)
        # Edges present what was not confirmed; what the home has of it counts as sent to it.
        self.unconfirmed: list[tuple[int, bool, bytes]] = [
            (index, body.durable, body.content)
            for bodies in self.truth.queues.values()
            for index, body in bodies.items()
            if body.content not in broker.world.confirmed
        ]
        self.dequeued: list[tuple[int, bool, int, bytes]] = []
        self.note()

    def _take_over(self, found: RecoveredQueue) -> None:
        bodies: dict[int, Body] = {}
        for priority, level in found.levels.items():
            for index, position in level.positions():
                message = self.broker.place.message(position)
                bodies[index] = Body(priority, message.content, message.flags & 1 == 1)
                self.positions[(found.queue_id, index)] = position
        self.truth.queues[found.queue_id] = bodies
        if found.delivery_counts:
            self.truth.counts[found.queue_id] = dict(found.delivery_counts)
        if found.shown:
            self.truth.shown[found.queue_id] = dict(found.shown)
        if found.seen is not None:
            self.seen[found.queue_id] = found.seen
            for name, mark in found.seen.producers.items():
                self.truth.seen[(found.queue_id, name)] = int(mark.last)

    def end(self) -> int:
        return int(self.log.next_index) - 1

    def visible(self) -> int:
        """Up to where consumers are shown what the queues have (L1)."""
        return int(self.log.visible)

    def note(self) -> None:
        """Remember what the log amounts to at its end."""
        if not self.broker.world.checked:
            return
        key = (int(self.log.epoch), self.end())
        self.broker.world.snapshots[key] = copying.deepcopy(self.truth)

    # ---- decisions

    def publish(
        self,
        queues: list[int],
        durable: bool,
        origin: int = 0,
        producer: bytes = b"",
        size: int = 20,
        priority: int = 0,
    ) -> int:
        world = self.broker.world
        world.uid += 1
        content = b"%d " % world.uid
        message = Message(ROUTE, content + b"x" * size, 0, 4096)
        message.persistent = durable
        message.priority = priority
        index = int(self.log.next_index)
        if producer:
            message.identity = DedupIdentity(producer, index, b"")
        number = self.truth.origins.get(origin, 0) + 1
        self.log.append_from(message, list(queues), durable, origin, number if origin else 0)
        if origin:
            self.truth.origins[origin] = number
        for queue in queues:
            body = Body(priority, message.content, durable)
            self.truth.queues.setdefault(queue, {})[index] = body
            if durable:
                self.positions[(queue, index)] = int(message.position)
            if producer:
                self.truth.seen[(queue, producer)] = index
                seen = self.seen.setdefault(queue, DedupState())
                seen.take(index, durable, DedupIdentity(producer, index, b""), 1)
        self.unconfirmed.append((index, durable, message.content))
        self.note()
        return index

    def ack(self, queue: int, indexes: list[int]) -> None:
        bodies = self.truth.queues[queue]
        durable = any(bodies[index].durable for index in indexes)
        at = int(self.log.next_index)
        for index in indexes:
            self.dequeued.append((at, durable, queue, bodies[index].content))
        self.truth.remove(queue, indexes)
        self._release(queue, indexes)
        self.log.dequeue(queue, list(indexes), durable)
        self.note()

    def _release(self, queue: int, indexes: list[int]) -> None:
        for index in indexes:
            position = self.positions.pop((queue, index), 0)
            if position:
                spilled = position >> 62
                journal = self.broker.place.spill if spilled else self.broker.place.journal
                journal.release(position)

    def requeue(self, queue: int, index: int, count: int) -> None:
        self.truth.counts.setdefault(queue, {})[index] = count
        self.log.requeue(queue, index, count, self.truth.queues[queue][index].durable)
        self.note()

    def purge(self, queue: int, up_to: int) -> None:
        gone = [index for index in self.truth.queues[queue] if index <= up_to]
        self.truth.remove(queue, gone)
        self._release(queue, gone)
        self.log.purge(queue, up_to)
        self.note()

    def drop(self, queue: int) -> None:
        self._release(queue, list(self.truth.queues.pop(queue)))
        self.truth.counts.pop(queue, None)
        self.truth.shown.pop(queue, None)
        self.seen.pop(queue, None)
        self.truth.seen = {k: v for k, v in self.truth.seen.items() if k[0] != queue}
        self.log.drop(queue)
        self.note()

    def number(self, origin: int, forget: bool, refuse: bool = False) -> None:
        number = 0 if forget else self.truth.origins.get(origin, 0) + 1
        self.truth.number(origin, number, refuse)
        if refuse:
            self.log.note_refused(origin, number)
        else:
            self.log.note_number(origin, number)
        self.note()

    def step(self, kind: int, a: int, b: int) -> None:
        """Any decision, chosen by three numbers."""
        queue = a % 3 + 1
        live = sorted(self.truth.queues.get(queue, {}))
        if kind < 10 or not live:
            several = [1, 2, 3][: b % 3 + 1] if b % 5 == 0 else [queue]
            origin, producer = (0, 0xA, 0xB)[b % 3], (b"", b"", b"p")[a % 3]
            self.publish(several, kind % 2 == 0, origin, producer, a * b % 50, kind % 3)
        elif kind < 16:
            first = a % len(live)
            self.ack(queue, live[first : first + b % 5 + 1 : 1 + kind % 2])
        elif kind == 16:
            self.requeue(queue, live[b % len(live)], a + 1)
        elif kind == 17 and b % 3 == 0:
            self.purge(queue, live[a % len(live)])
        elif kind == 18 and b % 4 == 0:
            self.drop(queue)
        else:
            self.number((0xA, 0xB, 0xC)[a % 3], b % 5 == 0, b % 5 == 1)

    # ---- ReplicatorPort

    def send(self, broker: str, method: i64, parts: list[bytes]) -> bool:
        return self.broker.world.send(self.broker.name, broker, int(method), b"".join(parts))

    def applied(self) -> i64:
        return 1

    def queue_ids(self) -> list[int]:
        return sorted(self.truth.queues)

    def live(self, queue_id: i64) -> LiveQueue | None:
        bodies = self.truth.queues.get(int(queue_id))
        if bodies is None:
            return None
        # Some here, some there, as lanes and unacked ones are.
        parts = [PagedIndex(), PagedIndex()]
        for index in sorted(bodies):
            parts[index % 2].append(index, position_of(1, 64))
        counts = self.truth.counts.get(int(queue_id), {})
        shown = self.truth.shown.get(int(queue_id), {})
        return LiveQueue(parts, dict(counts), self.seen.get(int(queue_id)), dict(shown), b"")

    def read(self, queue_id: i64, first: i64, end: i64, bytes_max: i64, found: list[bytes]) -> i64:
        bodies = self.truth.queues.get(int(queue_id), {})
        size = 0
        for index in range(first, end):
            body = bodies.get(index)
            if body is None:
                continue
            if size >= bytes_max:
                return index
            flags = FLAG_DURABLE if body.durable else 0
            found.append(
                enqueue_record(
                    *(GROUP, self.log.epoch, index, [int(queue_id)], b"\0\0", 1, -1),
                    *(body.priority, flags, body.content),
                )
            )
            size += len(found[-1])
        return end

    def propose(self, members: list[Member], version: i64) -> None:
        same = [each for each in self.broker.world.proposals if each[0] is self]
        assert all(each[2] < version for each in same), "one at a time"
        self.broker.world.proposals.append((self, list(members), int(version)))

    # ---- turns

    def end_turn(self, now_ms: int) -> None:
        self.log.handed_over(self.broker.place.submit())
        self.copies.end_turn(now_ms)
        if self.log.silent and self.copies.settled():
            self.log.restrict(still=False, silent=False)
            self.copies.recovered()
            self.copies.end_turn(now_ms)
        self._confirm()

    def _confirm(self) -> None:
        if self.log.silent:
            return
        world, log = self.broker.world, self.log
        waiting = []
        for index, durable, content in self.unconfirmed:
            if index <= (log.committed_disk if durable else log.committed_memory):
                world.confirmed[content] = durable
            else:
                waiting.append((index, durable, content))
        self.unconfirmed = waiting
        pending = []
        for index, durable, queue, content in self.dequeued:
            if index <= (log.committed_disk if durable else log.committed_memory):
                world.settled[(queue, content)] = durable
            else:
                pending.append((index, durable, queue, content))
        self.dequeued = pending

    def resign(self) -> GroupCopy:
        """Become a copy: what was in memory only stays behind."""
        place = self.broker.place
        copy = GroupCopy.from_home(self.log, self.log.disk(), place.journal, place.spill)
        for queue_id, bodies in self.truth.queues.items():
            levels: dict[int, PagedIndex] = {}
            size = 0
            for index in sorted(bodies):
                position = self.positions.get((queue_id, index), 0)
                if position:
                    level = levels.setdefault(bodies[index].priority, PagedIndex())
                    level.append(index, position)
                    size += len(bodies[index].content)
            counts = dict(self.truth.counts.get(queue_id, {}))
            shown = dict(self.truth.shown.get(queue_id, {}))
            copy.adopt(
                RecoveredQueue(
                    queue_id, GROUP, levels, counts, size, self.seen.get(queue_id), shown
                )
            )
        return copy


class Broker(QueueStandbyPort):
    """A broker: its disk, and the copy or the home of the group."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.starts = 0
        self.up = False
        self.place = Place(segment_bytes=world.segment_bytes)
        self.standby: QueueStandby | None = None
        self.home: Home | None = None
        self.known = Group(GROUP, "", "", "", 0, 0)
        self.ready = False
        """It has learned of its own registration, and of all that was committed before."""

    @property
    def incarnation(self) -> str:
        return f"{self.name}{self.starts}"

    def start(self) -> None:
        self.starts += 1
        self.up = True
        self.ready = False
        self.place = self.place.restart()
        copy = self.place.copy()
        if self.starts == 1:
            copy = GroupCopy(GROUP, self.place.journal, self.place.spill)
            copy.known.index = self.world.first_index - 1
        self.standby = QueueStandby(copy, self, self.incarnation)
        # The cluster's state is on disk too.
        self.standby.learn(self.known.epoch)

    def crash(self) -> None:
        self.up = False
        self.standby = None
        self.home = None

    def copy(self) -> GroupCopy:
        assert self.standby is not None
        return self.standby.copy

    # ---- QueueStandbyPort

    def send(self, broker: str, method: i64, parts: list[bytes]) -> bool:
        data = b"".join(parts)
        if method == catalogue.REPLICATED and self.world.checked:
            self.world.check_answer(self, data)
        return self.world.send(self.name, broker, int(method), data)

    def applied(self) -> i64:
        return 1

    def loses(self, copy: GroupCopy, end: i64, home: str, epoch: i64) -> None:
        raise AssertionError("nothing that was confirmed is ever cut off")

    # ---- what happens

    def learn(self) -> None:
        """Hear what the root has committed."""
        group = self.world.register.group()
        self.known = group
        self.ready = self.world.register.registered.get(self.name) == self.incarnation
        if self.home is not None and self.home.log.epoch < group.epoch:
            copy = self.home.resign()
            self.home = None
            self.standby = QueueStandby(copy, self, self.incarnation)
        if group.home == self.name and group.incarnation == self.incarnation:
            if self.home is None:
                self._take_office(group)
        elif self.standby is not None:
            self.standby.learn(group.epoch)
        if self.home is not None:
            self.home.copies.group_changed(group)
            self._want()

    def _take_office(self, group: Group) -> None:
        copy = self.copy()
        assert not copy.installing, "whoever is appointed is able to"
        self.world.check_takeover(self, copy)
        self.standby = None
        self.home = self.world.home_kind(self, group.epoch, copy, self.world.now_ms)
        for other in self.world.brokers.values():
            if self.world.linked(self.name, other.name):
                self.home.copies.link_up(other.name, other.incarnation)

    def _want(self) -> None:
        assert self.home is not None
        others = [name for name in self.world.brokers if name != self.name]
        self.home.copies.wanted(self.world.chosen or others[: self.world.wanted])

    def receive(self, name: str, method: int, data: bytes) -> None:
        # As in a buffer that other frames share.
        padded = b"before" + data + b"after"
        end = 6 + len(data)
        if method == catalogue.INVITE:
            self._invited(name, codec.table_in(padded, 6, end))
        elif method == catalogue.REFUSED:
            if self.home is not None:
                self.home.copies.refused_by(name)
            elif self.standby is not None:
                self.standby.refused_by(name)
        elif self.home is not None:
            copies = self.home.copies
            if method == catalogue.FOLLOW:
                copies.followed_by(name, codec.table_in(padded, 6, end))
            elif method == catalogue.REPLICATED:
                copies.replicated_by(name, padded, 6)
            elif method == catalogue.WANT:
                copies.wanted_by(name, padded, 6)
        elif self.standby is not None:
            take = {
                catalogue.LIVE: self.standby.live,
                catalogue.RECORDS: self.standby.records,
                catalogue.BACKFILL: self.standby.backfilled,
                catalogue.RESTORE: self.standby.restored,
            }.get(method)
            if take is not None:
                take(name, padded, 6, end)

    def _invited(self, name: str, table: dict[str, object]) -> None:
        """As the node does."""
        if self.home is not None:
            refusal = codec.refused(0, GROUP, int(self.home.log.epoch), "it is home itself")
            self.world.send(self.name, name, catalogue.REFUSED, refusal)
        elif self.standby is not None and not self.ready:
            # It can't tell yet whether that home still is one.
            refusal = codec.refused(0, GROUP, 0, "it is not ready yet")
            self.world.send(self.name, name, catalogue.REFUSED, refusal)
        elif self.standby is not None:
            self.standby.invited_by(name, table)

    def link_up(self, name: str) -> None:
        if self.home is not None:
            self.home.copies.link_up(name, self.world.brokers[name].incarnation)

    def link_down(self, name: str) -> None:
        if self.home is not None:
            self.home.copies.link_down(name)
        if self.standby is not None:
            self.standby.link_down(name)

    def end_turn(self) -> None:
        if self.home is not None:
            self.home.end_turn(self.world.now_ms)
        if self.standby is not None:
            self.standby.copy.handed_over(self.place.submit())
            self.standby.end_turn()

    def sync(self, batches: int = 1 << 30) -> None:
        position = self.place.sync(batches)
        if self.home is not None:
            self.home.log.synced(position)
        if self.standby is not None:
            self.standby.copy.synced(position)
        self.end_turn()


class World:
    """Its kinds are other ones where a rule is broken on purpose (test_broken_rules.py)."""

    register_kind = Register
    home_kind = Home
    broker_kind = Broker

    def __init__(
        self,
        names: str = "abc",
        wanted: int = 2,
        members: str = "bc",
        window_bytes: int = 20_000,
        segment_bytes: int = 4096,
        checked: bool = True,
        first_index: int = 1,
    ) -> None:
        """Unless `checked` answers are not compared with what is true: that takes time. The log
        begins at `first_index`."""
        self.checked = checked
        self.first_index = first_index
        self.chosen: list[str] | None = None
        self.settings = ReplicatorSettings(2000, 500, window_bytes)
        self.segment_bytes = segment_bytes
        self.register = self.register_kind()
        self.wanted = wanted
        self.now_ms = 1000
        self.uid = 0
        self.links: dict[tuple[str, str], list[tuple[int, bytes]]] = {}
        self.proposals: list[tuple[Home, list[Member], int]] = []
        self.snapshots: dict[tuple[int, int], Content] = {}
        self.confirmed: dict[bytes, bool] = {}
        self.settled: dict[tuple[int, bytes], bool] = {}
        self.bytes_sent: dict[int, int] = {}
        self.frames_sent: dict[int, int] = {}
        self.answers = 0
        self.brokers = {name: self.broker_kind(self, name) for name in names}
        for broker in self.brokers.values():
            broker.start()
            self.register.registered[broker.name] = broker.incarnation
        self.register.members = tuple(Member(each, f"{each}1", WHOLE) for each in members)
        for broker in self.brokers.values():
            broker.learn()
        for name in names:
            for other in names:
                if name < other:
                    self.connect(name, other)

    # ---- links

    def linked(self, a: str, b: str) -> bool:
        return (a, b) in self.links

    def connect(self, a: str, b: str) -> None:
        if self.linked(a, b) or not (self.brokers[a].up and self.brokers[b].up):
            return
        self.links[(a, b)] = []
        self.links[(b, a)] = []
        self.brokers[a].link_up(b)
        self.brokers[b].link_up(a)

    def cut(self, a: str, b: str) -> None:
        if self.linked(a, b):
            del self.links[(a, b)], self.links[(b, a)]
            for name, other in ((a, b), (b, a)):
                if self.brokers[name].up:
                    self.brokers[name].link_down(other)

    def send(self, sender: str, receiver: str, method: int, data: bytes) -> bool:
        if not self.linked(sender, receiver):
            return False
        self.links[(sender, receiver)].append((method, data))
        self.bytes_sent[method] = self.bytes_sent.get(method, 0) + len(data)
        self.frames_sent[method] = self.frames_sent.get(method, 0) + 1
        return True

    def deliver(self, sender: str, receiver: str) -> bool:
        """Hand over the next frame; False if there is none."""
        waiting = self.links.get((sender, receiver))
        if not waiting:
            return False
        method, data = waiting.pop(0)
        self.brokers[receiver].receive(sender, method, data)
        self.brokers[receiver].end_turn()
        return True

    # ---- brokers

    def crash(self, name: str) -> None:
        for other in self.brokers:
            self.cut(name, other)
        self.brokers[name].crash()

    def start(self, name: str) -> None:
        self.brokers[name].start()

    def registers(self, name: str) -> None:
        broker = self.brokers[name]
        if broker.up:
            self.register.register(name, broker.incarnation)

    def decide(self) -> None:
        """The root decides on the oldest proposal."""
        if self.proposals:
            home, members, version = self.proposals.pop(0)
            done = self.register.set_members(members, int(home.log.epoch), version)
            if home.broker.home is home:
                if not done:
                    home.copies.proposal_refused(version)
                home.broker.learn()

    def take_over(self, whole_only: bool = False) -> bool:
        """Appoint whoever may be (G3)."""
        register = self.register
        for member in register.members:
            broker = self.brokers[member.broker]
            if member.copy == WHOLE and broker.up and broker.incarnation == member.incarnation:
                register.appoint(broker.name, broker.incarnation)
                return True
        if whole_only or not self.home_is_gone():
            return False
        return self._take_over_from_disk()

    def home_is_gone(self) -> bool:
        broker = self.brokers[self.register.home]
        return not broker.up or broker.incarnation != self.register.incarnation

    def _take_over_from_disk(self) -> bool:
        register = self.register
        candidates = []
        for member in register.members:
            broker = self.brokers[member.broker]
            if member.copy == DISK and broker.up and broker.incarnation == member.incarnation:
                candidates.append(broker)
        home = self.brokers[register.home]
        if register.home_restarted and home.up:
            if register.registered[home.name] == home.incarnation:
                candidates.append(home)
        fit = [each for each in candidates if each.standby is not None]
        fit = [each for each in fit if not each.copy().installing]
        if not fit:
            return False
        best = max(fit, key=lambda each: (int(each.copy().epoch), int(each.copy().index)))
        old_home, restarted = home, register.home_restarted
        register.appoint(best.name, best.incarnation)
        if restarted and best is not old_home:
            # Its disk has everything confirmed too.
            member = Member(old_home.name, register.registered[old_home.name], DISK)
            register.members = (*register.members, member)
        return True

    # ---- what must be true

    def check_takeover(self, broker: Broker, copy: GroupCopy) -> None:
        """A new home has all that was confirmed, and nothing that was settled."""
        live: dict[tuple[int, bytes], bool] = {}
        for queue_id, queue in copy.queues.items():
            for level in queue.levels.values():
                for _, position in level.positions():
                    live[(queue_id, broker.place.message(position).content)] = True
        contents = {content for _, content in live}
        gone = {content for _, content in self.settled}
        for content, durable in list(self.confirmed.items()):
            if content in contents or content in gone or self._is_dead(content):
                continue
            assert not durable, f"confirmed and lost: {content!r}"
            whole = self.register.home_was_whole
            assert not whole, f"confirmed, transient, and lost by a whole copy: {content!r}"
            del self.confirmed[content]
        for (queue, content), durable in self.settled.items():
            if durable or self.register.home_was_whole:
                assert (queue, content) not in live, f"settled and back: {content!r}"

    def _is_dead(self, content: bytes) -> bool:
        """Whether a dequeue that isn't committed, a purge or a drop has ended it somewhere."""
        return content in self.ended

    @property
    def ended(self) -> set[bytes]:
        found: set[bytes] = set()
        for key in self.snapshots:
            epoch, index = key
            after = self.snapshots.get((epoch, index + 1))
            if after is not None:
                before = _contents(self.snapshots[key])
                found |= before - _contents(after)
        return found

    def check_answer(self, broker: Broker, data: bytes) -> None:
        """What a standby says about memory and disk is true."""
        self.answers += 1
        epoch = int(codec.epoch_at(data, 0))
        memory = int.from_bytes(data[6:14], "big")
        disk = int.from_bytes(data[14:22], "big")
        state = data[22]
        copy = broker.copy()
        if state == codec.WHOLE:
            truth = self.snapshots[(epoch, memory)]
            check(copy, broker.place, truth)
            held = broker.place.journal.live_references() | broker.place.spill.live_references()
            assert references(copy) == held
        if state >= codec.ON_DISK and disk > 0 and (epoch, disk) in self.snapshots:
            self._check_disk(broker, epoch, disk)

    def _check_disk(self, broker: Broker, epoch: int, disk: int) -> None:
        """If the broker restarted now it would have what it says it has on disk."""
        truth = self.snapshots[(epoch, disk)]
        ends = [index for each, index in self.snapshots if each == epoch]
        latest = self.snapshots[(epoch, max(ends))]
        files = copying.deepcopy(broker.place.files.contents)
        named = dict(broker.place.files.named)
        restarted = Place(segment_bytes=self.segment_bytes)
        restarted.files.contents.update(files)
        restarted.files.named.update(named)
        recovered = restarted.restart().copy()
        assert not recovered.installing
        for queue_id, bodies in truth.live().items():
            for index, body in bodies.items():
                if body.durable and index in latest.queues.get(queue_id, {}):
                    there = queue_id in recovered.queues and recovered.queues[queue_id].has(index)
                    assert there, f"on disk, as it says, and not after a restart: {index}"
        for queue_id, queue in recovered.queues.items():
            for level in queue.levels.values():
                for index, _ in level.positions():
                    if index <= disk:
                        assert index in truth.queues.get(queue_id, {}), (queue_id, index)

    # ---- quiet times

    def settle(self, rounds: int = 2000) -> None:
        """Let everything happen that is under way."""
        for _ in range(rounds):
            busy = False
            for broker in self.brokers.values():
                if broker.up and broker.place.unsynced:
                    broker.sync()
                    busy = True
            for sender, receiver in list(self.links):
                busy = self.deliver(sender, receiver) or busy
            if self.proposals:
                self.decide()
                busy = True
            if not busy:
                return
        raise AssertionError("it never comes to rest")

    def tick(self, ms: int = 100) -> None:
        self.now_ms += ms
        for broker in self.brokers.values():
            if broker.home is not None:
                broker.home.copies.tick(self.now_ms)
            if broker.up:
                broker.end_turn()

    def heal(self) -> None:
        """End all faults, and let the group become whole."""
        for name, broker in self.brokers.items():
            if not broker.up:
                self.start(name)
            self.registers(name)
        for _ in range(100):
            for name in self.brokers:
                for other in self.brokers:
                    if name < other:
                        self.connect(name, other)
            for broker in self.brokers.values():
                broker.learn()
            if self.home_is_gone():
                self.take_over()
            self.settle()
            self.tick()
            if self.is_whole():
                return
        raise AssertionError(f"not whole after all faults ended: {self.register}")

    def is_whole(self) -> bool:
        home = self.brokers[self.register.home].home
        if home is None or home.log.silent or len(self.register.members) < self.wanted:
            return False
        return all(home.copies.has_everything(each.broker) for each in self.register.members)

    def home(self) -> Home:
        home = self.brokers[self.register.home].home
        assert home is not None
        return home


def _contents(content: Content) -> set[bytes]:
    return {body.content for bodies in content.queues.values() for body in bodies.values()}
