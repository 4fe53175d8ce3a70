"""The catalogue of frames is the only one: each number once, each frame with one handler."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

import pytest

from rhizome.cluster.link.link import Link
from rhizome.cluster.protocol import catalogue
from rhizome.cluster.protocol.catalogue import (
    FRAME_NUMBERS,
    FRAMES,
    HTTP_REQUEST,
    HTTP_RESPONSE,
    PUBLISH,
    RESERVED_FOR_LINKS,
    TOPICS,
    name_of,
)
from rhizome.cluster.protocol.frame_dispatch import (
    FrameHandler,
    FrameTable,
    IgnoredFrame,
    PayloadHandler,
)
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster

ROOT = Path(__file__).resolve().parents[4]
SOURCE = ROOT / "src" / "rhizome"
PAGE = ROOT / "docs" / "internals" / "protocol.md"
CATALOGUE = SOURCE / "cluster" / "protocol" / "catalogue.py"
# A server adds these; a core without sockets doesn't have them.
OF_THE_SERVER = {HTTP_REQUEST, HTTP_RESPONSE}
# Whom the participants of a play may stand for.
ROLES = {
    "edge": {"edge"},
    "home": {"home", "standby"},
    "home2": {"home"},
    "standby": {"standby"},
    "successor": {"standby", "home"},
    "root": {"root"},
}
PLAYS = ("Attach", "Replication", "Takeover", "Transfer", "Transaction")
ARROW = re.compile(r"^ *(\w+)->>(\w+): (\S+)", re.MULTILINE)


def constants(path: Path) -> dict[str, int]:
    """The whole numbers that a module gives a name in capitals, at its top."""
    found: dict[str, int] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
        else:
            continue
        value = node.value
        if name.isupper() and isinstance(value, ast.Constant) and isinstance(value.value, int):
            found[name] = value.value
    return found


def numbered() -> dict[str, int]:
    """The frames that the catalogue's constants name."""
    return {
        name: number
        for name, number in constants(CATALOGUE).items()
        if name not in ("RESERVED_FOR_LINKS", "FRAME_NUMBERS")
    }


# --- the catalogue


def test_every_number_is_defined_once_and_has_its_row() -> None:
    rows = [frame for _, frames in TOPICS for frame in frames]
    assert len({frame.number for frame in rows}) == len(rows)
    assert {frame.name: frame.number for frame in rows} == numbered()
    assert all(0 < number < FRAME_NUMBERS - 1 for number in FRAMES)
    assert list(FRAMES) == sorted(FRAMES)


def test_numbers_are_those_of_the_releases_before() -> None:
    """The wire doesn't change with names: these numbers are what other brokers mean by them."""
    wanted = (
        ROOT / "tests" / "unit" / "cluster" / "protocol" / "golden" / "numbers.txt"
    ).read_text()
    assert [f"{frame.number} {frame.name}" for frame in FRAMES.values()] == wanted.splitlines()


def test_no_frame_is_defined_outside_the_catalogue() -> None:
    frames = set(numbered().items())
    elsewhere = [
        f"{path.relative_to(ROOT)}: {name}"
        for package in ("cluster", "server", "management")
        for path in sorted((SOURCE / package).rglob("*.py"))
        if path != CATALOGUE
        for name, number in constants(path).items()
        if (name, number) in frames
    ]
    assert elsewhere == []


def test_frames_are_sent_by_the_names_of_the_catalogue() -> None:
    """A number in the place of a name would be a frame that nobody finds."""
    sends = re.compile(
        r"(?<!connection\.)\b(?:send|send_of|send_urgent|send_parts|put_frame|put_frame_of|begin_frame|put_number)"
        r"\((?:[\w.]+, )?\d+,"
    )
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sorted((SOURCE / "cluster").rglob("*.py"))
        for line in path.read_text().splitlines()
        if sends.search(line)
    ]
    assert found == []


def test_frames_that_overtake_others_are_marked_as_urgent() -> None:
    sent = {
        name
        for path in sorted(SOURCE.rglob("*.py"))
        for name in re.findall(r"\.send_urgent\(([A-Z_]+),", path.read_text())
    }
    assert sent == {frame.name for frame in FRAMES.values() if frame.urgent}


def test_a_frame_that_this_release_does_not_know_has_its_number_for_a_name() -> None:
    assert name_of(PUBLISH) == "PUBLISH"
    assert name_of(99) == "99"


# --- handlers


@pytest.fixture(scope="module")
def cluster() -> CoreCluster:
    return make_cluster(2)


def handlers(cluster: CoreCluster) -> list[FrameHandler]:
    link = cluster["b1"].links.link_to("b2")
    assert link is not None
    return link.handlers


def test_every_frame_has_exactly_one_handler(cluster: CoreCluster) -> None:
    table = handlers(cluster)
    unknown = cluster["b1"].node.frames.unknown
    handled = {
        number
        for number, handler in enumerate(table)
        if handler is not unknown and not isinstance(handler, IgnoredFrame)
    }
    assert handled == set(FRAMES) - OF_THE_SERVER
    assert len(table) == FRAME_NUMBERS


def test_the_catalogue_names_the_handler_of_each_frame(cluster: CoreCluster) -> None:
    for number, frame in FRAMES.items():
        wanted = resolve_name(frame.handler)
        if number in OF_THE_SERVER:
            continue
        handler = handlers(cluster)[number]
        function = getattr(handler, "function", None)
        if function is None:
            assert type(handler) is wanted, frame.name
        else:
            found = getattr(type(function.__self__), function.__name__)
            assert found is wanted, frame.name


def test_a_second_handler_of_a_frame_is_refused() -> None:
    table = FrameTable()
    table.register(PUBLISH, FrameHandler())
    with pytest.raises(ValueError, match="PUBLISH has a handler already"):
        table.register(PUBLISH, FrameHandler())


def test_a_frame_that_is_not_in_the_catalogue_gets_no_handler() -> None:
    with pytest.raises(ValueError, match="frame 99 is not in the catalogue"):
        FrameTable().register(99, FrameHandler())


def test_a_copy_of_a_table_leaves_it_as_it_is() -> None:
    table = FrameTable()
    copy = table.copy()
    copy.register(PUBLISH, FrameHandler())
    assert not table.has(PUBLISH)
    assert copy.has(PUBLISH)


# --- numbers that nobody knows


@pytest.mark.parametrize("number", [28, 63, 75, 199, 254, 255, 256, 40_000])
def test_an_unknown_frame_ends_its_link(number: int) -> None:
    cluster = make_cluster(2)
    before = cluster["b2"].links.link_to("b1")
    link = cluster["b1"].links.link_to("b2")
    assert link is not None
    assert before is not None
    link.send(number, b"of a later release")
    cluster["b1"].settle()
    assert cluster["b2"].links.link_to("b1") is not before
    assert str(number) in before.reason
    assert "doesn't know" in before.reason


@pytest.mark.parametrize("number", [0, 2, RESERVED_FOR_LINKS - 1])
def test_an_unknown_frame_about_the_link_itself_is_ignored(number: int) -> None:
    cluster = make_cluster(2)
    before = cluster["b2"].links.link_to("b1")
    link = cluster["b1"].links.link_to("b2")
    assert link is not None
    assert before is not None
    frames = before.received_frames
    link.send(number, b"of a later release")
    cluster["b1"].settle()
    assert before.received_frames == frames + 1
    assert cluster["b2"].links.link_to("b1") is before


def test_a_frame_that_is_registered_later_reaches_its_handler_on_new_links() -> None:
    cluster = make_cluster(2)
    heard: list[tuple[str, bytes]] = []

    def hear(link: Link, payload: bytes) -> None:
        heard.append((link.name, payload))

    cluster["b2"].node.frames.register(HTTP_REQUEST, PayloadHandler(hear))
    old = cluster["b1"].links.link_to("b2")
    assert old is not None
    old.close("a new one is to be made")
    cluster["b1"].settle()
    cluster.advance_until_ready()
    link = cluster["b1"].links.link_to("b2")
    assert link is not None
    link.send(HTTP_REQUEST, b"question")
    cluster["b1"].settle()
    assert heard == [("b1", b"question")]


# --- the page


def generator() -> ModuleType:
    path = ROOT / "tools" / "generate_protocol_docs.py"
    spec = importlib.util.spec_from_file_location("generate_protocol_docs", path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def plays() -> dict[str, list[tuple[str, str, str]]]:
    """Of each play: sender, receiver and the first word of each message."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return {
        section.partition("\n")[0]: ARROW.findall(section)
        for section in sections
        if "```mermaid" in section
    }


def test_the_page_is_what_the_catalogue_says() -> None:
    assert generator().main(["--check"]) == 0, "run python tools/generate_protocol_docs.py"


def test_the_generator_keeps_what_people_wrote() -> None:
    written = generator().written()
    assert set(PLAYS) <= set(plays())
    assert written.startswith("# What brokers send each other")


@pytest.mark.parametrize("play", PLAYS)
def test_every_frame_of_a_play_exists_and_goes_where_the_catalogue_says(play: str) -> None:
    by_name = {frame.name: frame for frame in FRAMES.values()}
    messages = plays()[play]
    assert messages
    for sender, receiver, word in messages:
        if "app" in (sender, receiver):
            assert re.fullmatch(r"[a-z]+\.[a-z-]+", word), "applications speak AMQP"
            continue
        assert word in by_name, f"{play}: there is no frame {word}"
        frame = by_name[word]
        for role, allowed in ((sender, frame.sender), (receiver, frame.receiver)):
            assert allowed == catalogue.ANY or ROLES[role] & set(allowed.split(", ")), (
                f"{play}: {word} doesn't go from {sender} to {receiver}"
            )
