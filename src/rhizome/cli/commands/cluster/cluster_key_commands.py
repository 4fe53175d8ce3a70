"""`rhizome cluster app-token` and `rotate-key`: derive the application token from the cluster key,
and replace the key while the cluster runs (docs/operating/runbook.md)."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated, Final

import typer

from rhizome.broker.access.application_cluster_token import application_token
from rhizome.cli.errors import CliError
from rhizome.cli.http_api.api_client import Api, Row, path
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.output.printer import print_json, say
from rhizome.cli.shared_options import JsonOption, with_options
from rhizome.cluster.link.cluster_key_proof import LinkKeys
from rhizome.server.config.cluster_section import keys_text, read_key_file
from rhizome.server.config.config_fields import SettingError

CHECK: Final = "check"
ADD: Final = "add"
PROMOTE: Final = "promote"
DROP: Final = "drop"
STEPS: Final = (CHECK, ADD, PROMOTE, DROP)
KEY_BYTES: Final = 32

KeyFileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The cluster's key file.")]


def print_token(file: KeyFileArgument, as_json: JsonOption = False) -> None:
    """Print what applications show where cluster.demand_key is on.

    As the client property cluster_token, or in a URI as ?cluster_token=. It is derived from the
    key, which nobody can compute from it.
    """
    token = application_token(_read(file)[0])
    if as_json:
        print_json({"cluster_token": token})
    else:
        say(token)


@with_options
def rotate_key(
    remote: Remote,
    step: Annotated[
        str, typer.Argument(metavar="STEP", help="check, add, promote or drop, in this order.")
    ],
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="The key file to change.")
    ] = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Don't ask the brokers how far they are.")
    ] = False,
) -> None:
    """Replace the cluster key while the cluster runs, in three steps.

    add: the file gets a new key, which is taken but not proved with. promote: the new key comes
    first. drop: the old one goes. After each step bring the file to every broker, which reads it
    within a second, and wait until `check` says that all have it. promote and drop ask that, too.
    """
    if step not in STEPS:
        raise CliError(f'"{step}" is no step; they are {", ".join(STEPS)}')
    if step == CHECK:
        _check(remote.api, remote.as_json)
        return
    if file is None:
        raise CliError(f"give the key file: rhizome cluster rotate-key {step} FILE")
    keys = _read(file)
    changed = _changed(step, keys)
    if step != ADD and not unchecked:
        _check_ready(remote.api, step, keys)
    _write(file, keys_text(changed))
    fingerprints = list(LinkKeys(*changed).fingerprints)
    if remote.as_json:
        print_json({"step": step, "keys": fingerprints})
        return
    say(f"{file} now has {_listed(fingerprints)}")
    say("bring it to every broker, then: rhizome cluster rotate-key check")


# ---- steps --------------------------------------------------------------------------------------


def _changed(step: str, keys: tuple[bytes, ...]) -> list[bytes]:
    if step == ADD:
        if len(keys) > 1:
            raise CliError("the file has two keys: finish that rotation first, or drop the new one")
        return [*keys, secrets.token_urlsafe(KEY_BYTES).encode()]
    if len(keys) != 2:
        raise CliError(f"{step} is for a file with two keys, and this one has {len(keys)}: see add")
    return [keys[1], keys[0]] if step == PROMOTE else [keys[0]]


def _check_ready(api: Api, step: str, keys: tuple[bytes, ...]) -> None:
    """Raises CliError if a broker has not made the previous step."""
    first, second = LinkKeys(*keys).fingerprints
    document = api.row(path("rhizome", "cluster", "keys"))
    behind: list[str] = []
    for name, row in sorted(document["brokers"].items()):
        has = row["keys"]
        if (second not in has) if step == PROMOTE else (has[:1] != [first]):
            behind.append(name)
    what = f"take {second}" if step == PROMOTE else f"prove with {first}"
    if behind:
        raise CliError(
            f"{', '.join(behind)} didn't yet {what}: bring the file there as it is now, and try"
            " again; nothing was changed"
        )
    if document["unreached"]:
        raise CliError(
            f"{', '.join(document['unreached'])} can't be asked whether they {what}: start them, or"
            " bring them the file and give --unchecked; nothing was changed"
        )


def _check(api: Api, as_json: bool) -> None:
    document = api.row(path("rhizome", "cluster", "keys"))
    if as_json:
        print_json(document)
    else:
        for name, row in sorted(document["brokers"].items()):
            say(f"{name.ljust(16)} {_listed(row['keys'])}")
        for name in document["unreached"]:
            say(f"{name.ljust(16)} can't be asked")
        say(_stage(document))
    if document["unreached"] or len(_sets(document)) > 1:
        raise typer.Exit(1)


def _sets(document: Row) -> set[tuple[str, ...]]:
    return {tuple(row["keys"]) for row in document["brokers"].values()}


def _stage(document: Row) -> str:
    sets = _sets(document)
    if len(sets) > 1:
        return "brokers differ: bring the same file to all of them before the next step"
    if any(len(keys) > 1 for keys in sets):
        return "all brokers have the same keys: the next step can be made"
    return "all brokers have one key, the same: no rotation is under way"


def _listed(fingerprints: list[str]) -> str:
    first, *others = fingerprints or ["no key"]
    return f"{first}, and takes {', '.join(others)}" if others else first


# ---- the file -----------------------------------------------------------------------------------


def _read(file: Path) -> tuple[bytes, ...]:
    try:
        return read_key_file(file)
    except SettingError as error:
        text = str(error)
        raise CliError(text if str(file) in text else f"{file} {text}") from None


def _write(file: Path, content: bytes) -> None:
    """Replace the file in one step; its owner and group can read it as before, and nobody else."""
    new = file.with_name(file.name + ".new")
    try:
        before = file.stat()
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            os.fchown(descriptor, before.st_uid, before.st_gid)
            os.fchmod(descriptor, before.st_mode & 0o660)
            out.write(content)
            out.flush()
            os.fsync(descriptor)
        new.replace(file)
    except OSError as error:
        raise CliError(f"{new} can't be written: {error.strerror}") from None
