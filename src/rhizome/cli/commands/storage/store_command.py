"""`rhizome store`: compare the stores of brokers that don't run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rhizome.cli.errors import CliError
from rhizome.cli.output.printer import print_json, print_table, say
from rhizome.cli.shared_options import JsonOption

if TYPE_CHECKING:
    from rhizome.server.offline_stores import OfflineStore, StoredCopy

app = typer.Typer(no_args_is_help=True, help="Compare the stores of brokers that don't run.")

STORE_COLUMNS: Final = ("store", "broker", "cluster", "term", "last entry", "committed", "")
COPY_COLUMNS: Final = ("group", "store", "broker", "epoch", "record", "messages", "was", "")


@app.callback()
def _family() -> None:
    """Compare the stores of brokers that don't run."""


@app.command("best")
def best(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Data directories of brokers.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Say which of several stores has most of the cluster state and of each group.

    For when a whole cluster has crashed and not every broker can be started again: start those
    that this names. Nothing is written and nothing is locked. The exit code is 1 if a store is
    damaged.
    """
    from rhizome.server.offline_stores import read_store

    for directory in directories:
        if not (directory / "store.json").is_file():
            raise CliError(f"{directory} is no broker's store; give what `serve --data` had")
    stores = [read_store(directory) for directory in directories]
    if as_json:
        print_json(document_of(stores))
    else:
        _print_stores(stores)
        say()
        _print_groups(stores)
    if any(store.faults for store in stores):
        raise typer.Exit(1)


def best_state(stores: list[OfflineStore]) -> OfflineStore:
    """The store whose state log is the most complete."""
    return max(stores, key=lambda each: each.state_rank())


def copies_by_group(
    stores: list[OfflineStore],
) -> dict[int, list[tuple[OfflineStore, StoredCopy]]]:
    """The copies of each group, the best first; those that must not be chosen last."""
    found: dict[int, list[tuple[OfflineStore, StoredCopy]]] = {}
    for store in stores:
        for number, copy in store.copies.items():
            found.setdefault(number, []).append((store, copy))
    for copies in found.values():
        copies.sort(key=lambda each: (each[1].whole, each[1].epoch, each[1].index), reverse=True)
    return dict(sorted(found.items()))


def was(stores: list[OfflineStore], store: OfflineStore, group: int) -> str:
    """The role of a store's broker in a group, according to the best state."""
    known = best_state(stores).groups.get(group)
    if known is None:
        return "deleted"
    if store.broker and known.home == store.broker:
        return "home"
    member = known.member(store.broker)
    return "-" if member is None else f"in sync, {member.copy}"


def document_of(stores: list[OfflineStore]) -> dict[str, Any]:
    chosen = best_state(stores)
    return {
        "state": {"store": str(chosen.directory), "broker": chosen.broker},
        "stores": [
            {
                "store": str(each.directory),
                "broker": each.broker,
                "cluster": each.cluster_uuid,
                "term": each.term,
                "last": each.last,
                "committed": each.committed,
                "faults": list(each.faults),
            }
            for each in stores
        ],
        "groups": [
            {
                "group": number,
                "queues": chosen.queues.get(number, 0),
                "best": str(copies[0][0].directory) if copies[0][1].whole else None,
                "copies": [
                    {
                        "store": str(store.directory),
                        "broker": store.broker,
                        "epoch": copy.epoch,
                        "index": copy.index,
                        "messages": copy.messages,
                        "whole": copy.whole,
                        "was": was(stores, store, number),
                    }
                    for store, copy in copies
                ],
            }
            for number, copies in copies_by_group(stores).items()
        ],
    }


def _print_stores(stores: list[OfflineStore]) -> None:
    chosen = best_state(stores)
    rows = [
        [
            each.directory,
            each.broker or None,
            each.cluster_uuid[:8] or None,
            each.term,
            each.last,
            each.committed,
            "<- best cluster state" if each is chosen else "",
        ]
        for each in stores
    ]
    print_table(STORE_COLUMNS, rows, "no stores")
    uuids = dict.fromkeys(each.cluster_uuid for each in stores if each.cluster_uuid)
    if len(uuids) > 1:
        say("WARNING: these stores are of different clusters, and never join each other")
    for store in stores:
        for fault in store.faults:
            say(f"WARNING: {store.directory}: {fault}")


def _print_groups(stores: list[OfflineStore]) -> None:
    rows: list[list[object]] = []
    for number, copies in copies_by_group(stores).items():
        for place, (store, copy) in enumerate(copies):
            note = "<- best" if place == 0 and copy.whole else ""
            if not copy.whole:
                note = "not whole: it was being installed"
            rows.append(
                [
                    number,
                    store.directory,
                    store.broker or None,
                    copy.epoch,
                    copy.index,
                    copy.messages,
                    was(stores, store, number),
                    note,
                ]
            )
    print_table(COPY_COLUMNS, rows, "no groups")
