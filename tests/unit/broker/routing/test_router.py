"""Direct, fanout, default and delayed exchanges, bindings between exchanges, alternates."""

from __future__ import annotations

import pytest

from rhizome.broker.routing import Destination, Exchange, Router, make_exchange
from rhizome.errors import CommandInvalid, PreconditionFailed


class Board:
    """A router with short ways to fill and ask it."""

    def __init__(self) -> None:
        self.router = Router("/")

    def exchange(self, name: str, kind: str, **arguments: object) -> Exchange:
        given = {key.replace("_", "-"): value for key, value in arguments.items()}
        made = make_exchange("/", name, kind, arguments=given)
        self.router.add_exchange(made)
        return made

    def end(self, name: str) -> Destination:
        """The exchange of that name, or the queue, made if need be."""
        if name in self.router.exchanges:
            return self.router.exchanges[name]
        if name not in self.router.queues:
            self.router.add_queue(Destination("/", name))
        return self.router.queues[name]

    def bind(self, source: str, destination: str, key: str = "", **arguments: object) -> bool:
        return self.router.bind(
            self.router.exchanges[source], self.end(destination), key, arguments
        )

    def unbind(self, source: str, destination: str, key: str = "", **arguments: object) -> bool:
        return self.router.unbind(
            self.router.exchanges[source], self.end(destination), key, arguments
        )

    def route(
        self, source: str, key: str = "", headers: dict[str, object] | None = None
    ) -> list[str]:
        found = self.router.route(self.router.exchanges[source], key, headers)
        assert not any(destination.is_exchange for destination in found)
        return [destination.name for destination in found]


@pytest.fixture
def board() -> Board:
    return Board()


def test_direct_exchange_reaches_queues_bound_with_the_key(board: Board) -> None:
    board.exchange("x", "direct")
    board.bind("x", "a", "red")
    board.bind("x", "b", "red")
    board.bind("x", "c", "blue")
    assert board.route("x", "red") == ["a", "b"]
    assert board.route("x", "blue") == ["c"]
    assert board.route("x", "green") == []


def test_fanout_exchange_reaches_every_queue_once(board: Board) -> None:
    board.exchange("x", "fanout")
    board.bind("x", "a", "one")
    board.bind("x", "a", "two")
    board.bind("x", "b")
    assert board.route("x", "whatever") == ["a", "b"]


def test_default_exchange_reaches_the_queue_of_that_name(board: Board) -> None:
    board.end("a")
    assert board.route("", "a") == ["a"]
    assert board.route("", "b") == []


def test_default_exchange_forgets_a_removed_queue(board: Board) -> None:
    board.router.remove_queue(board.end("a"))
    assert board.route("", "a") == []


def test_binding_twice_is_one_binding(board: Board) -> None:
    exchange = board.exchange("x", "direct")
    assert board.bind("x", "a", "k", one=1, two=2)
    assert not board.bind("x", "a", "k", two=2, one=1)
    assert len(exchange.bindings()) == 1
    assert board.unbind("x", "a", "k", one=1, two=2)
    assert exchange.is_unused()


def test_bindings_with_other_arguments_are_counted_apart(board: Board) -> None:
    exchange = board.exchange("x", "direct")
    board.bind("x", "a", "k")
    board.bind("x", "a", "k", n=1)
    board.bind("x", "a", "k", n=True)
    assert len(exchange.bindings()) == 3
    assert board.unbind("x", "a", "k")
    assert board.unbind("x", "a", "k", n=1)
    assert board.route("x", "k") == ["a"]
    assert board.unbind("x", "a", "k", n=True)
    assert board.route("x", "k") == []


def test_unbinding_what_is_not_bound_changes_nothing(board: Board) -> None:
    board.exchange("x", "direct")
    board.bind("x", "a", "k")
    epoch = board.router.epoch
    assert not board.unbind("x", "a", "other")
    assert not board.unbind("x", "b", "k")
    assert board.router.epoch == epoch + 1  # queue b was made by the test
    assert board.route("x", "k") == ["a"]


def test_unbind_all_removes_only_bindings_to_that_destination(board: Board) -> None:
    exchange = board.exchange("x", "direct")
    board.exchange("y", "direct")
    board.bind("x", "a", "1")
    board.bind("x", "a", "2")
    board.bind("x", "b", "1")
    board.bind("y", "a", "1")
    assert exchange.unbind_all(board.end("a")) == 2
    assert [binding.destination.name for binding in exchange.bindings()] == ["b"]
    assert board.route("y", "1") == ["a"]


def test_queue_and_exchange_of_one_name_are_two_destinations(board: Board) -> None:
    source = board.exchange("x", "direct")
    target = board.exchange("same", "fanout")
    queue = Destination("/", "same")
    board.router.add_queue(queue)
    assert board.router.bind(source, queue, "k", {})
    assert board.router.bind(source, target, "k", {})
    assert len(source.bindings()) == 2
    assert board.route("x", "k") == ["same"]


def test_removed_queue_leaves_its_sources_and_names_them(board: Board) -> None:
    x = board.exchange("x", "direct")
    y = board.exchange("y", "topic")
    board.bind("x", "a", "1")
    board.bind("x", "a", "2")
    board.bind("y", "a", "a.*")
    assert board.router.remove_queue(board.end("a")) == [x, y]
    assert x.is_unused()
    assert y.is_unused()
    assert board.route("y", "a.b") == []


def test_removed_exchange_takes_bindings_of_both_directions(board: Board) -> None:
    x = board.exchange("x", "fanout")
    middle = board.exchange("middle", "fanout")
    board.bind("x", "middle")
    board.bind("middle", "a")
    board.bind("middle", "middle")
    assert board.router.remove_exchange(middle) == [x]
    assert board.end("a").incoming == {}
    assert board.route("x") == []
    assert board.router.bindings() == []


def test_messages_follow_bindings_between_exchanges(board: Board) -> None:
    board.exchange("x", "topic")
    board.exchange("y", "direct")
    board.bind("x", "y", "#")
    board.bind("x", "a", "*.b")
    board.bind("y", "c", "a.b")
    board.bind("y", "a", "a.b")
    assert board.route("x", "a.b") == ["a", "c"]
    assert board.route("x", "b.b") == ["a"]


def test_loop_of_exchanges_ends(board: Board) -> None:
    for name in ("x", "y", "z"):
        board.exchange(name, "fanout")
    board.bind("x", "y")
    board.bind("y", "z")
    board.bind("z", "x")
    board.bind("z", "z")
    board.bind("z", "a")
    board.bind("x", "a")
    for name in ("x", "y", "z"):
        assert board.route(name) == ["a"]


def test_unmatched_message_goes_to_the_alternate(board: Board) -> None:
    board.exchange("x", "direct", alternate_exchange="other")
    board.exchange("other", "fanout")
    board.bind("x", "a", "k")
    board.bind("other", "b")
    assert board.route("x", "k") == ["a"]
    assert board.route("x", "no") == ["b"]


def test_alternates_chain_and_loops_of_them_end(board: Board) -> None:
    board.exchange("x", "direct", alternate_exchange="y")
    board.exchange("y", "direct", alternate_exchange="z")
    board.exchange("z", "direct", alternate_exchange="x")
    assert board.route("x", "k") == []
    board.bind("z", "a", "k")
    assert board.route("x", "k") == ["a"]


def test_alternate_that_does_not_exist_is_ignored(board: Board) -> None:
    board.exchange("x", "direct", alternate_exchange="nowhere")
    assert board.route("x", "k") == []


def test_exchange_on_the_way_uses_its_own_alternate(board: Board) -> None:
    board.exchange("x", "fanout")
    board.exchange("y", "direct", alternate_exchange="z")
    board.exchange("z", "fanout")
    board.bind("x", "y")
    board.bind("x", "a")
    board.bind("z", "b")
    assert board.route("x", "k") == ["a", "b"]


@pytest.mark.parametrize(
    ("kind", "key"),
    [("direct", "k"), ("fanout", "k"), ("topic", "#"), ("headers", ""), ("x-consistent-hash", "1")],
)
def test_match_of_a_queue_already_reached_is_still_a_match(
    board: Board, kind: str, key: str
) -> None:
    """Else the alternate would get a message that was routed."""
    board.exchange("x", "fanout")
    board.exchange("y", kind, alternate_exchange="lost")
    board.exchange("lost", "fanout")
    board.bind("x", "a")
    board.bind("x", "y")
    board.bind("y", "a", key)
    board.bind("lost", "wrong")
    assert board.route("x", "k", {}) == ["a"]


def test_headers_are_needed_when_a_reachable_exchange_reads_them(board: Board) -> None:
    x = board.exchange("x", "direct")
    board.exchange("y", "fanout", alternate_exchange="h")
    assert not board.router.needs_headers(x)
    board.bind("x", "y", "k")
    assert not board.router.needs_headers(x)
    board.exchange("h", "headers")
    assert board.router.needs_headers(x)
    board.unbind("x", "y", "k")
    assert not board.router.needs_headers(x)


def test_question_for_headers_survives_loops(board: Board) -> None:
    x = board.exchange("x", "fanout", alternate_exchange="y")
    board.exchange("y", "fanout", alternate_exchange="x")
    board.bind("x", "x")
    board.bind("y", "x")
    assert not board.router.needs_headers(x)


def test_hash_of_a_header_needs_headers_and_hash_of_the_key_does_not(board: Board) -> None:
    assert not board.router.needs_headers(board.exchange("x", "x-consistent-hash"))
    assert board.router.needs_headers(board.exchange("y", "x-consistent-hash", hash_header="h"))
    assert board.router.needs_headers(
        board.exchange("z", "x-consistent-hash", hash_property="message_id")
    )


def test_epoch_grows_with_every_change(board: Board) -> None:
    seen = [board.router.epoch]
    exchange = board.exchange("x", "fanout")
    seen.append(board.router.epoch)
    board.end("a")
    seen.append(board.router.epoch)
    board.bind("x", "a")
    seen.append(board.router.epoch)
    board.router.set_alternate(exchange, "y")
    seen.append(board.router.epoch)
    board.unbind("x", "a")
    seen.append(board.router.epoch)
    board.router.remove_queue(board.end("a"))
    seen.append(board.router.epoch)
    board.router.remove_exchange(exchange)
    seen.append(board.router.epoch)
    assert seen == sorted(set(seen))
    board.exchange("x", "fanout")
    board.bind("x", "a")
    before = board.router.epoch
    board.bind("x", "a")
    board.route("x")
    assert board.router.epoch == before


def test_delayed_exchange_routes_like_the_type_that_it_names(board: Board) -> None:
    exchange = board.exchange("x", "x-delayed-message", x_delayed_type="topic")
    board.bind("x", "a", "*.b")
    assert exchange.delayed
    assert exchange.kind == "x-delayed-message"
    assert board.route("x", "a.b") == ["a"]
    assert not board.exchange("y", "topic").delayed


@pytest.mark.parametrize("delayed_type", [None, "x-delayed-message", "nonsense", 1])
def test_delayed_exchange_needs_a_type_that_exists(delayed_type: object) -> None:
    with pytest.raises(PreconditionFailed, match="must be an existing exchange type"):
        make_exchange("/", "x", "x-delayed-message", arguments={"x-delayed-type": delayed_type})


def test_unknown_exchange_type_is_refused() -> None:
    with pytest.raises(CommandInvalid) as caught:
        make_exchange("/", "x", "ZZwwInvalid")
    assert caught.value.text == "unknown exchange type 'ZZwwInvalid'"


def test_many_subscribers_come_and_go(board: Board) -> None:
    """Removal must not search: this takes minutes if it does."""
    exchange = board.exchange("x", "fanout")
    count = 20_000
    for number in range(count):
        board.bind("x", f"q{number}")
    assert len(board.route("x")) == count
    for number in range(count - 1):
        board.router.remove_queue(board.end(f"q{number}"))
    assert board.route("x") == [f"q{count - 1}"]
    assert len(exchange.bindings()) == 1


def test_a_binding_of_many_words_weighs_more_until_it_is_gone(board: Board) -> None:
    for name in ("x", "y", "z"):
        board.exchange(name, "topic")
    queue = board.end("q")
    board.bind("x", "q", "a.b.c.d.e.f.g.h")
    assert queue.weight == 1
    board.bind("y", "q", ".".join("a" * 120))
    assert queue.weight == 1 + 15
    board.bind("y", "q", ".".join("b" * 120))
    board.unbind("y", "q", ".".join("b" * 120))
    assert queue.weight == 1 + 15
    board.bind("z", "q", "one")
    board.bind("z", "y", "two")
    board.router.remove_exchange(board.router.exchanges["z"])
    assert (queue.weight, board.end("y").weight) == (1 + 15, 0)
    assert [binding.source for binding in queue.incoming] == ["x", "y"]
    board.router.remove_exchange(board.router.exchanges["y"])
    assert (queue.weight, len(queue.incoming)) == (1, 1)
    board.unbind("x", "q", "a.b.c.d.e.f.g.h")
    assert (queue.weight, len(queue.incoming)) == (0, 0)


def test_an_exchange_bound_to_itself_goes_with_its_bindings(board: Board) -> None:
    x = board.exchange("x", "fanout")
    board.exchange("y", "fanout")
    board.bind("x", "x")
    board.bind("y", "x")
    assert [each.name for each in board.router.remove_exchange(x)] == ["y"]
    assert board.router.exchanges["y"].bindings() == []
