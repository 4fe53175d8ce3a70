"""What each vhost has of the cluster state, and may have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import (
    ChannelClose,
    ExchangeDeclare,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueUnbind,
    QueueUnbindOk,
)
from rhizome.broker.metadata.metadata_commands import (
    EXCHANGE,
    QUEUE,
    Bind,
    Command,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteParameter,
    DeletePolicy,
    DeleteQueue,
    DeleteVhost,
    PutParameter,
    PutPolicy,
    PutVhost,
    Unbind,
    encode,
)
from rhizome.broker.metadata.metadata_snapshot import commands_of
from rhizome.broker.metadata.metadata_state import State
from rhizome.broker.metadata.vhost_metadata_byte_quota import (
    ARGUMENTS_BYTES_MAX,
    BINDINGS_MAX,
    PARAMETER_BYTES_MAX,
    POLICIES_MAX,
    SOURCE_BINDINGS_MAX,
    check_command,
    quota_of,
)
from rhizome.errors import PreconditionFailed
from rhizome.testing.in_memory_broker import Core, make_core

COUNTED = (DeclareExchange, DeclareQueue, Bind, PutPolicy, PutParameter)


def made(*commands: Command) -> State:
    state = State()
    for command in (PutVhost("a"), PutVhost("b"), *commands):
        assert state.apply(command).error is None, command
    return state


def recounted(state: State) -> dict[str, int]:
    found: dict[str, int] = {}
    for command in commands_of(state, True):
        if isinstance(command, COUNTED):
            found[command.vhost] = found.get(command.vhost, 0) + len(encode(command))
    return found


def refusal(state: State, command: Command, under_way: int = 0) -> str:
    with pytest.raises(PreconditionFailed) as caught:
        check_command(state, command, under_way)
    return caught.value.text


STEPS: list[Command] = [
    DeclareExchange("a", "x", "topic", arguments={"alternate-exchange": "y"}),
    DeclareExchange("a", "y", "fanout"),
    DeclareQueue("a", "q", arguments={"x-max-length": 5}, user="eve"),
    DeclareQueue("a", "q", arguments={"x-max-length": 5}, user="mallory"),
    Bind("a", "x", "q", key="k"),
    Bind("a", "x", "q", key="k"),
    Bind("a", "x", "y", "exchange"),
    DeclareQueue("b", "q"),
    Bind("b", "amq.topic", "q"),
    DeclareQueue("a", "mine", exclusive_owner="1"),
    Bind("a", "x", "mine", "private"),
    DeclareQueue("a", "mine"),
    PutPolicy("a", "p", ".*", {"max-length": 5}),
    PutPolicy("a", "p", ".*", {"max-length": 5, "message-ttl": 10}),
    PutPolicy("a", "p", ".*", {"max-length": 5, "message-ttl": 10}),
    PutPolicy("a", "o", ".*", {"max-length": 5}, "queues", 0, True),
    PutParameter("shovel", "a", "s", {"n": [1, 2]}),
    PutParameter("shovel", "a", "s", {"n": "much more than before"}),
    PutParameter("shovel", "b", "s", 5),
    PutParameter("global", "", "g", "text"),
    DeleteParameter("shovel", "a", "missing"),
    DeletePolicy("a", "p"),
    DeletePolicy("a", "missing"),
    DeleteParameter("shovel", "a", "s"),
    Unbind("a", "x", "q", key="k"),
    DeleteVhost("b"),
    DeleteExchange("a", "x"),
    DeleteQueue("a", "mine"),
    DeleteQueue("a", "q"),
    DeleteParameter("global", "", "g"),
    DeletePolicy("a", "o", True),
    DeleteExchange("a", "y"),
]


def test_bytes_of_each_vhost_are_followed_and_not_counted_anew() -> None:
    state = made()
    for step in STEPS:
        state.apply(step)
        counted = recounted(state)
        assert {vhost: state.sizes.of(vhost) for vhost in counted} == counted, step
        assert state.sizes.total == sum(counted.values()), step
    assert state.sizes.total == state.sizes.topology == 0


def test_a_snapshot_brings_the_same_bytes() -> None:
    state = made(*STEPS[:20])
    again = State.restore(state.snapshot(transient=True))
    assert {name: again.sizes.of(name) for name in ("a", "b", "")} == recounted(state)


def test_a_vhost_may_have_half_of_what_others_leave() -> None:
    state = made(DeclareQueue("a", "q"))
    state.sizes.bytes_max = 10_000
    used = state.sizes.of("a")
    assert quota_of(state, "a") == 5_000
    assert quota_of(state, "b") == (10_000 - used) // 2
    assert quota_of(state, "") == (10_000 - used) // 2


def test_a_vhost_that_is_the_only_one_may_have_all() -> None:
    state = State()
    state.apply(PutVhost("a"))
    state.sizes.bytes_max = 10_000
    assert quota_of(state, "a") == 10_000


def test_a_full_vhost_gets_no_more_and_others_do() -> None:
    """One tenant filled the state, and nobody else could declare a queue."""
    state = made()
    state.sizes.bytes_max = 200_000
    big = {"x": "y" * 10_000}
    count = 0
    while True:
        command = DeclareQueue("a", f"q{count}", arguments=big)
        try:
            check_command(state, command)
        except PreconditionFailed:
            break
        state.apply(command)
        count += 1
    assert 0 < state.sizes.of("a") <= 100_000
    assert "vhost 'a' has" in refusal(state, PutParameter("shovel", "a", "s", "x" * 20_000))
    assert "vhost 'a' has" in refusal(state, DeclareExchange("a", "x", "topic", arguments=big))
    assert "vhost 'a' has" in refusal(state, Bind("a", "amq.topic", "q0", key="k", arguments=big))
    policy = PutPolicy("a", "p", "x" * 15_000, {"max-length": 1})
    assert "vhost 'a' has" in refusal(state, policy)
    for command in (
        DeclareQueue("b", "q", arguments=big),
        PutParameter("shovel", "b", "s", "x" * 20_000),
        PutPolicy("a", "o", ".*", {"max-length": 1}, "queues", 0, True),
        DeclareQueue("a", "q0", arguments=big),
    ):
        check_command(state, command)


def test_what_is_beyond_its_quota_stays_and_only_growth_is_refused() -> None:
    """As in a store of a release that had none."""
    state = made(
        DeclareQueue("a", "q", arguments={"x": "y" * 50_000}),
        PutParameter("shovel", "a", "s", "x" * 100_000),
    )
    state.sizes.bytes_max = 200_000
    assert "vhost 'a' has" in refusal(state, DeclareQueue("a", "r"))
    check_command(state, DeclareQueue("a", "q", arguments={"x": "y" * 50_000}))
    check_command(state, PutParameter("shovel", "a", "s", "x" * 99_999))
    assert "at most 65536" in refusal(state, PutParameter("shovel", "a", "s", "x" * 100_001))
    check_command(state, DeclareQueue("b", "q"))
    again = State.restore(state.snapshot(transient=True))
    assert again.sizes.of("a") == state.sizes.of("a")


def test_what_is_proposed_and_not_applied_counts() -> None:
    state = made()
    state.sizes.bytes_max = 10_000
    check_command(state, DeclareQueue("a", "q"), 4_000)
    assert "vhost 'a' has 5000 of the 5000" in refusal(state, DeclareQueue("a", "q"), 5_000)


def test_one_parameter_has_a_largest_size() -> None:
    state = made()
    check_command(state, PutParameter("shovel", "a", "s", "x" * (PARAMETER_BYTES_MAX - 200)))
    text = refusal(state, PutParameter("shovel", "a", "s", "x" * PARAMETER_BYTES_MAX))
    assert "parameter 's' of shovel has " in text
    assert text.endswith("bytes; at most 65536 are possible")


def test_a_vhost_has_a_largest_number_of_policies() -> None:
    state = made()
    for number in range(POLICIES_MAX):
        assert state.apply(PutPolicy("a", f"p{number}", "^x", {"max-length": 1})).error is None
    one_more = PutPolicy("a", "one-more", "^x", {"max-length": 1})
    assert "vhost 'a' has 256 policies; at most 256 are possible" in refusal(state, one_more)
    for possible in (
        PutPolicy("a", "p1", "^y", {"max-length": 2}),
        replace(one_more, operator=True),
        replace(one_more, vhost="b"),
    ):
        check_command(state, possible, 0)
    check_command(state, one_more, takes_whole=True)  # an import of definitions


def test_one_policy_has_a_largest_size() -> None:
    state = made()
    text = refusal(state, PutPolicy("a", "p", "x" * 17_000, {"max-length": 1}))
    assert "policy 'p' in vhost 'a' has 17" in text
    assert text.endswith("at most 16384 are possible")


# --- on a broker


def large() -> dict[str, Any]:
    return {"x": "y" * ARGUMENTS_BYTES_MAX}


@pytest.mark.parametrize(
    ("method", "what"),
    [
        (QueueDeclare(queue="q", arguments=large()), "queue 'q'"),
        (QueueDeclare(queue="q", exclusive=True, arguments=large()), "queue 'q'"),
        (ExchangeDeclare("e", "topic", arguments=large()), "exchange 'e'"),
        (QueueBind("there", "amq.topic", "k", arguments=large()), "a binding of queue 'there'"),
    ],
)
def test_arguments_that_are_too_large_are_refused(method: Any, what: str) -> None:
    core = make_core()
    client = core.connect()
    client.declare("there")
    client.send(method)
    core.settle()
    closed = client.expect(ChannelClose)
    assert closed.reply_code == 406
    size = len(b"\0\0\0\0\x01xS\0\0\0\0") + ARGUMENTS_BYTES_MAX
    wanted = f"the arguments of {what} in vhost '/' have {size} bytes; at most 16384 are possible"
    assert wanted in closed.reply_text


def test_a_queue_of_before_may_be_declared_again_and_is_there_after_a_restart() -> None:
    core = make_core()
    old = DeclareQueue("/", "old", durable=True, arguments=large(), user="guest")
    recorded = encode(old)
    outcome = core.broker.apply(old)
    core.broker.announce(outcome)
    core.store.journal.state(1000, recorded)
    core.settle()
    again = Core(core.files, core.config, core.now_ms, bytes(32))
    assert again.has_queue("old")
    client = again.connect()
    assert client.declare("old", durable=True, **large()) == "old"


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_queue_has_a_largest_number_of_bindings(exclusive: bool) -> None:
    core = make_core()
    client = core.connect()
    client.call(QueueDeclare("q", exclusive=exclusive), QueueDeclareOk)
    binds = [
        method_frame(1, QueueBind("q", "amq.topic", str(key), no_wait=True))
        for key in range(BINDINGS_MAX)
    ]
    client.send_bytes(b"".join(binds))
    core.settle()
    client.call(QueueBind("q", "amq.topic", "0"), QueueBindOk)  # is there
    client.call(QueueUnbind("q", "amq.topic", "1"), QueueUnbindOk)
    client.call(QueueBind("q", "amq.topic", "another"), QueueBindOk)
    client.send(QueueBind("q", "amq.direct", "one more"))
    core.settle()
    closed = client.expect(ChannelClose)
    assert closed.reply_code == 406
    assert f"queue 'q' in vhost '/' has {BINDINGS_MAX} bindings" in closed.reply_text


def test_bindings_of_many_words_count_as_several() -> None:
    """Removing one of 120 words takes as many steps; all go in one turn."""
    state = made(DeclareQueue("a", "q", False, False, "", {}))
    router = state.vhosts["a"].router
    words = ".a" * 120
    for number in range(BINDINGS_MAX // 16):
        check_command(state, Bind("a", "amq.topic", "q", QUEUE, f"{number}{words}", {}))
        router.bind(router.exchanges["amq.topic"], router.queues["q"], f"{number}{words}", {})
    with pytest.raises(PreconditionFailed, match="one with many words counts as several"):
        check_command(state, Bind("a", "amq.topic", "q", QUEUE, "one more", {}))


def test_an_exchange_that_can_be_deleted_has_a_largest_number_of_bindings_from_it() -> None:
    state = made(
        DeclareExchange("a", "x", "topic", False, False, False, {}),
        DeclareExchange("a", "y", "topic", False, False, False, {}),
        *(DeclareQueue("a", f"q{at}", False, False, "", {}) for at in range(3)),
    )
    router = state.vhosts["a"].router
    for key in range(SOURCE_BINDINGS_MAX):
        for source in ("x", "amq.topic"):
            router.bind(router.exchanges[source], router.queues[f"q{key % 3}"], str(key), {})
    check_command(state, Bind("a", "x", "q0", QUEUE, "0", {}))  # is there
    check_command(state, Bind("a", "amq.topic", "y", EXCHANGE, "one more", {}))
    check_command(state, Bind("a", "y", "x", EXCHANGE, "one more", {}))
    with pytest.raises(PreconditionFailed, match=f"'x' in vhost 'a' has {SOURCE_BINDINGS_MAX} bin"):
        check_command(state, Bind("a", "x", "y", EXCHANGE, "one more", {}))


@pytest.mark.parametrize("gone", [DeleteQueue("a", "q", 0), DeleteExchange("a", "x", False)])
def test_a_binding_is_counted_once_and_not_encoded_again_when_it_goes(gone: Command) -> None:
    """Thousands of bindings go with a queue in one turn, and to encode one takes 4 microseconds."""
    state = made(
        DeclareExchange("a", "x", "topic", False, False, False, {}),
        DeclareQueue("a", "q", False, False, "", {}),
    )
    bind = Bind("a", "x", "q", QUEUE, "k", {"x": 1})
    assert state.apply(bind).error is None
    (binding,) = state.vhosts["a"].router.bindings()
    assert binding.state_bytes == len(encode(bind))
    binding.state_bytes += 7  # as if it had been counted so
    state.apply(gone)
    assert state.sizes.of("a") == recounted(state).get("a", 0) - 7
