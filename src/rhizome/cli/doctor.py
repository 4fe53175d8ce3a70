"""`rhizome doctor`: what is wrong with a cluster, and what to do about it."""

from __future__ import annotations

import typer

from rhizome.cli.api import Api, endpoint, path
from rhizome.cli.diagnosis import OK, PROBLEM, WARNING, Finding, diagnose
from rhizome.cli.options import HTTP_DEFAULT, HttpOption, JsonOption, PasswordOption, UserOption
from rhizome.cli.output import print_json, say

app = typer.Typer()

MARKS = {OK: "ok      ", WARNING: "warning ", PROBLEM: "PROBLEM "}


@app.command()
def doctor(
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Check quorum, copies, disks, clocks, file limits, certificates and versions.

    Says what is wrong and what to do. The exit code is 1 if there is a problem; warnings count not.
    """
    document = Api(endpoint(http, user, password)).row(path("rhizome", "checkup"))
    findings = diagnose(document)
    if as_json:
        print_json([each.row() for each in findings])
    else:
        _print(findings)
    if any(each.level == PROBLEM for each in findings):
        raise typer.Exit(1)


def _print(findings: list[Finding]) -> None:
    for finding in findings:
        where = f"{finding.broker}: " if finding.broker else ""
        say(f"{MARKS[finding.level]}{finding.check.ljust(14)}{where}{finding.what}")
        if finding.remedy:
            say(f"{' ' * 22}-> {finding.remedy}")
    problems = sum(each.level == PROBLEM for each in findings)
    warnings = sum(each.level == WARNING for each in findings)
    say()
    say(f"{_count(problems, 'problem')}, {_count(warnings, 'warning')}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
