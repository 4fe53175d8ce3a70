"""Reading when certificates end, and the health check that tells before they do."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rhizome.management.certificate_expiry import ends_of, expired_by
from rhizome.server.config.broker_config import Config
from rhizome.server.config.config_sections import TlsSection
from tests.unit.management.conftest import Api, Core

OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="openssl is not installed")


def make_certificate(path: Path, days: int) -> Path:
    assert OPENSSL is not None
    command = [OPENSSL, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-subj", "/CN=broker", "-days", str(days), "-out", str(path)]
    subprocess.run(
        [*command, "-keyout", str(path) + ".key"], check=True, capture_output=True, timeout=30
    )
    return path


def shown_end(path: Path) -> datetime:
    """What openssl says."""
    assert OPENSSL is not None
    command = [OPENSSL, "x509", "-in", str(path), "-noout", "-enddate"]
    text = subprocess.run(command, check=True, capture_output=True, timeout=30).stdout.decode()
    end = text.strip().removeprefix("notAfter=")
    return datetime.strptime(end, "%b %d %H:%M:%S %Y %Z").replace(tzinfo=UTC)


@pytest.mark.parametrize("days", [1, 365, 20_000])
def test_the_end_is_the_one_that_openssl_shows(tmp_path: Path, days: int) -> None:
    path = make_certificate(tmp_path / "one.pem", days)
    assert ends_of(path.read_text()) == [shown_end(path)]


def test_every_certificate_of_a_chain_counts(tmp_path: Path) -> None:
    paths = [make_certificate(tmp_path / f"{days}.pem", days) for days in (400, 3)]
    chain = tmp_path / "chain.pem"
    chain.write_text("".join(path.read_text() for path in paths))
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    assert len(expired_by(str(chain), now_ms, 86_400)) == 0
    assert len(expired_by(str(chain), now_ms, 7 * 86_400)) == 1
    assert len(expired_by(str(chain), now_ms, 500 * 86_400)) == 2


def test_the_health_check(core: Core, api: Api, tmp_path: Path) -> None:
    path = ("health", "checks", "certificate-expiration")
    assert api.get(*path, "1", "weeks").json == {"status": "ok"}
    certificate = str(make_certificate(tmp_path / "c.pem", 20))
    assert isinstance(core.context.config, Config)
    core.context.config = replace(core.context.config, tls=TlsSection(certificate=certificate))
    core.shell.begin_turn()
    core.broker.turn.now_ms = int(datetime.now(UTC).timestamp() * 1000)
    assert api.get(*path, "2", "weeks").status == 200
    failed = api.get(*path, "1", "months")
    assert failed.status == 503
    assert failed.json["expired"][0]["name"] == certificate
    assert api.get(*path, "1", "fortnights").status == 400
    assert api.get(*path, "soon", "weeks").status == 400
