"""Configuration files: what they say, and everything that is wrong with them at once."""

from __future__ import annotations

import importlib.util
from dataclasses import fields
from pathlib import Path

import pytest

from rhizome.security.password_hashes import ScryptCost
from rhizome.server.config.broker_config import (
    DEFINITIONS,
    SECTIONS,
    Config,
    check_files,
    load_config,
)
from rhizome.server.config.config_fields import ConfigError, Problem, setting_of
from rhizome.server.config.config_sections import PermissionDefinition
from rhizome.server.config.config_text import render_example, render_toml
from rhizome.server.config.units import Address

ROOT = Path(__file__).resolve().parents[4]


def load(tmp_path: Path, toml: str, **environ: str) -> Config:
    file = tmp_path / "rhizome.toml"
    file.write_text(toml, encoding="utf-8")
    return load_config(file, None, environ)


def problems(tmp_path: Path, toml: str, **environ: str) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, toml, **environ)
    return caught.value.problems


def only_problem(tmp_path: Path, toml: str, **environ: str) -> Problem:
    found = problems(tmp_path, toml, **environ)
    assert len(found) == 1, found
    return found[0]


def test_defaults_are_those_of_rabbitmq_where_clients_see_them() -> None:
    config = load_config(None, None, {})
    assert config == Config()
    limits = config.limits
    assert (limits.channel_max, limits.frame_max_bytes, limits.heartbeat_ms) == (
        2047,
        131_072,
        60_000,
    )
    assert limits.message_bytes_max == 16_777_216
    assert config.consumers.timeout_ms == 30 * 60_000
    guest = config.users["guest"]
    assert (guest.password, guest.kind, guest.tags) == ("guest", "application", ("administrator",))
    assert guest.permissions == {"/": PermissionDefinition(".*", ".*", ".*")}


def test_every_kind_of_value_is_read(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        [broker]
        name = "b1"
        memory = true
        [listen]
        amqp = ["127.0.0.1:5673", "[::1]:5673"]
        [limits]
        channel_max = 100
        frame_max = "64KiB"
        heartbeat = "10s"
        [memory]
        high_watermark = "1GiB"
        [journal]
        flush = "interval"
        [security]
        loopback_users = []
        password_cost = 15
        """,
    )
    assert (config.broker.name, config.broker.memory) == ("b1", True)
    assert config.listen.amqp == (Address("127.0.0.1", 5673), Address("::1", 5673))
    assert (config.limits.channel_max, config.limits.frame_max_bytes) == (100, 65_536)
    assert config.limits.heartbeat_ms == 10_000
    assert config.memory.high_watermark.of(0) == 1 << 30
    assert config.journal.flush == "interval"
    assert config.login_settings().loopback_users == frozenset()
    assert config.login_settings().password_cost == ScryptCost(15)


def test_definitions_are_read(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        [vhosts."/"]
        [vhosts.shop]
        queues_max = 10
        [users.app]
        password = "secret"
        tags = ["monitoring"]
        permissions."/" = { configure = "^app", write = ".*", read = "" }
        [[users.app.topic_permissions]]
        exchange = "amq.topic"
        vhost = "shop"
        write = "^{username}\\\\."
        [policies.ttl]
        pattern = "^app"
        apply_to = "queues"
        definition = { message-ttl = 60000 }
        """,
    )
    assert set(config.vhosts) == {"/", "shop"}
    assert config.vhosts["shop"].queues_max == 10
    assert set(config.users) == {"app"}, "naming a user replaces guest"
    app = config.users["app"]
    assert app.permissions["/"] == PermissionDefinition("^app", ".*", "")
    assert [(rule.vhost, rule.write, rule.read) for rule in app.topic_permissions] == [
        ("shop", "^{username}\\.", ".*")
    ]
    assert config.policies["ttl"].definition == {"message-ttl": 60000}


def test_unknown_key_names_file_path_and_nearest_key(tmp_path: Path) -> None:
    problem = only_problem(tmp_path, '[limits]\nheartbeet = "5s"')
    assert problem.source == str(tmp_path / "rhizome.toml")
    assert problem.key == "limits.heartbeet"
    assert 'did you mean "heartbeat"?' in problem.text
    assert str(problem).startswith(f"{problem.source}: limits.heartbeet: unknown key")


def test_unknown_section_names_the_nearest_one(tmp_path: Path) -> None:
    problem = only_problem(tmp_path, "[listne]\namqp = []")
    assert problem.key == "listne"
    assert 'did you mean "listen"?' in problem.text


def test_unknown_key_of_a_definition_is_named_with_its_path(tmp_path: Path) -> None:
    toml = '[users."a b".permissions."/"]\nconfigur = ".*"'
    problem = only_problem(tmp_path, toml)
    assert problem.key == 'users."a b".permissions."/".configur'
    assert 'did you mean "configure"?' in problem.text


@pytest.mark.parametrize(
    ("toml", "key", "says"),
    [
        (
            "[limits]\nframe_max = 131072",
            "limits.frame_max",
            'has no unit; write a size such as "128',
        ),
        (
            "[limits]\nheartbeat = 60",
            "limits.heartbeat",
            '60 has no unit; write a time such as "60s"',
        ),
        ('[limits]\nheartbeat = "60"', "limits.heartbeat", "60 has no unit"),
        ('[limits]\nheartbeat = "1500ms"', "limits.heartbeat", "whole seconds"),
        ('[limits]\nframe_max = "1KiB"', "limits.frame_max", "below the minimum, 4KiB"),
        ('[limits]\nframe_max = "64mib"', "limits.frame_max", 'did you mean "MiB"?'),
        ("[limits]\nchannel_max = 70000", "limits.channel_max", "above the maximum, 65535"),
        ('[limits]\nchannel_max = "5"', "limits.channel_max", "no whole number"),
        ("[limits]\nchannel_max = true", "limits.channel_max", "no whole number"),
        ("[broker]\nname = 5", "broker.name", "no string"),
        ('[broker]\nmemory = "yes"', "broker.memory", "neither true nor false"),
        ('[listen]\namqp = "localhost:5672"', "listen.amqp", "no list of strings"),
        ('[listen]\namqp = ["localhost"]', "listen.amqp", "HOST:PORT"),
        ("[listen]\namqp = []", "listen", "no AMQP listener"),
        ('[listen]\ntls = [":5671"]', "tls.certificate", "listen.tls needs it"),
        ('[tls]\nverify_client = "optional"', "tls.ca", "verify_client needs it"),
        ('[journal]\nflush = "allways"', "journal.flush", 'did you mean "always"?'),
        ('[memory]\nhigh_watermark = "140%"', "memory.high_watermark", "more than 100%"),
        ('[security]\nlogin_delay = "1m"', "security.login_delay", "login_delay_max"),
        ("limits = 5", "limits", "no table"),
        ("users = 5", "users", "no table"),
        ("[users]\napp = 5", "users.app", "no table"),
        ('[users.app]\nkind = "human"', "users.app.kind", '"application"'),
        ('[users.app]\npassword_hash = "x"', "users.app.password_hash", "not a password hash"),
        (
            '[users.app.permissions."/"]\nread = "("',
            'users.app.permissions."/".read',
            "never closed",
        ),
        ("[users.app.permissions.shop]", "users.app.permissions", '[vhosts."shop"]'),
        (
            "[[users.app.topic_permissions]]\nwrite = 'x'",
            "users.app.topic_permissions.1.exchange",
            "missing",
        ),
        ("[policies.p]\npattern = 'x'", "policies.p.definition", "missing"),
        (
            "[policies.p]\npattern = 'x'\ndefinition = {max-lenght = 5}",
            "policies.p.definition",
            "did you mean 'max-length'?",
        ),
        ("[limits\n", "", "not valid TOML"),
    ],
)
def test_wrong_value_is_refused_with_what_to_write(
    tmp_path: Path, toml: str, key: str, says: str
) -> None:
    problem = only_problem(tmp_path, toml)
    assert problem.key == key
    assert says in problem.text


def test_a_certificate_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    config = load_config(overrides={"tls.certificate": str(tmp_path / "none.pem")}, environ={})
    with pytest.raises(ConfigError, match=r"tls: .*there is no file .*none\.pem"):
        check_files(config, "")


def test_password_and_hash_together_are_refused(tmp_path: Path) -> None:
    digest = "A" * 48
    toml = f'[users.app]\npassword = "x"\npassword_hash = "$rabbit-sha256${digest}"'
    assert "keep one" in only_problem(tmp_path, toml).text


def test_all_problems_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """
        [limits]
        frame_max = 5
        heartbeet = "5s"
        [journal]
        flush = "often"
        [nonsense]
        [users.app.permissions."/"]
        read = "["
        """,
    )
    assert {problem.key for problem in found} == {
        "limits.frame_max",
        "limits.heartbeet",
        "journal.flush",
        "nonsense",
        'users.app.permissions."/".read',
    }


def test_missing_file_is_a_problem_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        load_config(tmp_path / "nowhere.toml", None, {})


def test_file_that_is_not_text_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "rhizome.toml"
    file.write_bytes(b"[limits]\n\xff")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 9"):
        load_config(file, None, {})


def test_environment_beats_the_file_and_the_command_line_beats_both(tmp_path: Path) -> None:
    file = tmp_path / "rhizome.toml"
    file.write_text('[broker]\nname = "file"\ndata = "file"\n[limits]\nheartbeat = "1s"\n')
    environ = {
        "RHIZOME_BROKER_NAME": "env",
        "RHIZOME_BROKER_DATA": "env",
        "RHIZOME_BROKER_MEMORY": "true",
        "RHIZOME_LIMITS_CHANNEL_MAX": "7",
        "RHIZOME_LISTEN_AMQP": "127.0.0.1:1, [::1]:2",
        "RHIZOME_PURE": "1",
        "PATH": "/bin",
    }
    overrides = {"broker.name": "cli", "broker.data": None, "listen.http": "127.0.0.1:0"}
    config = load_config(file, overrides, environ)
    assert (config.broker.name, config.broker.data, config.broker.memory) == ("cli", "env", True)
    assert (config.limits.channel_max, config.limits.heartbeat_ms) == (7, 1000)
    assert config.listen.amqp == (Address("127.0.0.1", 1), Address("::1", 2))
    assert config.listen.http == (Address("127.0.0.1", 0),)


def test_wrong_variable_is_named_in_the_problem(tmp_path: Path) -> None:
    problem = only_problem(tmp_path, "", RHIZOME_LIMITS_HEARTBEAT="60")
    assert problem.source == "environment variable RHIZOME_LIMITS_HEARTBEAT"
    assert problem.key == "limits.heartbeat"
    unknown = only_problem(tmp_path, "", RHIZOME_LIMITS_HEARTBEET="60s")
    assert 'did you mean "heartbeat"?' in unknown.text


def test_unknown_override_is_named_in_the_problem() -> None:
    with pytest.raises(ConfigError, match=r"command line: limit\.x: unknown section"):
        load_config(None, {"limit.x": 1}, {})
    with pytest.raises(ConfigError, match=r"command line: limits\.x: unknown key"):
        load_config(None, {"limits.x": 1}, {})


def test_description_reads_back_as_the_same_configuration(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        [broker]
        name = "quo\\"te \\\\ ü"
        [limits]
        message_bytes_max = "1001B"
        [vhosts."a.b"]
        [users."x y"]
        permissions."a.b" = { read = "^a\\\\.b" }
        topic_permissions = [{ exchange = "t", vhost = "a.b" }, { exchange = "u", vhost = "a.b" }]
        [policies.p]
        vhost = "a.b"
        pattern = "x"
        definition = { max-length = 5, "ha-params" = ["a", { b = true }] }
        """,
    )
    assert load(tmp_path, render_toml(config)) == config


def test_description_hides_secrets(tmp_path: Path) -> None:
    cluster = '[cluster]\nkey = "hush-hush-hush-hush"\ndemand_key = true\n'
    toml = f'{cluster}[users.app]\npassword = "s3cret"'
    shown = load(tmp_path, toml).describe()
    assert "hush-hush" not in shown
    assert "s3cret" not in shown
    assert "# Secret that all brokers of the cluster share" in shown


def test_example_file_is_the_default_configuration(tmp_path: Path) -> None:
    example = render_example(Config())
    assert load(tmp_path, example) == Config()
    lines = (
        line[1:] if line.startswith("#") and not line.startswith("# ") else line
        for line in example.splitlines()
    )
    assert load(tmp_path, "\n".join(lines)) == Config(), "with every key switched on"


def test_every_key_is_documented() -> None:
    for section in (*SECTIONS.values(), *DEFINITIONS.values()):
        assert section.__doc__
        for described in fields(section):
            assert setting_of(described).doc.endswith((".", "...")), described.name


def test_reference_page_is_up_to_date() -> None:
    path = ROOT / "tools" / "generate_config_docs.py"
    spec = importlib.util.spec_from_file_location("generate_config_docs", path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.main(["--check"]) == 0, "run python tools/generate_config_docs.py"
