"""`rhizome doctor`: what is wrong with a cluster, and what to do about it."""

from __future__ import annotations

import typer

from rhizome.cli.commands.cluster.doctor_checks import Finding, diagnose
from rhizome.cli.http_api.api_client import path
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.output.printer import OK, PROBLEM, WARNING, print_json, say
from rhizome.cli.shared_options import with_options

app = typer.Typer()

MARKS = {OK: "ok      ", WARNING: "warning ", PROBLEM: "PROBLEM "}


@app.command()
@with_options
def doctor(remote: Remote) -> None:
    """Check quorum, copies, disks, clocks, file limits, certificates and versions.

    Says what is wrong and what to do. The exit code is 1 if there is a problem; warnings count not.
    """
    document = remote.api.row(path("rhizome", "checkup"))
    findings = diagnose(document)
    if remote.as_json:
        print_json([each.row() for each in findings])
    else:
        _print(findings)
    if any(each.level == PROBLEM for each in findings):
        raise typer.Exit(1)


def _print(findings: list[Finding]) -> None:
    for finding in findings:
        where = f"{finding.broker}: " if finding.broker else ""
        line = f"{MARKS[finding.level]}{finding.check.ljust(14)}{where}{finding.what}"
        say(line, level=finding.level)
        if finding.remedy:
            say(f"{' ' * 22}-> {finding.remedy}")
    problems = sum(each.level == PROBLEM for each in findings)
    warnings = sum(each.level == WARNING for each in findings)
    say()
    say(f"{_count(problems, 'problem')}, {_count(warnings, 'warning')}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
