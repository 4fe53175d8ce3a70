"""The code blocks of the documents are whole and right: commands parse, files load.

Commands and programs are also run, by tests/process/applications/test_documents.py, unless a mark
says why not (tests/document_blocks.py).
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from rhizome.bridge.bridge_config_file import parse_bridges
from rhizome.cli.errors import CliError
from rhizome.cli.main import app
from rhizome.management.asgi_application import ENDPOINTS
from rhizome.management.rhizome_api import console_login
from rhizome.server.config.broker_config import SECTIONS, load_config
from rhizome.server.config.config_fields import settings_of
from rhizome.spark.service import flow_file
from tests.document_blocks import (
    ROOT,
    Block,
    Mark,
    bare,
    blocks,
    blocks_of,
    calls,
    pages,
    whole,
    words,
)

BLOCKS = [block for page in pages() for block in blocks(page)]
COMMANDS = [(block, command) for block in BLOCKS for command in block.commands()]
FOR_READERS = {"text", "sql", "ini", "mermaid", "bash"}
"""Languages of which nothing is checked."""
CHECKED = {"sh", "console", "python", "toml", "json", "yaml"}
PROGRAMS = {
    *("rhizome", "python", "python3", "pip", "curl", "make", "export", "kill", "cd", "systemctl"),
    *("apt", "editor", "install", "mv", "tar", "useradd", "openssl", "until", "echo", "od", "tail"),
    *("helm", "kubectl", "podman", "rabbitmqadmin", "rabbitmqctl", "start-master.sh"),
    *("start-worker.sh", "spark-pipelines", "venv-pack", "build_image.sh"),
}
"""What commands begin with: text that isn't a command gets a fence that says so."""
INLINE = re.compile(r"(?<!`)`(rhizome [^`]+)`(?!`)")
SETTING = re.compile(rf"(?<!`)`((?:{'|'.join(SECTIONS)})\.[a-z_]+)`")
NOT_SETTINGS = {
    *("journal.py", "http.client"),
    *("log.bare", "log.shipping"),  # objects of the code
    *("tls.crt", "tls.enabled", "tls.secret"),  # of Helm's values and of a secret
    "audit.log",
}
FILES = {"cluster.key": "k" * 32, "pipeline.uri": "amqp://app:password@b1,b2,b3/"}
"""In /etc/rhizome."""
API_PATH = re.compile(r"`(?:(?:GET|PUT|POST|DELETE) )?(/api/[^` ]*)`")
NOT_SERVED = {"/api/shovels"}
"""Named where that is said."""
METRIC = re.compile(r"`(rhizome_[a-z_]+)")
FIXTURES = {"rhizome_broker", "rhizome_cluster", "rhizome_vhost", "rhizome_settings"}
NOT_METRICS = FIXTURES | {"rhizome_api", "rhizome_pipeline_rows_total"}
"""Those of pipelines are of another program, and told on a page of their own."""


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def parse(arguments: list[str]) -> None:
    """With the parser of the program; raises what it would print."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("rhizome", arguments)
    while hasattr(command, "commands"):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


def faults(where: str, arguments: list[str]) -> Iterator[str]:
    """What the program would say of a command line."""
    try:
        parse(list(arguments))
    except (typer.TyperException, CliError) as error:
        message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
        said = message.partition("\n")[0] or "it is no command"
        yield f"{where}: rhizome {' '.join(arguments)}: {said}"


def unknown_words(arguments: list[str]) -> Iterator[str]:
    """Commands and options that there are not, in a command line that may lack something."""
    command: Any = typer.main.get_command(app)
    for word in arguments:
        if re.match("--?[a-z]", word):
            known = {name for each in command.params for name in each.opts} | {"--help"}
            if word.partition("=")[0] not in known:
                yield word
        elif hasattr(command, "commands"):
            command = command.get_command(None, word)
            if command is None:
                yield word
                return


def assert_none(found: Iterable[str]) -> None:
    listed = list(found)
    assert not listed, "\n".join(["", *listed])


def test_every_block_is_in_a_language_that_is_known() -> None:
    assert_none(b.where for b in BLOCKS if b.language not in CHECKED | FOR_READERS)


def test_what_is_indented_are_commands() -> None:
    """Else it gets a fence with its language."""
    assert_none(
        f"{block.where}: {command}"
        for block, command in COMMANDS
        if program_of(command) not in PROGRAMS
    )


def program_of(command: str) -> str:
    """Behind the variables that it is given, without its directory."""
    return next(each for each in words(command) if "=" not in each).rpartition("/")[2]


def test_every_command_has_arguments_that_there_are() -> None:
    assert_none(
        fault
        for block, command in COMMANDS
        for form in sorted({whole(command), bare(command)})
        for call in calls(form)
        for fault in faults(block.where, call)
    )


def test_every_command_in_a_sentence_has_options_that_there_are() -> None:
    assert_none(
        f"{where}: {unknown}"
        for where, command in found(INLINE)
        for call in calls(whole(command))
        for unknown in unknown_words(call)
    )


def test_every_program_compiles() -> None:
    for block in of("python"):
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        compile(block.text, block.where, "exec", flags, dont_inherit=True)


def test_every_program_that_is_a_file_is_used_on_its_page() -> None:
    assert_none(
        f"{block.where}: {block.file}"
        for block in of("python")
        if block.file
        and not any(
            Path(block.file).stem in other.text for other in blocks(block.page) if other != block
        )
    )


def test_every_document_of_data_can_be_read() -> None:
    for block in of("json"):
        json.loads(block.text)
    for block in of("yaml"):
        yaml.safe_load(block.text)


@pytest.mark.parametrize("block", of("toml"), ids=lambda block: block.where)
def test_every_file_is_one_that_the_program_takes(block: Block, tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    for other in blocks(block.page):
        if other.file.endswith(".py"):
            (tmp_path / other.file).write_text(other.text)
    path = tmp_path / "it.toml"
    path.write_text(block.text.replace("/etc/rhizome", str(tmp_path)))
    sections = tomllib.loads(block.text)
    if "bridge" in sections:
        assert parse_bridges(sections)
    elif "flows" in sections:
        assert flow_file.load(path).flows
    else:
        load_config(path, overrides=rest_of(sections, tmp_path), environ={})


def rest_of(sections: dict[str, Any], directory: Path) -> dict[str, str]:
    """What a section needs of which a page shows a part."""
    cluster = sections.get("cluster", {})
    rest = {"cluster.key_file": str(directory / "cluster.key")} if cluster else {}
    if cluster and not {"primaries", "discover"} & set(cluster):
        rest |= {"broker.name": "b1", "cluster.primaries": "b1=10.0.0.1:5672,b2=10.0.0.2:5672"}
    return rest


def found(pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Where a pattern is in a document, and its group."""
    for page in pages():
        for match in pattern.finditer(page.read_text()):
            yield f"{page.relative_to(ROOT)}: {match[0]}", match[1]


def test_every_setting_in_a_sentence_is_one() -> None:
    known = {f"{name}.{key}" for name, section in SECTIONS.items() for key in settings_of(section)}
    named = [(where, name) for where, name in found(SETTING) if name not in NOT_SETTINGS]
    assert len(named) > 50
    assert_none(where for where, name in named if name not in known)


def test_every_path_of_the_http_api_is_one() -> None:
    paths = [console_login.PATH, *(endpoint.path for endpoint in ENDPOINTS)]
    known = [path.strip("/").split("/") for path in paths]
    named = [(where, form) for where, path in found(API_PATH) for form in forms(path)]
    assert len(named) > 250
    known += [path.strip("/").split("/") for path in NOT_SERVED]
    assert_none(f"{where}, as {'/'.join(form)}" for where, form in named if not is_one(form, known))


def forms(path: str) -> Iterator[list[str]]:
    """`/api/nodes[/NAME[/memory]]` is three paths."""
    whole = path.replace("{q,e}", "q").partition("?")[0].rstrip("]").split("[")
    for count in range(1, len(whole) + 1):
        yield "".join(whole[:count]).strip("/").split("/")


def is_one(parts: list[str], known: list[list[str]]) -> bool:
    """Whether an endpoint has these parts, or begins with those before `...`."""
    count = parts.index("...") if "..." in parts else max(map(len, [parts, *known]))
    return any(
        (len(endpoint) == len(parts) or "..." in parts)
        and all(b.startswith("{") or a == b for a, b in zip(parts[:count], endpoint, strict=False))
        for endpoint in known
    )


def test_every_metric_in_a_sentence_is_on_the_page_of_metrics() -> None:
    page = (ROOT / "docs" / "operating" / "metrics.md").read_text()
    named = [(where, name) for where, name in found(METRIC) if name not in NOT_METRICS]
    assert len(named) > 50
    assert_none(where for where, name in named if name not in page)


def test_every_mark_has_a_reason_and_something_to_hold_for() -> None:
    assert_none(
        f"{block.where}: {mark}"
        for block in BLOCKS
        for mark in block.marks
        if not mark.text or not holds_for_something(mark, block)
    )


def holds_for_something(mark: Mark, block: Block) -> bool:
    them = blocks(block.page) if mark.is_of_page else [block]
    return not mark.words or any(mark.words in text for each in them for text in each.commands())


SAMPLE = """\
# A page

<!-- page not run "rhizome up": it never ends -->

Text, and `rhizome status`.

<!-- first: rhizome queue declare orders -->

    rhizome queue list \\
        --vhost /             # a comment
    rhizome policy set a 'b
    c' '{}' && rhizome up

  ```toml
  # it.toml
  a = 1
  ```

```console
$ rhizome status
all is well
```
"""


def test_blocks_have_their_language_lines_and_marks() -> None:
    shell, file, session = blocks_of(SAMPLE, ROOT / "README.md")
    assert [block.language for block in (shell, file, session)] == ["sh", "toml", "console"]
    assert [block.line for block in (shell, file, session)] == [9, 15, 20]
    assert (file.file, file.text) == ("it.toml", "# it.toml\na = 1\n")
    assert shell.first == ["rhizome queue declare orders"]
    assert session.first == []
    assert [shell.is_run(command) for command in shell.commands()] == [True, False]
    assert session.commands() == ["rhizome status"]


def test_a_command_has_all_of_its_lines() -> None:
    shell = blocks_of(SAMPLE, ROOT / "README.md")[0]
    first, second = shell.commands()
    assert calls(first) == [["queue", "list", "--vhost", "/"]]
    assert calls(second) == [["policy", "set", "a", "b\nc", "{}"], ["up"]]


@pytest.mark.parametrize(
    ("command", "called"),
    [
        ("A=b .venv/bin/rhizome status # x", [["status"]]),
        ("podman exec -it rhizome rhizome user add a", [["user", "add", "a"]]),
        ("kubectl exec rhizome-0 -- rhizome status", [["status"]]),
        ("tail -f log | rhizome publish --key log", [["publish", "--key", "log"]]),
        (
            "rhizome pipeline script <<END\nvacuum a\nEND",
            [["pipeline", "script"], ["pipeline", "vacuum", "a"]],
        ),
        ("systemctl stop rhizome", []),
        ("helm install rhizome packaging/helm/rhizome -n mq", []),
        ("mv /var/lib/rhizome /var/lib/old && rhizome doctor", [["doctor"]]),
    ],
)
def test_calls_are_found_wherever_they_stand(command: str, called: list[list[str]]) -> None:
    assert calls(command) == called


def test_what_brackets_say_may_be_added_or_left_out() -> None:
    command = "rhizome queue list [--vhost V] [--json]"
    assert (bare(command), whole(command)) == (
        "rhizome queue list",
        "rhizome queue list --vhost V --json",
    )


@pytest.mark.parametrize("wrong", ["queue lsit", "queue list --nope", "queue move a", "serve x"])
def test_a_wrong_command_is_found(wrong: str) -> None:
    assert list(faults("here", wrong.split()))


@pytest.mark.parametrize("wrong", ["queue lsit", "queue list --nope", "lsit", "queue -Q x"])
def test_a_wrong_word_in_a_sentence_is_found(wrong: str) -> None:
    assert len(list(unknown_words(wrong.split()))) == 1
    assert list(unknown_words(["queue", "move", "a"])) == []


def test_a_wrong_path_is_found() -> None:
    assert not is_one(["api", "que"], [["api", "queues"]])
    assert is_one(["api", "queues", "..."], [["api", "queues", "{vhost}"]])
