"""OpenTransaction: what a transaction has collected, and a commit that isn't safe yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64, mypyc_attr

from rhizome.amqp.methods import Method
from rhizome.broker.connection.connection_states import CLOSED
from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.publishing.forward_port import Forward
from rhizome.broker.publishing.publication import Publication
from rhizome.broker.publishing.publisher_confirms import are_safe
from rhizome.broker.streams.stream_restrictions import is_stream
from rhizome.errors import PreconditionFailed

if TYPE_CHECKING:
    from rhizome.broker.channel.channel import Channel


@mypyc_attr(allow_interpreted_subclasses=True)
class PendingCommit:
    """A transaction that is answered once its record is on disk and what it sent to other brokers
    is safe there."""

    here: dict[GroupLog, int]
    elsewhere: dict[Forward, int]
    channel: Channel
    answer: Method

    def __init__(
        self,
        here: dict[GroupLog, int],
        elsewhere: dict[Forward, int],
        channel: Channel,
        answer: Method,
    ) -> None:
        self.here = here
        self.elsewhere = elsewhere
        self.channel = channel
        self.answer = answer

    def is_safe(self) -> bool:
        for log, index in self.here.items():
            if index > log.committed_disk:
                return False
        return are_safe(self.elsewhere)

    def finish(self) -> None:
        """The transaction is safe: answer."""
        channel = self.channel
        if channel.connection.stage != CLOSED:
            if not channel.closing:
                channel.send(self.answer)
            channel.connection.resume()


@final
class Transaction:
    """Invariant: the channel holds the tags in ``settled`` until commit or rollback. There are at
    most ``parts_max`` publications and tags, because a commit does them in one turn."""

    publications: list[Publication]
    settled: dict[int, int]
    parts_max: i64

    def __init__(self, parts_max: i64) -> None:
        self.publications = []
        self.settled = {}
        self.parts_max = parts_max

    def publish(self, publication: Publication) -> None:
        self._check_room(1)
        self.publications.append(publication)

    def settle(self, tags: list[int], kind: int) -> None:
        self._check_room(len(tags))
        for tag in tags:
            self.settled[tag] = kind

    def _check_room(self, more: i64) -> None:
        if len(self.publications) + len(self.settled) + more > self.parts_max:
            raise PreconditionFailed(
                f"the transaction has more than {self.parts_max} publishes and acknowledgements"
                " (limits.transaction_parts_max); commit more often"
            )

    def groups(self, channel: Channel) -> dict[int, bool]:
        """The groups that the transaction changes, and whether a home elsewhere has to. Streams are
        not among them."""
        found: dict[int, bool] = {}
        shared = channel.connection.broker.shared
        for publication in self.publications:
            for queue in publication.queues:
                if queue.log.group != 0 and not is_stream(queue.options):
                    found.setdefault(queue.log.group, False)
            for target in publication.targets:
                for queue_id in target.queue_ids:
                    away = shared.get(queue_id)
                    if away is not None and not is_stream(away.options):
                        found[target.forward.group] = True
        for tag in self.settled:
            consumer = channel.unacked.consumer(tag)
            if consumer is not None and not is_stream(consumer.queue.options):
                group = consumer.queue.definition.group
                if group != 0 and consumer.proxy is not None:
                    found[group] = True
                elif group != 0:
                    found.setdefault(group, False)
        return found
