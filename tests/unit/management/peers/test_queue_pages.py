"""Pages of queues in their plain order are cut from what is in order already."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from tests.unit.management.conftest import Api, Core
from tests.unit.management.peers.test_cluster_wide_queries import (
    FakeOthers,
    names,
    other,
    others,
    share,
)

__all__ = ["other", "others"]
PAGE_SIZE = 4


def pages(api: Api, query: str) -> list[object]:
    """The names on all pages, and what each page says of the whole."""
    found: list[object] = []
    number = 1
    while True:
        asked = f"page={number}&page_size={PAGE_SIZE}&{query}"
        page = api.get("queues", query=asked).json
        found += names(page["items"])
        assert page["item_count"] == len(page["items"])
        if number == page["page_count"]:
            assert page["filtered_count"] == page["total_count"] == len(found)
            return found
        number += 1


def check_pages(api: Api) -> None:
    listed = names(api.get("queues").json)
    assert pages(api, "") == listed
    assert pages(api, "sort_reverse=true") == listed[::-1]
    for query in ("sort=name", "sort=name&sort_reverse=true"):
        assert pages(api, query) == names(api.get("queues", query=query).json)


def test_pages_have_what_the_list_has_whatever_has_changed(
    api: Api, core: Core, other: Core, others: FakeOthers
) -> None:
    api.put("vhosts", "later")
    for number in (11, 3, 7, 5, 1, 9):
        api.put("queues", "/", f"q{number}")
    for number in (2, 8, 4):
        share(core, other, f"q{number}")
    api.put("queues", "later", "a")
    api.put("queues", "later", "b")
    check_pages(api)
    api.put("queues", "/", "q6")
    check_pages(api)
    api.delete("queues", "/", "q3")
    check_pages(api)
    # A home that comes here begins an epoch of the routes.
    core.queue("q8").away = None
    other.broker.state.vhosts["/"].destinations.pop("q8")
    for each in (core, other):
        each.broker.state.vhosts["/"].router.epoch += 1
    check_pages(api)
    api.delete("vhosts", "later")
    check_pages(api)


def test_pages_show_the_queues_of_a_silent_home(
    api: Api, core: Core, other: Core, others: FakeOthers
) -> None:
    api.put("queues", "/", "here")
    share(core, other, "there")
    others.silent = True
    page = api.get("queues", query="page=1").json
    assert [(row["name"], row["state"]) for row in page["items"]] == [
        ("here", "running"),
        ("there", "down"),
    ]


def lines_of(work: Callable[[], object]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_a_page_costs_the_same_beside_ten_times_as_many_queues(
    api: Api, core: Core, other: Core, others: FakeOthers
) -> None:
    def cost() -> int:
        def page() -> None:
            found = api.get("queues", query=f"page=2&page_size={PAGE_SIZE}&sort=name").json
            assert len(found["items"]) == PAGE_SIZE

        page()
        return min(lines_of(page) for _ in range(3))

    few = 12
    for number in range(few):
        api.put("queues", "/", f"a{number}")
    before = cost()
    more = 9 * few
    for number in range(more):
        api.put("queues", "/", f"b{number}")
    assert (cost() - before) / more < 0.5
