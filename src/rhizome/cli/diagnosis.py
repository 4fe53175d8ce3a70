"""Diagnosis: from the facts that brokers tell to what is wrong and what to do. No input or output.

Each check says at least one thing, so that nobody has to guess whether it was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from rhizome.cli.output import bytes_text

OK: Final = "ok"
WARNING: Final = "warning"
PROBLEM: Final = "problem"

CLOCK_WARNING_MS: Final = 500
"""Time to live and timestamps are the home's; leases don't use the wall clock. A takeover by a
broker whose clock is off lets messages expire that much early or late."""

CLOCK_PROBLEM_MS: Final = 30_000
DISK_WARNING_TIMES: Final = 4
FILES_WARNING_SHARE: Final = 0.8
FILES_MIN: Final = 4096
CERTIFICATE_WARNING_DAYS: Final = 30
CERTIFICATE_PROBLEM_DAYS: Final = 7
DAY_MS: Final = 86_400_000
SLOW_TURN_PROBLEM_MS: Final = 1000
"""A turn as long as this makes clients and other brokers wonder whether the broker lives."""
NO_SLOW_TURNS: Final = {"work": 0, "waited": 0}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found. ``remedy`` is empty where all is well."""

    level: str
    check: str
    broker: str
    what: str
    remedy: str = ""

    def row(self) -> dict[str, str]:
        return asdict(self)


Check = Callable[[Row], Iterator[Finding]]


def diagnose(document: Row) -> list[Finding]:
    """Everything that is to be said about a cluster, in the order of the checks."""
    found: list[Finding] = []
    for name, check in CHECKS.items():
        findings = list(check(document))
        found += findings or [Finding(OK, name, "", FINE[name])]
    return found


def _facts(document: Row) -> Iterator[tuple[str, Row]]:
    yield from sorted(document["facts"].items())


# ---- the cluster --------------------------------------------------------------------------------


def check_quorum(document: Row) -> Iterator[Finding]:
    cluster = document["cluster"]
    quorum = cluster["quorum"]
    counts = f"{quorum['active']} of {quorum['defined']} primaries are there"
    if cluster["root"] is None:
        yield Finding(
            PROBLEM,
            "quorum",
            "",
            f"no root is elected; {counts}, {quorum['needed']} are needed",
            "start the missing primaries, or mend the network if they run elsewhere; only if they"
            " are lost for good, `rhizome cluster force-root --dry-run` shows a way",
        )
    elif quorum["active"] < quorum["defined"]:
        yield Finding(
            WARNING,
            "quorum",
            "",
            f"{counts}, {quorum['needed']} are needed",
            "start the missing ones, or remove them with `rhizome cluster remove-primary`",
        )
    elif quorum["defined"] == 2:
        yield Finding(
            WARNING,
            "quorum",
            "",
            "there are two primaries: if the root dies nobody can be elected",
            "add a witness (cluster.role = witness) on a third machine",
        )


GONE: Final = {
    "stopped": "start it; if it runs, mend the network between it and the broker that was asked",
    "isolated": "mend its network, or start enough primaries: it comes back by itself",
}


def check_brokers(document: Row) -> Iterator[Finding]:
    for broker in document["brokers"]:
        name, status = broker["name"], broker["status"]
        if status in GONE:
            seen = "it is stopped, or can't be reached" if status == "stopped" else "it is isolated"
            yield Finding(PROBLEM, "brokers", name, seen, GONE[status])
        elif status not in ("active", "ready"):
            remedy = "wait; `rhizome status` shows how far it is"
            yield Finding(WARNING, "brokers", name, f"it is {status}", remedy)
    for name in document["silent"]:
        remedy = "look at its log and load; what it has is not in this report"
        yield Finding(PROBLEM, "brokers", name, "it is linked and doesn't answer", remedy)


def check_groups(document: Row) -> Iterator[Finding]:
    for group in document["groups"]:
        what = f"group {group['id']}"
        if group["home"] is None and group["queues"]:
            reason = group["unavailable"] or "its home can't be reached"
            yield Finding(
                PROBLEM,
                "groups",
                "",
                f"{what} with {group['queues']} queues is unavailable: {reason}",
                f"start the brokers that have copies; `rhizome group inspect {group['id']}` names"
                " them",
            )
        elif not group["local"] and len(group["in_sync"]) + 1 < group["copies"]:
            wanted = f"{len(group['in_sync']) + 1} of {group['copies']} copies are in sync"
            level = PROBLEM if len(group["in_sync"]) + 1 < group["min_copies"] else WARNING
            remedy = "start the missing brokers, or add one; catch-up is automatic"
            yield Finding(level, "groups", group["home"] or "", f"{what}: {wanted}", remedy)


def check_stalls(document: Row) -> Iterator[Finding]:
    """What waits, but for what other checks tell."""
    for _, facts in _facts(document):
        for stall in facts["stalls"]:
            if stall["kind"] in ("alarm", "isolated"):
                continue
            what = f"{stall['what']}: {stall['why']}"
            remedy = REMEDIES.get(stall["kind"], "GET /api/rhizome/stalls shows more")
            yield Finding(WARNING, "stalls", stall["broker"] or "", what, remedy)


REMEDIES: Final = {
    "copy": "look at the disk and the network of the standby; after sync_timeout the home goes on"
    " without it",
    "publishers": "look at the consumers of the queue, or give it a length limit",
    "disk": "a faster disk, or fewer persistent messages",
    "link": "look at the network between the two brokers",
    "broker": "`rhizome status` shows more",
    "group": "`rhizome group list` shows more",
    "transaction": "it is over by itself once who is waited for is back; `rhizome tx list` shows"
    " more",
}


# ---- each broker --------------------------------------------------------------------------------


def check_alarms(document: Row) -> Iterator[Finding]:
    for name, facts in _facts(document):
        if facts["alarm"]:
            remedy = "consume or purge, or give the broker more; publishers wait until then"
            yield Finding(PROBLEM, "alarms", name, facts["alarm"], remedy)


def check_disks(document: Row) -> Iterator[Finding]:
    for name, facts in _facts(document):
        free, least = facts["disk_free_bytes"], facts["disk_free_min_bytes"]
        if free < least * DISK_WARNING_TIMES:
            yield Finding(
                PROBLEM if free < least else WARNING,
                "disk",
                name,
                f"{bytes_text(free)} are free, publishers wait below {bytes_text(least)}",
                "make room, or find the queue that grows with `rhizome top`",
            )


def check_clocks(document: Row) -> Iterator[Finding]:
    """A clock was read between the question and the answer; what is beyond that is its error."""
    for name, facts in _facts(document):
        early = document["asked_ms"] - facts["clock_ms"]
        late = facts["clock_ms"] - document["answered_ms"]
        off_ms = max(early, late)
        if off_ms >= CLOCK_WARNING_MS and name != document["seen_by"]:
            side = "behind" if early > late else "ahead of"
            yield Finding(
                PROBLEM if off_ms >= CLOCK_PROBLEM_MS else WARNING,
                "clocks",
                name,
                f"its clock is {off_ms / 1000:.1f} s {side} that of {document['seen_by']}",
                "synchronise clocks (chrony, systemd-timesyncd): messages expire by the clock of"
                " their home",
            )


def check_files(document: Row) -> Iterator[Finding]:
    for name, facts in _facts(document):
        used, most = facts["files_open"], facts["files_max"]
        remedy = "raise LimitNOFILE in its unit, or `ulimit -n` before it starts"
        if used >= most * FILES_WARNING_SHARE:
            yield Finding(PROBLEM, "file limits", name, f"{used} of {most} files are open", remedy)
        elif most < FILES_MIN:
            what = f"it may open {most} files, so hold at most that many connections"
            yield Finding(WARNING, "file limits", name, what, remedy)
        if facts["connections"] >= facts["connections_max"] * FILES_WARNING_SHARE:
            what = f"{facts['connections']} of {facts['connections_max']} connections are open"
            remedy = "raise limits.connections_max, or add a secondary"
            yield Finding(WARNING, "file limits", name, what, remedy)


def check_certificates(document: Row) -> Iterator[Finding]:
    for name, facts in _facts(document):
        for each in facts["certificates"]:
            if each["ends_ms"] is None:
                what = f"{each['file']}: {each['error']}"
                yield Finding(PROBLEM, "certificates", name, what, "put a PEM file there")
                continue
            days = (each["ends_ms"] - facts["clock_ms"]) / DAY_MS
            if days > CERTIFICATE_WARNING_DAYS:
                continue
            when = f"ends in {days:.0f} days" if days > 0 else "has ended"
            level = PROBLEM if days <= CERTIFICATE_PROBLEM_DAYS else WARNING
            remedy = "replace the file; the broker reads it again on SIGHUP or at its next start"
            yield Finding(level, "certificates", name, f"{each['file']} {when}", remedy)


def check_versions(document: Row) -> Iterator[Finding]:
    versions = {name: facts["version"] for name, facts in _facts(document)}
    if len(set(versions.values())) > 1:
        told = ", ".join(f"{name} {version}" for name, version in versions.items())
        remedy = "finish the upgrade: one broker after the other, see docs/operating/upgrade.md"
        yield Finding(WARNING, "versions", "", f"brokers differ: {told}", remedy)


def check_salvage(document: Row) -> Iterator[Finding]:
    """What was lost to a forced home, or may be."""
    for name, facts in _facts(document):
        # A broker of release 0.1.0 doesn't tell.
        for saved in facts.get("salvaged", ()):
            yield Finding(
                PROBLEM,
                "salvage",
                name,
                f"{saved['messages']} messages of group {saved['group']}, which its forced home"
                f" doesn't have, lie in salvage/{saved['name']}",
                f"on {name}: `rhizome salvage list`, then `publish` or `delete`",
            )
        for group in facts.get("unseen_groups", ()):
            yield Finding(
                WARNING,
                "salvage",
                name,
                f"it has a copy of group {group} from before its home was forced, perhaps with"
                " messages that are nowhere else",
                f"`rhizome group move {group} --broker {name}` has them compared, and saves what"
                " is missing",
            )


def check_links(document: Row) -> Iterator[Finding]:
    """Whom others could speak for, and rotations of the cluster key that nobody has finished."""
    for name, facts in _facts(document):
        # A broker of release 0.1 doesn't tell.
        for peer in facts.get("exposed_links", ()):
            yield Finding(
                PROBLEM,
                "links",
                name,
                f"its link with {peer} has neither TLS nor MACs: whoever is on the path can act as"
                f" {peer}",
                f"upgrade {peer}, then set cluster.insecure_links to false",
            )
        count = facts.get("cluster_keys", 1)
        if count > 1:
            yield Finding(
                WARNING,
                "links",
                name,
                f"it takes {count} cluster keys",
                "finish the rotation: `rhizome cluster rotate-key check`",
            )


def check_homes(document: Row) -> Iterator[Finding]:
    """Homes that live and can't serve everybody, as the root tells."""
    for _, facts in _facts(document):
        # A broker of release 0.1 doesn't tell.
        for what in facts.get("troubled_homes", ()):
            remedy = (
                "make room on that disk; groups go back later as cluster.rebalance says"
                if what.startswith("the disk of")
                else "mend the network between them; groups go back later as cluster.rebalance says"
            )
            yield Finding(PROBLEM, "homes", "", what, remedy)


def check_state(document: Row) -> Iterator[Finding]:
    """Vhosts that get no more of the cluster state; all brokers have the same."""
    full = {
        each["name"]: each
        for _, facts in _facts(document)
        # A broker of release 0.1 doesn't tell.
        for each in facts.get("full_vhosts", ())
    }
    for name, each in sorted(full.items()):
        used, most = each["state_bytes"], each["state_bytes_max"]
        refused = "; declares, bindings, policies and parameters that add to it are refused"
        yield Finding(
            PROBLEM if used >= most else WARNING,
            "state",
            "",
            f"vhost '{name}' has {used} of {most} bytes of the cluster state that it may have"
            + (refused if used >= most else ""),
            "delete queues, exchanges, bindings or parameters that nobody needs, or raise"
            " cluster.state_size_max",
        )


def check_patterns(document: Row) -> Iterator[Finding]:
    """Patterns that an earlier release took and that are refused today. All brokers have the same
    ones, so each is told once."""
    found = {
        (each["kind"], each["vhost"], each["name"], each["exchange"], each["fault"])
        for _, facts in _facts(document)
        # A broker of release 0.1 doesn't tell.
        for each in facts.get("faulty_patterns", ())
    }
    for kind, vhost, name, exchange, fault in sorted(found):
        whose = f"'{name}'" if kind in POLICY_KINDS else f"of user '{name}'"
        place = f" for exchange '{exchange}'" if exchange else ""
        what = f"the {kind} {whose}{place} in vhost '{vhost}' fits nothing: {fault}"
        remedy = _pattern_remedy(kind, vhost, name, exchange)
        yield Finding(WARNING, "patterns", "", what, remedy)


POLICY_KINDS: Final = ("policy", "operator policy")


def _pattern_remedy(kind: str, vhost: str, name: str, exchange: str) -> str:
    if kind in POLICY_KINDS:
        operator = " --operator" if kind == "operator policy" else ""
        return (
            f"set it again with another pattern, or `rhizome policy delete {name} --vhost"
            f" {vhost}{operator}`"
        )
    if kind == "permission":
        return f"set it again with another pattern: `rhizome user permit {name} --vhost {vhost}`"
    return (
        "set it again with another pattern: `rhizome user topic-permissions set"
        f" {name} {exchange} --vhost {vhost}`"
    )


def check_slow_turns(document: Row) -> Iterator[Finding]:
    """Whether something held a broker's event loop, and with it all of its connections."""
    for name, facts in _facts(document):
        # A broker of release 0.1.0 doesn't tell.
        slow = facts.get("slow_turns", NO_SLOW_TURNS)
        if slow["work"]:
            yield Finding(
                PROBLEM if slow["longest_ms"] >= SLOW_TURN_PROBLEM_MS else WARNING,
                "slow turns",
                name,
                f"{slow['work']} turns held everybody up for more than {slow['limit_ms']} ms,"
                f" the longest for {slow['longest_ms']} ms{_slowest(slow)}",
                "its log has each with the place (rhizome.watchdog); if a client sends what takes"
                " so long, limit that client, else report it",
            )
        if slow["waited"]:
            yield Finding(
                WARNING,
                "slow turns",
                name,
                f"{slow['waited']} times it stood still for more than {slow['limit_ms']} ms without"
                " work of its own",
                "the machine is too busy, the process was stopped, or a disk is slow: look at the"
                " load of the machine",
            )


def _slowest(slow: Row) -> str:
    """What the longest of the turns that are still described did."""
    described = [turn for turn in slow["latest"] if turn["what"] or turn["where"]]
    if not described:
        return ""
    worst = max(described, key=lambda turn: int(turn["lasted_ms"]))
    what = " at ".join(part for part in (worst["what"], worst["where"].partition(" < ")[0]) if part)
    return f"; {worst['lasted_ms']} ms: {what}"


def check_flush(document: Row) -> Iterator[Finding]:
    """Brokers that may have lost with the power what they had confirmed."""
    for name, facts in _facts(document):
        # A broker of release 0.1 doesn't tell.
        if not facts.get("stopped_unsynced", False):
            continue
        torn = facts.get("torn_bytes", 0)
        cut = f"; a torn end of {bytes_text(torn)} was cut off" if torn else ""
        yield Finding(
            WARNING,
            "flush",
            name,
            "it was not stopped cleanly before this start, and journal.flush is not always: if its"
            f" machine lost power, what it had confirmed last is lost{cut}",
            "compare with what publishers know; set journal.flush = always where that must not be",
        )


def check_damage(document: Row) -> Iterator[Finding]:
    """Messages that can't be read, and faults of the brokers themselves."""
    for name, facts in _facts(document):
        # A broker of release 0.1 doesn't tell.
        for each in facts.get("damaged", ()):
            yield Finding(
                PROBLEM,
                "damage",
                name,
                f"message {each['index']} of queue '{each['queue']}' in vhost '{each['vhost']}' is"
                f" damaged on disk and set aside: {each['reason']}",
                "look at the disk; see docs/operating/runbook.md, then `rhizome queue damaged"
                f" {each['queue']} --drop {each['index']}`",
            )

        for each in facts.get("damaged_copies", ()):
            yield Finding(
                WARNING,
                "damage",
                name,
                f"message {each['index']} of queue '{each['queue']}' in vhost '{each['vhost']}' is"
                f" damaged in the copy kept there: {each['reason']}",
                "look at the disk; `rhizome broker rejoin --set-aside` has its copies made anew",
            )


def check_faults(document: Row) -> Iterator[Finding]:
    """Exceptions that nobody expected: what they were about was contained."""
    for name, facts in _facts(document):
        if facts.get("disabled"):
            yield Finding(
                PROBLEM, "faults", name, facts["disabled"], "start it again, and report the fault"
            )
        for each in facts.get("faults", ()):
            yield Finding(
                PROBLEM,
                "faults",
                name,
                f"{each['count']} faults of kind '{each['kind']}', the last at {each['where']}:"
                f" {each['text']}",
                "its log has the details; report it, and start the broker again to clear this",
            )


CHECKS: Final[dict[str, Check]] = {
    "quorum": check_quorum,
    "brokers": check_brokers,
    "groups": check_groups,
    "stalls": check_stalls,
    "alarms": check_alarms,
    "disk": check_disks,
    "clocks": check_clocks,
    "file limits": check_files,
    "certificates": check_certificates,
    "versions": check_versions,
    "salvage": check_salvage,
    "links": check_links,
    "homes": check_homes,
    "state": check_state,
    "patterns": check_patterns,
    "slow turns": check_slow_turns,
    "flush": check_flush,
    "damage": check_damage,
    "faults": check_faults,
}
FINE: Final = {
    "quorum": "there is a root, and all primaries are there",
    "brokers": "all brokers are up",
    "groups": "all groups have a home and their copies",
    "stalls": "nothing waits",
    "alarms": "none",
    "disk": "there is room",
    "clocks": "they agree",
    "file limits": "there are enough files and connections left",
    "certificates": "none ends soon",
    "versions": "all brokers have the same",
    "salvage": "nothing was lost to a forced home",
    "links": "nobody can speak for another broker, and there is one cluster key",
    "homes": "each reaches all brokers and has room on its disk",
    "state": "each vhost has room in the cluster state",
    "patterns": "all patterns can be matched",
    "slow turns": "nothing held a broker up",
    "flush": "nothing that was confirmed can have been lost with the power",
    "damage": "every message that was read could be",
    "faults": "none",
}
