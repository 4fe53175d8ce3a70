"""The file of a service: what it may say, and where its mistakes are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rhizome.spark.service.flow_file import FlowFileError, ServiceSettings, load, state_of
from rhizome.spark.service.flow_query import source_options, tap_stream
from rhizome.spark.service.toml_key_lines import KeyLines

Load = Callable[[str], ServiceSettings]
HEAD = 'state = "state"\nuri_env = "PIPELINE_URI"\n'
FLOW = '[flows.a]\nsource = { streams = ["s"] }\nsink = { queue = "q" }\n'


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.setenv("PIPELINE_URI", "amqp://app:secret@b1,b2/")

    def read(text: str) -> ServiceSettings:
        path = tmp_path / "orders.toml"
        path.write_text(text)
        path.chmod(0o600)
        return load(path)

    return read


def mistakes(loaded: Load, text: str) -> list[str]:
    """The mistakes, each as LINE: TEXT."""
    with pytest.raises(FlowFileError) as raised:
        loaded(text)
    return [line.rpartition("orders.toml:")[2] for line in str(raised.value).splitlines()]


def test_file_with_all_kinds_of_flows(loaded: Load, tmp_path: Path) -> None:
    settings = loaded(
        HEAD
        + """
name = "orders"
listen = "127.0.0.1:15693"
stop_timeout = "2m"
[spark]
master = "spark://m:7077"
conf = { "spark.executor.memory" = "2g" }
[retry]
tries = 5
pause = "500ms"
[flows.archive]
interval = "30s"
source = { streams = ["orders", "payments"], starting = "latest", rows_per_batch = 50 }
sink = { table = "lake/orders", format = "delta", partition_by = ["queue"] }
[flows.work]
sql = "SELECT value FROM messages"
[flows.work.source]
queues = ["jobs"]
options = { leaseTimeout = 60 }
[flows.work.sink]
exchange = "results"
key = "done"
[flows.tapped]
source = { tap = "events", keys = ["order.#"], keep = "1D" }
sink = { spark = "kafka", options = { topic = "t" } }
"""
    )
    assert settings.name == "orders"
    assert settings.state == str(tmp_path / "state")
    assert settings.set_aside == str(tmp_path / "state/set_aside")
    assert settings.listen == ("127.0.0.1", 15693)
    assert settings.stop_timeout_s == 120
    assert settings.retry.tries == 5
    assert settings.retry.pause_s == 0.5
    assert settings.conf == {"spark.executor.memory": "2g"}
    archive, work, tapped = settings.flows
    assert archive.source.names == ("orders", "payments")
    assert archive.source.uri == "amqp://app:secret@b1,b2/"
    assert archive.sink.name == str(tmp_path / "lake/orders")
    assert archive.interval_s == 30
    assert work.source.kind == "queues"
    assert work.source.options == {"leaseTimeout": "60"}
    assert work.sink.key == "done"
    assert tapped.source.keys == ("order.#",)
    assert tapped.sink.options == {"topic": "t"}
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FLOW + "[retry]\ntrys = 3\n", "7: retry has no key 'trys'; did you mean 'tries'?"),
        (FLOW + 'sqll = "x"\n', "6: flows.a has no key 'sqll'; did you mean 'sql'?"),
        ('[flows.a]\nsource.streams = ["s"]\nsink.quue = "q"\n', "5: flows.a.sink has no key"),
        (FLOW + 'interval = "5 parsecs"\n', "6: 'interval' of flows.a must be a time"),
        (FLOW + "interval = 5\n", "6: 'interval' of flows.a must be a time"),
        (FLOW + '[spark]\nmaster = "sc://h"\n', "7: the service has its own driver"),
        (FLOW + 'sql = "SELECT 1"\n', "6: the SQL of flows.a does not read 'messages'"),
        (FLOW + 'function = "no_such:f"\n', "6: 'no_such' can't be imported"),
        (FLOW + 'function = "json:nope"\n', "6: module 'json' has no function 'nope'"),
        (FLOW + 'function = "json"\n', "6: 'json' is no function"),
        ("", "1: the file has 0 flows"),
        ('[flows.a]\nsink = { queue = "q" }\n', "3: flows.a.source must have one of streams"),
        ('[flows."a b"]\nsource.streams = ["s"]\nsink.queue = "q"\n', "3: 'a b' is no name"),
        (
            FLOW + '[flows.b]\nsource = { streams = ["s"], options = { uri = "x" } }\n'
            'sink = { queue = "q" }\n',
            "7: option 'uri' of flows.b.source is set by the service",
        ),
    ],
)  # fmt: skip
def test_mistake_is_told_with_its_line(loaded: Load, text: str, expected: str) -> None:
    found = mistakes(loaded, HEAD + text)
    assert any(each.startswith(expected) for each in found), found


def test_all_mistakes_are_told_at_once(loaded: Load) -> None:
    found = mistakes(loaded, HEAD + FLOW + "x = 1\ny = 2\n[retry]\ntries = 0\n")
    assert [each.partition(":")[0] for each in found] == ["6", "7", "9"]


def test_broken_syntax_is_told_with_its_line(loaded: Load) -> None:
    with pytest.raises(FlowFileError, match="line 3"):
        loaded(HEAD + "[flows\n")


def test_secret_comes_from_a_file_that_others_may_not_read(loaded: Load, tmp_path: Path) -> None:
    text = 'state = "state"\nuri_file = "uri"\n' + FLOW
    assert "uri can't be read" in mistakes(loaded, text)[0]
    secret = tmp_path / "uri"
    secret.write_text("amqp://app:secret@b1/\n")
    secret.chmod(0o644)
    assert mistakes(loaded, text)[0].startswith("2: uri has mode 644: others may read")
    secret.chmod(0o640)
    assert loaded(text).flows[0].sink.uri == "amqp://app:secret@b1/"


def test_missing_variable_is_a_mistake(loaded: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIPELINE_URI")
    assert "names PIPELINE_URI, which is not set" in mistakes(loaded, HEAD + FLOW)[0]


def test_password_in_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "flows.toml"
    path.write_text('state = "state"\nuri = "amqp://app:secret@b1/"\n' + FLOW)
    path.chmod(0o644)
    with pytest.raises(FlowFileError, match="chmod 600") as raised:
        load(path)
    assert "secret" not in str(raised.value)


def test_options_may_be_secrets_too(loaded: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "hush")
    settings = loaded(
        HEAD + '[flows.a]\nsource.streams = ["s"]\n[flows.a.sink]\ntable = "s3://lake/t"\n'
        '[flows.a.sink.options]\n"storage.secret_access_key_env" = "KEY"\n'
    )
    assert settings.flows[0].sink.options == {"storage.secret_access_key": "hush"}
    assert settings.flows[0].sink.name == "s3://lake/t"


def test_state_is_found_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "flows.toml"
    path.write_text('state = "here"\nuri_env = "NOT_SET_ANYWHERE"\n')
    assert state_of(path) == str(tmp_path / "here")


def test_lines_of_keys_are_found_behind_long_values() -> None:
    lines = KeyLines(
        'a = """\nb = 1\n"""\nc = [\n  "[x]", # ]\n  1,\n]\n'
        "[t.\"q.r\"]\nd.e = '#' # f = 1\ng = {h = 1}\n"
    )
    assert lines.of("a") == 1
    assert lines.of("b") == 1  # of nothing
    assert lines.of("c") == 4
    assert lines.of("t", "q.r") == 8
    assert lines.of("t", "q.r", "d", "e") == 9
    assert lines.of("t", "q.r", "g", "h") == 10
    assert lines.of("t", "q.r", "unknown") == 8


def test_sources_get_their_options(loaded: Load) -> None:
    sink = 'sink = { queue = "q" }\n'
    settings = loaded(
        HEAD
        + f'name = "n"\n[retry]\npause_max = "1h"\n[flows.s]\nsource.pattern = "a.*"\n{sink}'
        + f'[flows.w]\nsource.queues = ["w"]\n{sink}[flows.t]\nsource.tap = "x"\n{sink}'
    )
    stream, work, tap = (source_options(settings, each) for each in settings.flows)
    assert (stream["subscribePattern"], stream["readerName"]) == ("a.*", "n/s")
    assert stream["startingOffsets"] == "earliest"
    # Leases outlast the longest pause.
    assert (work["subscribe"], work["leaseTimeout"]) == ("w", "14400")
    assert "startingOffsets" not in work
    assert tap["subscribe"] == tap_stream(settings, settings.flows[2]) == "pipeline.n.t"
