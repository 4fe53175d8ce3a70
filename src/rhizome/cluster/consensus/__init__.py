"""Electing a root and keeping one log: the rules R1 to R9, and what R10 to R13 need of them.

A Raft-like core with flexible quorums. It does no input or output: everything comes in as calls
with ``now_ms`` (monotonic), everything goes out through ``ready()``.

    core = Consensus(me=hello, image=store.load(), settings=settings, chance=Random(seed),
                     now_ms=now, bootstrap=("b1", "b2", "b3"))
    core.peer_up(hello, now), core.peer_down(name, now)       links
    core.step(name, message, now)                             messages (messages.decode)
    core.tick(now)                                            not later than next_deadline_ms()
    core.written(token, now), core.applied(index, now)        the store, the application
    core.started(now), core.prefer(n)                         `starting` ends; rank in elections
    core.propose(bytes, now) -> index or None                 at the root only: now or not at all
    core.submit(bytes, now)                                   at the root only: as soon as it can
    core.add_primary, remove_primary, transfer_root, force_root, leave
    ready = core.ready()                                      what to do now: see ``Ready``

``bootstrap`` names the configured primaries, this one among them, and counts only while the store
is empty (R7); a secondary, and a primary that is to join an existing cluster, give None.

What to read: ``holds_lease(now)``, ``settled_index``, ``is_root``, ``root``, ``term``, ``registry``
(view in order of seniority), ``status()``.

Calls may come in any order and number between two ``ready()``; several inputs make one batch
and few messages.
"""

from rhizome.cluster.consensus.changes import ChangeRefused
from rhizome.cluster.consensus.consensus import Consensus, NotRoot
from rhizome.cluster.consensus.ready import Installation, Quorum, Ready, Status
from rhizome.cluster.consensus.rules import ALL_RULES, Rules
from rhizome.cluster.consensus.settings import NEVER_MS, ConsensusSettings, SettingsError

__all__ = [
    "ALL_RULES",
    "NEVER_MS",
    "ChangeRefused",
    "Consensus",
    "ConsensusSettings",
    "Installation",
    "NotRoot",
    "Quorum",
    "Ready",
    "Rules",
    "SettingsError",
    "Status",
]
