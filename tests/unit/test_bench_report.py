"""The verdicts of `make bench`: a harness that says "pass" wrongly is worse than none."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("report")


def run_with(**scenarios: dict[str, dict[str, float]]) -> dict[str, Any]:
    return {
        "date": "2026-01-01T00:00:00Z",
        "commit": "abc",
        "cores": 2,
        "load": 0.5,
        "kernel": "6",
        "python": "3.11",
        "runs": 3,
        "seconds": 4.0,
        "quick": False,
        "versions": {"rabbitmq": "3.10", "rhizome": "0.1"},
        "scenarios": {
            name.replace("_", "-"): {"medians": medians, "runs": {}, "failures": {}}
            for name, medians in scenarios.items()
        },
    }


def throughput(rate: float, cpu: float) -> dict[str, dict[str, float]]:
    return {
        "rabbitmq": {"rate": 90_000.0, "cpu_per_million": 20.0},
        "rhizome": {"rate": rate, "cpu_per_million": cpu},
    }


def verdicts(report: ModuleType, run: dict[str, Any]) -> dict[str, bool]:
    return {f"{check.scenario}: {check.what}": check.ok for check in report.checks(run)}


def test_ten_times_the_rate_at_a_tenth_of_the_cpu_passes(report: ModuleType) -> None:
    found = verdicts(report, run_with(auto_16=throughput(900_000.0, 1.48)))
    assert found == {
        "auto-16: times the rate": True,
        "auto-16: of the CPU per message": True,
        "auto-16: CPU s per million, LavinMQ's": True,
    }


def test_each_target_of_a_load_fails_by_itself(report: ModuleType) -> None:
    found = verdicts(report, run_with(auto_16=throughput(899_000.0, 2.1)))
    assert set(found.values()) == {False}
    found = verdicts(report, run_with(auto_16=throughput(900_000.0, 1.9)))
    assert not found["auto-16: CPU s per million, LavinMQ's"]
    assert found["auto-16: of the CPU per message"]


def test_a_broker_that_could_not_be_measured_fails(report: ModuleType) -> None:
    only_rabbitmq = {"rabbitmq": {"rate": 90_000.0, "cpu_per_million": 20.0}}
    assert set(verdicts(report, run_with(auto_16=only_rabbitmq)).values()) == {False}


def test_latency_must_be_below_half(report: ModuleType) -> None:
    latency = {
        "rabbitmq": {"p50_us": 200.0, "p99_us": 2000.0},
        "rhizome": {"p50_us": 100.0, "p99_us": 1001.0},
    }
    found = verdicts(report, run_with(latency=latency))
    assert found == {"latency: of p50": True, "latency: of p99": False}


def test_backlog_restart_and_idle_have_absolute_limits(report: ModuleType) -> None:
    run = run_with(
        backlog_1m={"rhizome": {"growth_mib": 101.0, "drain_ratio": 0.5}},
        restart={"rhizome": {"clean_seconds": 4.9, "killed_seconds": 5.1}},
        idle={"rhizome": {"kib_each": 39.0}},
    )
    assert verdicts(report, run) == {
        "backlog-1m: MiB of growth": False,
        "backlog-1m: of the empty queue's rate": True,
        "restart: seconds (clean)": True,
        "restart: seconds (killed)": False,
        "idle: KiB per connection": True,
    }


def test_a_quick_run_says_nothing_about_absolute_limits(report: ModuleType) -> None:
    run = run_with(backlog_1m={"rhizome": {"growth_mib": 1.0, "drain_ratio": 1.0}})
    assert verdicts(report, {**run, "quick": True}) == {}


def test_table_and_chart_show_what_was_measured(report: ModuleType) -> None:
    run = report.merged([run_with(auto_16=throughput(4_000_000.0, 0.25))])
    text = report.markdown(run)
    assert "| 90k | 4M | 44.4x | 20 | 0.25 | 0.0125x | 1.48 | pass |" in text
    assert "3 of 3 targets met" in text
    chart = report.chart(run)
    assert chart.count("<rect") == 1 + 2 + 4  # background, legend, two bars in two panels
    assert "16 B, auto-ack" in chart


def test_the_table_has_the_newest_measurement_of_each_scenario(report: ModuleType) -> None:
    older = run_with(auto_16=throughput(1.0, 9.0), idle={"rhizome": {"kib_each": 30.0}})
    newer = {**run_with(auto_16=throughput(4_000_000.0, 0.25)), "date": "2026-02-01T00:00:00Z"}
    run = report.merged([newer, older])
    assert run["scenarios"]["auto-16"]["medians"] == throughput(4_000_000.0, 0.25)
    assert verdicts(report, run)["idle: KiB per connection"]
    text = report.markdown(run)
    assert "| 2026-01-01T00:00:00Z | abc | 0.5 | 3 | 4.0 |  | idle |" in text
    assert "| 2026-02-01T00:00:00Z | abc | 0.5 | 3 | 4.0 |  | auto-16 |" in text
    assert "| not measured |  |  |  |  |  | auto-128, " in text


def test_a_scenario_is_never_made_up_of_two_runs(report: ModuleType) -> None:
    older = run_with(auto_16=throughput(4_000_000.0, 0.25))
    newer = run_with(auto_16={"rhizome": {"rate": 1.0, "cpu_per_million": 1.0}})
    run = report.merged([older, {**newer, "date": "2026-02-01T00:00:00Z"}])
    assert "rabbitmq" not in run["scenarios"]["auto-16"]["medians"]


def test_a_quick_run_is_not_shown(report: ModuleType) -> None:
    kept = run_with(auto_16=throughput(4_000_000.0, 0.25))
    quick = {
        **run_with(auto_16=throughput(1.0, 9.0)),
        "quick": True,
        "date": "2026-02-01T00:00:00Z",
    }
    assert report.merged([kept, quick]) == report.merged([kept])


@pytest.mark.parametrize(
    ("first", "last", "order"),
    [
        (2.0, 1.5, "O(1)"),
        (2.0, 2.6, "O(1)"),
        (3.0, 4.0, "O(1)"),
        (3.0, 6.0, "O(log N)"),
        (2.0, 5.0, "O(N)"),
        (2.0, 20.0, "O(N)"),
        (2.0, 200.0, "O(N^2.0)"),
    ],
)
def test_growth_is_fitted_from_the_ratio_of_costs(
    monkeypatch: pytest.MonkeyPatch, first: float, last: float, order: str
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    growth = importlib.import_module("growth")
    assert growth.order_of(first, last, 10) == order
    few, many = {"declare": first}, {"declare": last}
    assert growth.table({1_000: few, 10_000: many}).endswith(f"  {order}")
