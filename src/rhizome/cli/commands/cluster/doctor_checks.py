"""The checks of `rhizome doctor`: they turn what brokers report into findings with remedies. No
input or output.

Each check has at least one finding, so that a person sees that it was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from rhizome.cli.output.printer import OK, PROBLEM, WARNING, bytes_text

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
"""After a turn as long as this, clients and other brokers may take the broker for dead."""
NO_SLOW_TURNS: Final = {"work": 0, "waited": 0}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found. ``remedy`` is empty if nothing is wrong."""

    level: str
    check: str
    broker: str
    what: str
    remedy: str = ""

    def row(self) -> dict[str, str]:
        return asdict(self)


class Said(NamedTuple):
    """What a check reports of a broker, or of the cluster."""

    level: str
    broker: str
    what: str
    remedy: str = ""


problem: Final = partial(Said, PROBLEM)
warning: Final = partial(Said, WARNING)

Check = Callable[[Row], Iterator[Said]]
CHECKS: Final[dict[str, tuple[Check, str]]] = {}


def check(name: str, fine: str) -> Callable[[Check], Check]:
    """Register a check. Checks run in the order in which they are defined; ``fine`` is reported if
    a check reports nothing."""

    def register(made: Check) -> Check:
        CHECKS[name] = (made, fine)
        return made

    return register


def diagnose(document: Row) -> list[Finding]:
    """All findings about a cluster, in the order of the checks."""
    return [
        Finding(level, name, *said)
        for name, (made, fine) in CHECKS.items()
        for level, *said in list(made(document)) or [Said(OK, "", fine)]
    ]


def _facts(document: Row) -> Iterator[tuple[str, Row]]:
    yield from sorted(document["facts"].items())


def _told(document: Row, key: str) -> Iterator[tuple[str, Any]]:
    """What each broker lists under a key, item by item. A broker of an earlier release doesn't know
    the key, and lists nothing."""
    for name, facts in _facts(document):
        for each in facts.get(key, ()):
            yield name, each


# ---- the cluster --------------------------------------------------------------------------------


@check("quorum", "there is a root, and all primaries are there")
def check_quorum(document: Row) -> Iterator[Said]:
    cluster = document["cluster"]
    quorum = cluster["quorum"]
    counts = f"{quorum['active']} of {quorum['defined']} primaries are there"
    if cluster["root"] is None:
        yield problem(
            "",
            f"no root is elected; {counts}, {quorum['needed']} are needed",
            "start the missing primaries, or mend the network if they run elsewhere; only if they"
            " are lost for good, `rhizome cluster force-root --dry-run` shows a way",
        )
    elif quorum["active"] < quorum["defined"]:
        yield warning(
            "",
            f"{counts}, {quorum['needed']} are needed",
            "start the missing ones, or remove them with `rhizome cluster remove-primary`",
        )
    elif quorum["defined"] == 2:
        yield warning(
            "",
            "there are two primaries: if the root dies nobody can be elected",
            "add a witness (cluster.role = witness) on a third machine",
        )


GONE: Final = {
    "stopped": "start it; if it runs, mend the network between it and the broker that was asked",
    "isolated": "mend its network, or start enough primaries: it comes back by itself",
}


@check("brokers", "all brokers are up")
def check_brokers(document: Row) -> Iterator[Said]:
    for broker in document["brokers"]:
        name, status = broker["name"], broker["status"]
        if status in GONE:
            seen = "it is stopped, or can't be reached" if status == "stopped" else "it is isolated"
            yield problem(name, seen, GONE[status])
        elif status not in ("active", "ready"):
            remedy = "wait; `rhizome status` shows how far it is"
            yield warning(name, f"it is {status}", remedy)
    for name in document["silent"]:
        remedy = "look at its log and load; what it has is not in this report"
        yield problem(name, "it is linked and doesn't answer", remedy)


@check("groups", "all groups have a home and their copies")
def check_groups(document: Row) -> Iterator[Said]:
    for group in document["groups"]:
        what = f"group {group['id']}"
        if group["home"] is None and group["queues"]:
            reason = group["unavailable"] or "its home can't be reached"
            yield problem(
                "",
                f"{what} with {group['queues']} queues is unavailable: {reason}",
                f"start the brokers that have copies; `rhizome group inspect {group['id']}` names"
                " them",
            )
        elif not group["local"] and len(group["in_sync"]) + 1 < group["copies"]:
            wanted = f"{len(group['in_sync']) + 1} of {group['copies']} copies are in sync"
            level = PROBLEM if len(group["in_sync"]) + 1 < group["min_copies"] else WARNING
            remedy = "start the missing brokers, or add one; catch-up is automatic"
            yield Said(level, group["home"] or "", f"{what}: {wanted}", remedy)


@check("stalls", "nothing waits")
def check_stalls(document: Row) -> Iterator[Said]:
    """What waits, apart from what other checks report."""
    for _, stall in _told(document, "stalls"):
        if stall["kind"] not in ("alarm", "isolated"):
            what = f"{stall['what']}: {stall['why']}"
            remedy = REMEDIES.get(stall["kind"], "GET /api/rhizome/stalls shows more")
            yield warning(stall["broker"] or "", what, remedy)


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


@check("alarms", "none")
def check_alarms(document: Row) -> Iterator[Said]:
    for name, facts in _facts(document):
        if facts["alarm"]:
            remedy = "consume or purge, or give the broker more; publishers wait until then"
            yield problem(name, facts["alarm"], remedy)


@check("disk", "there is room")
def check_disks(document: Row) -> Iterator[Said]:
    for name, facts in _facts(document):
        free, least = facts["disk_free_bytes"], facts["disk_free_min_bytes"]
        if free < least * DISK_WARNING_TIMES:
            yield Said(
                PROBLEM if free < least else WARNING,
                name,
                f"{bytes_text(free)} are free, publishers wait below {bytes_text(least)}",
                "make room, or find the queue that grows with `rhizome top`",
            )


@check("clocks", "they agree")
def check_clocks(document: Row) -> Iterator[Said]:
    """A clock was read between request and response; a difference beyond that is its error."""
    for name, facts in _facts(document):
        early = document["asked_ms"] - facts["clock_ms"]
        late = facts["clock_ms"] - document["answered_ms"]
        off_ms = max(early, late)
        if off_ms >= CLOCK_WARNING_MS and name != document["seen_by"]:
            side = "behind" if early > late else "ahead of"
            yield Said(
                PROBLEM if off_ms >= CLOCK_PROBLEM_MS else WARNING,
                name,
                f"its clock is {off_ms / 1000:.1f} s {side} that of {document['seen_by']}",
                "synchronise clocks (chrony, systemd-timesyncd): messages expire by the clock of"
                " their home",
            )


@check("file limits", "there are enough files and connections left")
def check_files(document: Row) -> Iterator[Said]:
    for name, facts in _facts(document):
        used, most = facts["files_open"], facts["files_max"]
        remedy = "raise LimitNOFILE in its unit, or `ulimit -n` before it starts"
        if used >= most * FILES_WARNING_SHARE:
            yield problem(name, f"{used} of {most} files are open", remedy)
        elif most < FILES_MIN:
            what = f"it may open {most} files, so hold at most that many connections"
            yield warning(name, what, remedy)
        if facts["connections"] >= facts["connections_max"] * FILES_WARNING_SHARE:
            what = f"{facts['connections']} of {facts['connections_max']} connections are open"
            remedy = "raise limits.connections_max, or add a secondary"
            yield warning(name, what, remedy)


@check("certificates", "none ends soon")
def check_certificates(document: Row) -> Iterator[Said]:
    for name, each in _told(document, "certificates"):
        if each["ends_ms"] is None:
            what = f"{each['file']}: {each['error']}"
            yield problem(name, what, "put a PEM file there")
            continue
        days = (each["ends_ms"] - document["facts"][name]["clock_ms"]) / DAY_MS
        if days > CERTIFICATE_WARNING_DAYS:
            continue
        when = f"ends in {days:.0f} days" if days > 0 else "has ended"
        level = PROBLEM if days <= CERTIFICATE_PROBLEM_DAYS else WARNING
        remedy = "replace the file; the broker reads it again on SIGHUP or at its next start"
        yield Said(level, name, f"{each['file']} {when}", remedy)


@check("versions", "all brokers have the same")
def check_versions(document: Row) -> Iterator[Said]:
    versions = {name: facts["version"] for name, facts in _facts(document)}
    if len(set(versions.values())) > 1:
        told = ", ".join(f"{name} {version}" for name, version in versions.items())
        remedy = "finish the upgrade: one broker after the other, see docs/operating/upgrade.md"
        yield warning("", f"brokers differ: {told}", remedy)


@check("salvage", "nothing was lost to a forced home")
def check_salvage(document: Row) -> Iterator[Said]:
    """Messages that a forced home lacks, or may lack."""
    for name, saved in _told(document, "salvaged"):
        yield problem(
            name,
            f"{saved['messages']} messages of group {saved['group']}, which its forced home"
            f" doesn't have, lie in salvage/{saved['name']}",
            f"on {name}: `rhizome salvage list`, then `publish` or `delete`",
        )
    for name, group in _told(document, "unseen_groups"):
        yield warning(
            name,
            f"it has a copy of group {group} from before its home was forced, perhaps with"
            " messages that are nowhere else",
            f"`rhizome group move {group} --broker {name}` has them compared, and saves what is"
            " missing",
        )


@check("links", "nobody can speak for another broker, and there is one cluster key")
def check_links(document: Row) -> Iterator[Said]:
    """Brokers that others could impersonate, and unfinished rotations of the cluster key."""
    for name, peer in _told(document, "exposed_links"):
        yield problem(
            name,
            f"its link with {peer} has neither TLS nor MACs: whoever is on the path can act as"
            f" {peer}",
            f"upgrade {peer}, then set cluster.insecure_links to false",
        )
    for name, facts in _facts(document):
        count = facts.get("cluster_keys", 1)
        if count > 1:
            yield warning(
                name,
                f"it takes {count} cluster keys",
                "finish the rotation: `rhizome cluster rotate-key check`",
            )


@check("homes", "each reaches all brokers and has room on its disk")
def check_homes(document: Row) -> Iterator[Said]:
    """Impaired homes: they live and can't serve all brokers, as the root reports."""
    for _, what in _told(document, "troubled_homes"):
        remedy = (
            "make room on that disk; groups go back later as cluster.rebalance says"
            if what.startswith("the disk of")
            else "mend the network between them; groups go back later as cluster.rebalance says"
        )
        yield problem("", what, remedy)


@check("state", "each vhost has room in the cluster state")
def check_state(document: Row) -> Iterator[Said]:
    """Vhosts that have used up their share of the cluster state; all brokers have the same."""
    full = {each["name"]: each for _, each in _told(document, "full_vhosts")}
    for name, each in sorted(full.items()):
        used, most = each["state_bytes"], each["state_bytes_max"]
        refused = "; declares, bindings, policies and parameters that add to it are refused"
        yield Said(
            PROBLEM if used >= most else WARNING,
            "",
            f"vhost '{name}' has {used} of {most} bytes of the cluster state that it may have"
            + (refused if used >= most else ""),
            "delete queues, exchanges, bindings or parameters that nobody needs, or raise"
            " cluster.state_size_max",
        )


@check("patterns", "all patterns can be matched")
def check_patterns(document: Row) -> Iterator[Said]:
    """Patterns that an earlier release accepted and that are refused today. All brokers have the
    same ones, so each is reported once."""
    found = {
        (each["kind"], each["vhost"], each["name"], each["exchange"], each["fault"])
        for _, each in _told(document, "faulty_patterns")
    }
    for kind, vhost, name, exchange, fault in sorted(found):
        whose = f"'{name}'" if kind in POLICY_KINDS else f"of user '{name}'"
        place = f" for exchange '{exchange}'" if exchange else ""
        what = f"the {kind} {whose}{place} in vhost '{vhost}' fits nothing: {fault}"
        remedy = _pattern_remedy(kind, vhost, name, exchange)
        yield warning("", what, remedy)


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


@check("slow turns", "nothing held a broker up")
def check_slow_turns(document: Row) -> Iterator[Said]:
    """Whether something held a broker's event loop, and with it all of its connections."""
    for name, facts in _facts(document):
        # A broker of release 0.1.0 doesn't report it.
        slow = facts.get("slow_turns", NO_SLOW_TURNS)
        if slow["work"]:
            yield Said(
                PROBLEM if slow["longest_ms"] >= SLOW_TURN_PROBLEM_MS else WARNING,
                name,
                f"{slow['work']} turns held everybody up for more than {slow['limit_ms']} ms,"
                f" the longest for {slow['longest_ms']} ms{_slowest(slow)}",
                "its log has each with the place (rhizome.watchdog); if a client sends what takes"
                " so long, limit that client, else report it",
            )
        if slow["waited"]:
            yield warning(
                name,
                f"{slow['waited']} times it stood still for more than {slow['limit_ms']} ms without"
                " work of its own",
                "the machine is too busy, the process was stopped, or a disk is slow: look at the"
                " load of the machine",
            )


def _slowest(slow: Row) -> str:
    """What the longest of the recorded turns did."""
    described = [turn for turn in slow["latest"] if turn["what"] or turn["where"]]
    if not described:
        return ""
    worst = max(described, key=lambda turn: int(turn["lasted_ms"]))
    what = " at ".join(part for part in (worst["what"], worst["where"].partition(" < ")[0]) if part)
    return f"; {worst['lasted_ms']} ms: {what}"


@check("flush", "nothing that was confirmed can have been lost with the power")
def check_flush(document: Row) -> Iterator[Said]:
    """Brokers that may have lost confirmed messages in a power cut."""
    for name, facts in _facts(document):
        # A broker of release 0.1 doesn't tell.
        if not facts.get("stopped_unsynced", False):
            continue
        torn = facts.get("torn_bytes", 0)
        cut = f"; a torn end of {bytes_text(torn)} was cut off" if torn else ""
        yield warning(
            name,
            "it was not stopped cleanly before this start, and journal.flush is not always: if its"
            f" machine lost power, what it had confirmed last is lost{cut}",
            "compare with what publishers know; set journal.flush = always where that must not be",
        )


@check("damage", "every message that was read could be")
def check_damage(document: Row) -> Iterator[Said]:
    """Messages that can't be read."""
    for name, each in _told(document, "damaged"):
        yield problem(
            name,
            f"message {each['index']} of queue '{each['queue']}' in vhost '{each['vhost']}' is"
            f" damaged on disk and set aside: {each['reason']}",
            "look at the disk; see docs/operating/runbook.md, then `rhizome queue damaged"
            f" {each['queue']} --drop {each['index']}`",
        )
    for name, each in _told(document, "damaged_copies"):
        yield warning(
            name,
            f"message {each['index']} of queue '{each['queue']}' in vhost '{each['vhost']}' is"
            f" damaged in the copy kept there: {each['reason']}",
            "look at the disk; `rhizome broker rejoin --set-aside` has its copies made anew",
        )


@check("faults", "none")
def check_faults(document: Row) -> Iterator[Said]:
    """Unexpected exceptions whose effects the broker has contained."""
    for name, facts in _facts(document):
        disabled = str(facts.get("disabled") or "")
        if disabled:
            remedy = FAILED_STATE if disabled.startswith(STATE_FAILED) else FAILED
            yield problem(name, disabled, remedy)
    for name, each in _told(document, "faults"):
        yield problem(
            name,
            f"{each['count']} faults of kind '{each['kind']}', the last at {each['where']}:"
            f" {each['text']}",
            "its log has the details; report it, and start the broker again to clear this",
        )


@check("logs", "everything was written")
def check_logs(document: Row) -> Iterator[Said]:
    """Logs that hang, or have lost lines."""
    for name, each in _told(document, "logs"):
        if each["stuck_ms"] >= LOG_STUCK_MS:
            yield problem(
                name,
                f"a write to its {each['log']} log has taken {each['stuck_ms'] // 1000} s already;"
                f" {each['waiting_lines']} lines wait, and those that find no room are lost",
                "look at the disk or the program that its log goes to",
            )
        if each["lost_lines"]:
            yield problem(
                name,
                f"{each['lost_lines']} lines of its {each['log']} log are lost: they could not be"
                " written, or too many waited for a disk that was slow or hung",
                "look at the disk that the log is on; a restart of the broker clears this",
            )


@check("token keys", "the keys of all issuers of access tokens are there")
def check_issuers(document: Row) -> Iterator[Said]:
    """Issuers whose keys can't be fetched, or can't be used; each broker fetches for itself."""
    for name, each in _told(document, "issuers"):
        whose = f"the keys of issuer '{each['name']}' ({each['url']})"
        if not each["keys_count"]:
            why = each["trouble"] or "it publishes none that can be used"
            yield problem(
                name, f"{whose} are not there, and its tokens are refused: {why}", ISSUER_REMEDY
            )
        elif each["trouble"]:
            yield warning(
                name,
                f"{whose} can't be fetched; those of {each['age_ms'] // 1000} s ago are used until"
                f" oauth.keys_expire has passed: {each['trouble']}",
                ISSUER_REMEDY,
            )
        for reason in each["left_out"]:
            yield warning(
                name,
                f"a key of issuer '{each['name']}' is not used: {reason}",
                "tokens that it signs are refused; have the issuer sign with RS256 or ES256",
            )


@check("readers", "no stream is about to drop what a named reader has not read")
def check_readers(document: Row) -> Iterator[Said]:
    """Named readers of streams whose unread messages retention is about to remove."""
    for name, each in _told(document, "readers_at_risk"):
        yield warning(
            name,
            f"retention is about to drop {each['unread']} messages of stream"
            f" '{each['stream']}' in vhost '{each['vhost']}' that reader '{each['reader']}' has"
            " not read",
            "start the reader or let the stream keep more; if the reader is gone for good,"
            f" `rhizome stream offset forget {each['stream']} {each['reader']}`",
        )


ISSUER_REMEDY: Final = (
    "mend the way from this broker to it, or its settings in [oauth]; the broker tries again by"
    " itself, and at once on SIGHUP"
)

LOG_STUCK_MS: Final = 5_000
"""From when on a write to a log counts as hanging."""

FAILED: Final = "start it again, and report the fault"
FAILED_STATE: Final = (
    "its log has the details: report it, and start it again; if it fails at the same entry, run the"
    " release there that the other brokers run"
)
STATE_FAILED: Final = "state-failed"
"""How the reason of a broker begins that can't apply an entry of the cluster's log."""
