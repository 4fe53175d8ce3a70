"""Electing a root and keeping one log: the rules R1 to R9, and what R10 to R13 need of them.

A Raft-like core with flexible quorums and no input or output. Begin with consensus.py (the calls a
driver makes) and consensus_output.py (what it must then do); role_machine.py has the roles and what
changes them, election.py candidates and votes, root_role.py the root's work, broker_leases.py
leases, log/ the log. May import link/broker_hello and nothing else of the cluster.
"""

from rhizome.cluster.consensus.consensus import Consensus, NotRoot
from rhizome.cluster.consensus.consensus_output import Installation, Quorum, Ready, Status
from rhizome.cluster.consensus.membership_changes import ChangeRefused
from rhizome.cluster.consensus.rule_switches import ALL_RULES, Rules
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
