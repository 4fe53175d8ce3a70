"""What a broker makes of its store when it starts."""

from __future__ import annotations

from rhizome.journal.files import MemoryFiles
from rhizome.server.config.broker_config import Config
from rhizome.server.config.config_sections import SecuritySection
from rhizome.testing.in_memory_broker import Core

STEP_BYTES = 29


def test_a_power_cut_at_the_first_start_leaves_users_with_their_permissions() -> None:
    """The definitions of a new store are there as a whole, or are made again."""
    config = Config(security=SecuritySection(password_cost=10))
    core = Core(MemoryFiles(), config)
    core.settle()
    wanted = core.broker.state
    assert wanted.permissions, "the test shows nothing"
    (written,) = core.files.contents.values()
    for size in range(0, len(written.rstrip(b"\0")) + 1, STEP_BYTES):
        files = MemoryFiles()
        files.create(1, 0)
        files.write(1, 0, [bytes(written[:size])])
        found = Core(files, config).broker.state
        assert found.permissions == wanted.permissions, f"cut at {size}"
        assert found.users.keys() == wanted.users.keys()
