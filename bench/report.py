"""From the medians of a run to verdicts, a table, a chart and a line of history."""

from __future__ import annotations

from dataclasses import dataclass
from math import log10
from typing import Any

from scenarios import (
    BACKLOGS,
    IDLE_KIB_MAX,
    IDLE_NAME,
    IDLE_TITLE,
    LATENCY_NAME,
    LATENCY_RATIO_MAX,
    LATENCY_TITLE,
    RESTART_NAME,
    RESTART_SECONDS_MAX,
    RESTART_TITLE,
    THROUGHPUT,
    all_names,
)

Run = dict[str, Any]
CIRCUMSTANCES = ("date", "commit", "load", "runs", "seconds", "note")
"""What is told about the measurement of a scenario; results from before a key was added lack it."""


@dataclass(frozen=True)
class Check:
    """One target: `value` is what was measured, None where that was not possible."""

    scenario: str
    what: str
    value: float | None
    limit: float
    at_least: bool

    @property
    def ok(self) -> bool:
        if self.value is None:
            return False
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        value = "not measured" if self.value is None else figure(self.value)
        verdict = "pass" if self.ok else "FAIL"
        return f"{verdict}  {self.scenario}: {self.what} {value} (target {sign} {self.limit:g})"


def medians(run: Run, scenario: str, broker: str) -> dict[str, float]:
    found: dict[str, float] = run["scenarios"].get(scenario, {}).get("medians", {}).get(broker, {})
    return found


def ratio(run: Run, scenario: str, key: str) -> float | None:
    """Rhizome's figure over RabbitMQ's."""
    ours = medians(run, scenario, "rhizome").get(key)
    theirs = medians(run, scenario, "rabbitmq").get(key)
    return ours / theirs if ours is not None and theirs else None


def checks(run: Run) -> list[Check]:
    """Verdicts on what this run was asked to measure; ratios need both brokers."""
    if "rhizome" not in run["versions"]:
        return []
    both = "rabbitmq" in run["versions"]
    verdicts = [*throughput_checks(run, both), *latency_checks(run, both)]
    if not run["quick"]:  # a tenth of the backlog proves nothing about the whole
        verdicts += absolute_checks(run)
    return [check for check in verdicts if check.scenario in run["scenarios"]]


def throughput_checks(run: Run, both: bool) -> list[Check]:
    found: list[Check] = []
    for load in THROUGHPUT:
        ours = medians(run, load.name, "rhizome")
        if both:
            times = ratio(run, load.name, "rate")
            found.append(Check(load.name, "times the rate", times, load.rate_ratio_min, True))
        if both and load.cpu_ratio_max is not None:
            share = ratio(run, load.name, "cpu_per_million")
            found.append(
                Check(load.name, "of the CPU per message", share, load.cpu_ratio_max, False)
            )
        if load.lavinmq_cpu is not None:
            cpu = ours.get("cpu_per_million")
            found.append(
                Check(load.name, "CPU s per million, LavinMQ's", cpu, load.lavinmq_cpu, False)
            )
    return found


def latency_checks(run: Run, both: bool) -> list[Check]:
    if not both:
        return []
    return [
        Check(
            LATENCY_NAME, f"of {key[:3]}", ratio(run, LATENCY_NAME, key), LATENCY_RATIO_MAX, False
        )
        for key in ("p50_us", "p99_us")
    ]


def absolute_checks(run: Run) -> list[Check]:
    found: list[Check] = []
    for wait in BACKLOGS:
        ours = medians(run, wait.name, "rhizome")
        growth, drain = ours.get("growth_mib"), ours.get("drain_ratio")
        found.append(Check(wait.name, "MiB of growth", growth, wait.growth_mib_max, False))
        found.append(
            Check(wait.name, "of the empty queue's rate", drain, wait.drain_ratio_min, True)
        )
    ours = medians(run, RESTART_NAME, "rhizome")
    for how in ("clean", "killed"):
        seconds = ours.get(f"{how}_seconds")
        found.append(Check(RESTART_NAME, f"seconds ({how})", seconds, RESTART_SECONDS_MAX, False))
    each = medians(run, IDLE_NAME, "rhizome").get("kib_each")
    found.append(Check(IDLE_NAME, "KiB per connection", each, IDLE_KIB_MAX, False))
    return found


def checks_as_text(verdicts: list[Check]) -> str:
    passed = sum(check.ok for check in verdicts)
    return "\n".join([*map(str, verdicts), f"{passed} of {len(verdicts)} targets met"])


def figure(value: float) -> str:
    """Three significant digits, with k and M."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.3g}k"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def cell(value: float | None, unit: str = "") -> str:
    return "" if value is None else figure(value) + unit


def in_short(broker: str, found: dict[str, float]) -> str:
    shown = [f"{key}={figure(value)}" for key, value in found.items() if key != "broker_cpu"]
    return f"{broker}: {' '.join(shown)}"


def history_line(run: Run) -> Run:
    numbers = {name: found["medians"] for name, found in run["scenarios"].items()}
    facts = {key: run[key] for key in ("date", "commit", "versions", "quick")}
    return {**facts, "numbers": numbers}


def merged(runs: list[Run]) -> Run:
    """The newest measurement of each scenario, with when and at which commit it was made.

    A scenario is taken whole from one run: figures of two brokers are comparable only if they were
    measured in turn. Quick runs prove nothing and are left out.
    """
    found: Run = {"versions": {}, "scenarios": {}, "quick": False}
    for run in sorted((run for run in runs if not run["quick"]), key=lambda run: run["date"]):
        circumstances = {key: run.get(key, "") for key in CIRCUMSTANCES}
        measured = {name: {**one, **circumstances} for name, one in run["scenarios"].items()}
        found = {
            **run,
            "versions": {**found["versions"], **run["versions"]},
            "scenarios": {**found["scenarios"], **measured},
        }
    return found


def markdown(run: Run) -> str:
    """The table of a merged run."""
    versions = ", ".join(f"{who}: {version}" for who, version in run["versions"].items())
    parts = [
        "# Benchmark results",
        f"{versions}; {run['cores']} cores shared by broker and generator, Linux {run['kernel']}, "
        f"Python {run['python']}. Brokers are measured in turn; every message is checked by the "
        "generator. Made by `make bench`; do not edit.",
        "![rates and CPU](results.svg)",
        throughput_table(run),
        latency_table(run),
        other_table(run),
        "## Targets\n\n```\n" + checks_as_text(checks(run)) + "\n```",
        when_table(run),
    ]
    return "\n\n".join(parts) + "\n"


def verdict(run: Run, scenario: str) -> str:
    found = [check for check in checks(run) if check.scenario == scenario]
    return "" if not found else "pass" if all(check.ok for check in found) else "FAIL"


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def throughput_table(run: Run) -> str:
    rows = []
    for load in THROUGHPUT:
        theirs, ours = (medians(run, load.name, who) for who in ("rabbitmq", "rhizome"))
        rows.append(
            [
                f"{load.title} (`{' '.join(load.flags)}`)",
                cell(theirs.get("rate")),
                cell(ours.get("rate")),
                cell(ratio(run, load.name, "rate"), "x"),
                cell(theirs.get("cpu_per_million")),
                cell(ours.get("cpu_per_million")),
                cell(ratio(run, load.name, "cpu_per_million"), "x"),
                cell(load.lavinmq_cpu),
                verdict(run, load.name),
            ]
        )
    heads = ["scenario", "RabbitMQ msg/s", "Rhizome msg/s", "ratio"]
    heads += ["RabbitMQ CPU s/M", "Rhizome CPU s/M", "ratio", "LavinMQ CPU s/M", "targets"]
    return (
        "## Throughput\n\nMessages consumed per second; CPU seconds per million consumed.\n\n"
        + (table(heads, rows))
    )


def latency_table(run: Run) -> str:
    keys = ("p50_us", "p99_us", "p999_us")
    rows = [
        [who, *(cell(medians(run, LATENCY_NAME, who.lower()).get(key)) for key in keys)]
        for who in ("RabbitMQ", "Rhizome")
    ]
    heads = [LATENCY_TITLE, "p50 us", "p99 us", "p99.9 us"]
    return f"## Latency\n\n{table(heads, rows)}\n\nTargets: {verdict(run, LATENCY_NAME)}"


def other_table(run: Run) -> str:
    wanted = [
        *((b.name, b.title + ": growth, MiB", "growth_mib") for b in BACKLOGS),
        *((b.name, b.title + ": drain, msg/s", "drain_rate") for b in BACKLOGS),
        *((b.name, b.title + ": empty queue, msg/s", "empty_rate") for b in BACKLOGS),
        (RESTART_NAME, RESTART_TITLE + ", clean, s", "clean_seconds"),
        (RESTART_NAME, RESTART_TITLE + ", killed, s", "killed_seconds"),
        (IDLE_NAME, IDLE_TITLE + ": KiB each", "kib_each"),
    ]
    rows = [
        [
            title,
            cell(medians(run, name, "rabbitmq").get(key)),
            cell(medians(run, name, "rhizome").get(key)),
            verdict(run, name),
        ]
        for name, title, key in wanted
    ]
    return "## Memory and restart\n\n" + table(["", "RabbitMQ", "Rhizome", "targets"], rows)


def when_table(run: Run) -> str:
    """Which scenarios were measured when; those that no run has measured are named too."""
    groups: dict[tuple[str, ...], list[str]] = {}
    nowhere = dict.fromkeys(CIRCUMSTANCES, "") | {"date": "not measured"}
    for name in all_names():
        one = run["scenarios"].get(name, nowhere)
        groups.setdefault(tuple(str(one[key]) for key in CIRCUMSTANCES), []).append(name)
    rows = [[*facts, ", ".join(names)] for facts, names in sorted(groups.items())]
    heads = ["measured", "commit", "load before", "runs (median)", "seconds", "note", "scenarios"]
    note = (
        "Backlogs, restarts and idle connections are measured once per run. A load average above "
        "1 before a run means that others were using the machine: mistrust its latencies, and its "
        "durable rates most.\n\n"
    )
    return "## When\n\n" + note + table(heads, rows)


# ---- the chart: two panels of horizontal bars on logarithmic axes --------------------------------

ROW = 34
BAR = 12
LABEL_WIDTH = 250
PANEL_WIDTH = 360
COLOURS = {"rabbitmq": "#b8b8c0", "rhizome": "#1f7a5c"}
NAMES = {"rabbitmq": "RabbitMQ", "rhizome": "Rhizome"}


@dataclass(frozen=True)
class Panel:
    title: str
    key: str
    low: float
    high: float
    left: int

    def length(self, value: float) -> float:
        """Pixels of a bar; the axis runs from `low` to `high` by powers of ten."""
        share = (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return max(1.0, min(1.0, share) * PANEL_WIDTH)


PANELS = (
    Panel("messages per second (log)", "rate", 1e3, 1e7, LABEL_WIDTH),
    Panel("CPU s per million (log)", "cpu_per_million", 0.1, 1e3, LABEL_WIDTH + PANEL_WIDTH + 90),
)


def chart(run: Run) -> str:
    loads = [load for load in THROUGHPUT if load.name in run["scenarios"]]
    height = 80 + ROW * len(loads)
    width = PANELS[-1].left + PANEL_WIDTH + 70
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="#222">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        legend(),
        *(text(panel.left, 52, panel.title, weight="bold") for panel in PANELS),
    ]
    for row, load in enumerate(loads):
        top = 64 + row * ROW
        parts.append(text(LABEL_WIDTH - 10, top + BAR + 4, load.title, anchor="end"))
        for panel in PANELS:
            for offset, who in enumerate(COLOURS):
                value = medians(run, load.name, who).get(panel.key)
                if value:
                    parts.append(bar(panel, top + offset * BAR, who, value))
    return "\n".join([*parts, "</svg>"]) + "\n"


def bar(panel: Panel, top: int, who: str, value: float) -> str:
    length = panel.length(value)
    box = (
        f'<rect x="{panel.left}" y="{top}" width="{length:.1f}" height="{BAR - 1}" '
        f'fill="{COLOURS[who]}"/>'
    )
    return box + text(panel.left + int(length) + 4, top + BAR - 2, figure(value), size=10)


def legend() -> str:
    parts = []
    for place, (who, colour) in enumerate(COLOURS.items()):
        left = LABEL_WIDTH + place * 110
        parts.append(f'<rect x="{left}" y="16" width="14" height="12" fill="{colour}"/>')
        parts.append(text(left + 20, 27, NAMES[who]))
    return "".join(parts)


def text(
    left: int, base: int, words: str, anchor: str = "start", weight: str = "normal", size: int = 12
) -> str:
    return (
        f'<text x="{left}" y="{base}" text-anchor="{anchor}" font-weight="{weight}" '
        f'font-size="{size}">{words}</text>'
    )
