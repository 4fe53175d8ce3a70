"""Switches that turn single safety rules off, so that tests can show what each one prevents.

Nothing but tests ever builds a ``Rules`` with a False in it: the checkers of the simulator must
find a violation for each. The comments say what goes wrong without; docs/internals/rules.md has the
text of each rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Rules:
    election_quorum_majority: bool = True  # R1: E votes elect; else half: two roots in one term
    commit_quorum: bool = True  # R1: C copies commit; else one: an entry dies with the root
    synced_before_counted: bool = True  # R2: counted when synced; else a power cut undoes it
    only_own_term_by_counting: bool = True  # R2: else a later root overwrites what was committed
    vote_durable: bool = True  # R3: else two votes in one term around a power cut
    log_completeness_in_votes: bool = True  # R3: else a root that lacks committed entries
    joint_membership: bool = True  # R4: both configurations; else two disjoint quorums
    one_change_at_a_time: bool = True  # R4: else a third configuration decides unseen
    pre_vote: bool = True  # R5: else a returning broker deposes a healthy root
    secondaries_never_vote: bool = True  # R5: else a fragment elects a root of its own
    wiped_store_is_new: bool = True  # R7: else a broker that forgot its vote votes again
    founding_quorum: bool = True  # R7: E empty stores; else two clusters from one list
    late_snapshot_ignored: bool = True  # R8: else it undoes entries that were counted
    lease_from_sending: bool = True  # R9: else a slow answer stretches the lease
    lease_honoured: bool = True  # R9: else a second root while the first still holds its lease
    disk_in_root_lease: bool = True  # R9: else a root that can't write stays root
    takeover_delay: bool = True  # R9: else a new root replaces homes that still hold leases
    settled_before_ok: bool = True  # R10: else a declare-ok that another broker doesn't know of
    current_before_lease: bool = True  # R10: else a lease for a broker that missed what was settled
    one_vote_per_machine: bool = True  # R13: else one host makes a majority
    death_of_one_incarnation: bool = True  # R15: else a late certificate ends the next incarnation
    accused_is_fenced: bool = True  # R15: else a false certificate makes two homes, or two roots


ALL_RULES: Final = Rules()
