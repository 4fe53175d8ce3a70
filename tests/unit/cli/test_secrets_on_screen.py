"""What commands print: nothing that a terminal obeys, and no password of a URI.

Every command that takes an address is run with wrong ones that hold a password which is easy to
find.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from rhizome.bridge import BridgeSettings, InvalidBridge
from rhizome.bridge.bridge_config_file import parse_bridges
from rhizome.cli.bench.load_generator import Plan
from rhizome.cli.context_file import Context, Contexts, contexts_file, save
from rhizome.cli.main import COMMANDS, _load
from rhizome.client import InvalidUri, parse_uris
from rhizome.shovel_parameters import InvalidShovel, parse_shovel
from rhizome.spark.amqp_socket import addresses_of
from rhizome.spark.data_source_options import OptionError, Options

Rhizome = Callable[..., Result]

MARKER = "pa55word-on-screen-6b1f"
WRONG = (
    f"amqp://app:{MARKER}@b1:x/",
    f"amqp://app:{MARKER}@b1/a/b",
    f"amqp://app:{MARKER}@b1?heartbaet=1",
    f"amqp://app:{MARKER}@b1?heartbeat=soon",
    f"amqp://app:{MARKER}@[::1",
    f"amqp://app:{MARKER}",
    f"amqp://app:x/{MARKER}@b1",
    f"amqp://app:x?{MARKER}@b1",
    f"amqp://app:x?heartbeat={MARKER}@b1",
    f"amqp:/app:{MARKER}@b1",
    f"app:{MARKER}@b1",
    f"ftp://app:{MARKER}@b1",
)
OPTIONS = ("--uri", "--uri-from", "--http", "--from", "--to", "--own")


def takers() -> Iterator[tuple[str, str, Any]]:
    """Every command that takes an address: its words, the option, the command."""

    def walk(words: tuple[str, ...], command: Any) -> Iterator[tuple[str, str, Any]]:
        inside = getattr(command, "commands", None)
        if inside is not None:
            for name, each in inside.items():
                yield from walk((*words, name), each)
            return
        for parameter in command.params:
            for option in parameter.opts:
                if option in OPTIONS and parameter.metavar in ("URI", "HOST:PORT,..."):
                    yield " ".join(words), option, command

    for name in COMMANDS:
        yield from walk((name,), _load(name))


def filled(command: Any, directory: Path) -> list[str]:
    """Values for what a command can't do without."""
    file = directory / "file"
    file.write_text("{}")
    given = []
    for parameter in command.params:
        if not parameter.required:
            continue
        kind = parameter.type.name
        value = {"integer": "1", "float": "1", "path": str(file), "file": str(file)}.get(kind, "x")
        if getattr(parameter.type, "choices", None):
            value = str(getattr(parameter.type.choices[0], "value", parameter.type.choices[0]))
        if parameter.param_type_name == "argument":
            given.append(value)
        else:
            given += [parameter.opts[0], value]
    return given


@pytest.mark.parametrize(
    ("words", "option", "command"),
    [pytest.param(*each, id=f"{each[0]} {each[1]}") for each in takers()],
)
def test_no_command_prints_the_password_of_a_wrong_address(
    rhizome: Rhizome, tmp_path: Path, words: str, option: str, command: Any
) -> None:
    for uri in WRONG:
        told = rhizome(*words.split(), *filled(command, tmp_path), option, uri)
        # USER:PASSWORD@HOST is a right address for a context.
        assert told.exit_code != 0 or words == "context add", told.output
        assert MARKER not in told.output, told.output
        assert MARKER not in repr(told.exception)


def test_commands_that_take_an_address_are_found() -> None:
    found = list(takers())
    assert len(found) > 60
    assert {option for _, option, _ in found} == set(OPTIONS)


def test_a_wrong_command_line_shows_no_password_either(rhizome: Rhizome) -> None:
    for arguments in (
        ("status", f"amqp://app:{MARKER}@b1"),
        (f"amqp://app:{MARKER}@b1",),
        ("publish", "k", "--urii", f"amqp://app:{MARKER}@b1"),
        ("consume", "q", "--uri", f"amqp://app:{MARKER}@b1", "--count", "many"),
        ("consume", "q", f"amqp://app:{MARKER}@b1"),
        ("consume", "q", "--uri", f"amqp://app:{MARKER}@127.0.0.1:1/"),
        ("status", "--http", f"http://app:{MARKER}@127.0.0.1:1"),
    ):
        told = rhizome(*arguments)
        assert told.exit_code != 0
        assert MARKER not in told.output, told.output


def test_a_context_with_a_password_in_the_wrong_place_is_listed_without(rhizome: Rhizome) -> None:
    context = Context("b1:15672", f"amqp://app:x/{MARKER}@b1")
    save(contexts_file(), Contexts({"c": context}, "c"))
    for option in ((), ("--json",)):
        told = rhizome("context", "list", *option)
        assert told.exit_code == 0
        assert MARKER not in told.output, told.output


# ---- errors and representations of the parts ----------------------------------------------------


@pytest.mark.parametrize("uri", WRONG)
def test_no_error_of_a_part_shows_the_password(uri: str) -> None:
    with pytest.raises(InvalidUri) as client:
        parse_uris(uri)
    with pytest.raises(InvalidBridge) as bridge:
        BridgeSettings("b", uri, uri, queue="q").check()
    with pytest.raises(InvalidBridge) as file:
        parse_bridges({"bridge": {"b": {"from": [uri], "to": uri, "queue": "q"}}})
    with pytest.raises(OptionError) as spark:
        addresses_of(uri)
    options = Options({"uri": uri, "readTimeout": uri}, ["uri", "readTimeout"], "the source")
    for raised in (client, bridge, file, spark):
        assert MARKER not in str(raised.value) + repr(raised.value)
    if "://" in uri and "@" in uri:
        assert MARKER not in str(options.wrong("readTimeout", "a number"))
    with pytest.raises(InvalidShovel) as shovel:
        parse_shovel("/", "s", {"src-uri": uri, "src-queue": "a", "dest-uri": uri, "dest-queue": 5})
    assert MARKER not in str(shovel.value)


def test_no_representation_shows_the_password() -> None:
    from rhizome.spark.jobs.archive import ArchiveOptions
    from rhizome.spark.jobs.replay import ReplayOptions
    from rhizome.spark.sink.message_sink import SinkSettings
    from rhizome.spark.source.queue_source import QueueSettings
    from rhizome.spark.source.stream_source import SourceSettings

    uri = f"amqp://app:{MARKER}@b1"
    shovel = {"src-uri": uri, "src-queue": "a", "dest-uri": uri, "dest-queue": "b"}
    made: list[object] = [
        parse_uris(uri),
        BridgeSettings("b", uri, uri, queue="q"),
        parse_shovel("/", "s", shovel),
    ]
    for kind in (
        ArchiveOptions,
        ReplayOptions,
        QueueSettings,
        SinkSettings,
        SourceSettings,
        Plan,
    ):
        one = kind.__new__(kind)
        for name in kind.__dataclass_fields__:
            object.__setattr__(one, name, uri if name.startswith("uri") else "")
        made.append(one)
    assert MARKER not in repr(made)


# ---- orders to a terminal -----------------------------------------------------------------------

HOSTILE = "q\x1b[2J\x9b31m\u202e\u2066\x7f\r\n\u2028end"


def is_harmless(text: str) -> bool:
    bad = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return not any(unicodedata.category(char) in bad for char in text.replace("\n", ""))


def test_names_and_values_give_no_orders_to_the_terminal(rhizome: Rhizome, api: Any) -> None:
    row = {"name": HOSTILE, "vhost": HOSTILE, "arguments": {HOSTILE: HOSTILE}, "policy": HOSTILE}
    api.answer("GET /api/queues/%2F/q", row)
    for option in ((), ("--json",)):
        told = rhizome("queue", "show", "q", "--http", api.address, *option)
        assert told.exit_code == 0, told.output
        assert is_harmless(told.output), repr(told.output)
        assert "end" in told.output
        if option:
            assert json.loads(told.stdout)["name"] == HOSTILE


@pytest.mark.parametrize("status", [400, 401, 404, 500])
def test_errors_of_a_broker_give_no_orders_to_the_terminal(
    rhizome: Rhizome, api: Any, status: int
) -> None:
    for answer in ({"error": "x", "reason": f"no {HOSTILE}"}, f"raw {HOSTILE}".encode()):
        api.answer("GET /api/queues/%2F/q", answer, status)
        told = rhizome("queue", "show", "q", "--http", api.address)
        assert told.exit_code == 1
        assert is_harmless(told.output), repr(told.output)


def test_arguments_are_quoted_harmlessly(rhizome: Rhizome, api: Any) -> None:
    for arguments in (
        ("queue", "show", HOSTILE, "--http", api.address),
        ("queue", "purge", HOSTILE, "--http", api.address),
        (HOSTILE,),
        ("context", "use", HOSTILE),
    ):
        told = rhizome(*arguments)
        assert told.exit_code != 0
        assert is_harmless(told.output), repr(told.output)
