"""The console in a browser, on a cluster of three brokers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pika
import pytest

from rhizome.testing.cluster_process import ClusterProcess

from .browser import DOWN, ENTER, ESCAPE, wait_until
from .conftest import Console

Unique = Callable[[str], str]
PAGES = ("", "queues", "connections", "exchanges", "policies", "users", "stalls", "pipelines")


def publish_in_browser(console: Console, queue: str, payload: str, headers: str = "") -> None:
    browser = console.browser
    before = console.api("GET", "queues", "/", queue)["messages"]
    if browser.count("form.publish") == 0:
        browser.click("button", "Publish")
    browser.fill("#field-payload", payload)
    browser.fill("#field-headers", headers)
    browser.click("button", "Publish to this queue")
    browser.wait_for_text("Published.", "#notes")
    wait_until(
        lambda: console.api("GET", "queues", "/", queue)["messages"] == before + 1, "the message"
    )


# ---- logging in ---------------------------------------------------------------------------------


def test_a_wrong_password_is_told_and_nothing_is_shown(console: Console) -> None:
    browser = console.browser
    browser.click("button.user")
    browser.fill("#user", "guest")
    browser.fill("#password", "wrong")
    browser.click("button[type=submit]")
    browser.wait_for_text("That is not right", ".failure")
    assert browser.count("nav.side") == 0
    assert any("401" in text for text in browser.complaints())


SECRET = "a-typed-secret-5c1d"

WHERE_THE_SECRET_IS = """
    const secret = arguments[0];
    const found = [];
    const look = (where, text) => { if (String(text ?? "").includes(secret)) found.push(where); };
    for (const each of document.querySelectorAll("input, textarea, select")) {
        look(`${each.name || each.id} (${each.type})`, each.value);
    }
    look("the document", document.documentElement.outerHTML);
    look("the text", document.body.innerText);
    look("the address", location.href);
    look("the title", document.title);
    look("the history", JSON.stringify(history.state));
    look("cookies", document.cookie);
    look("local storage", JSON.stringify(Object.entries(localStorage)));
    look("session storage", JSON.stringify(Object.entries(sessionStorage)));
    look("requested", performance.getEntries().map((each) => each.name).join(" "));
    return found;
"""


def test_a_failed_login_leaves_the_password_nowhere(console: Console) -> None:
    """When the form is drawn again with a line more, what was typed stays in its fields."""
    browser = console.browser
    browser.click("button.user")
    for _ in range(3):
        browser.fill("#user", "guest")
        browser.fill("#password", SECRET)
        assert browser.run(WHERE_THE_SECRET_IS, SECRET) == ["password (password)"]
        browser.click("button[type=submit]")
        browser.wait_for_text("That is not right", ".failure")
        browser.wait_for_text("Log in", "button[type=submit]")
        # Both may be those of the last attempt, until the browser has taken the click.
        wait_until(lambda: browser.run(WHERE_THE_SECRET_IS, SECRET) == [], "the password to go")
        assert browser.run("return document.getElementById('user').value") == "guest"
        assert browser.run("return document.getElementById('password').type") == "password"
    assert browser.complaints()


def test_the_password_of_a_new_user_is_in_its_field_alone(console: Console) -> None:
    browser = console.browser
    console.go("users")
    browser.find("main h1", "Users")
    browser.click("button", "New user")
    browser.fill("#field-name", "n" * 300)
    browser.fill("#field-password", SECRET)
    browser.click("dialog button[type=submit]")
    browser.find("dialog .failure")
    assert browser.run(WHERE_THE_SECRET_IS, SECRET) == ["password (password)"]
    browser.press(ESCAPE)
    wait_until(lambda: browser.count("dialog") == 0, "the dialog to be closed")
    assert browser.run(WHERE_THE_SECRET_IS, SECRET) == []
    browser.complaints()


def test_a_field_never_becomes_another_one(console: Console) -> None:
    """Whatever a page draws next, what was typed into a control is not shown in another."""
    script = """
        const done = arguments[arguments.length - 1];
        import("/console/dom.js").then(({ h, render }) => {
            const place = document.createElement("div");
            const field = (name, type) => h("div", {}, h("input", { name, type }));
            const fields = () => [field("user", "text"), field("password", "password")];
            render(place, fields());
            place.querySelector("[name=password]").value = arguments[0];
            render(place, h("p", {}, "one more"), fields());
            const inputs = [...place.querySelectorAll("input")];
            done(inputs.map((each) => [each.name, each.type, each.value]));
        });
    """
    for name, kind, value in console.browser.run_async(script, SECRET):
        assert (name, kind) == ("password", "password") or SECRET not in value


def test_a_login_survives_a_reload_and_ends_with_the_user(console: Console) -> None:
    browser = console.browser
    cookie = next(each for each in browser.cookies() if each["name"].startswith("rhizome_"))
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert browser.run("return document.cookie") == ""
    browser.reload()
    browser.find("nav.side")
    browser.click("button.user")
    browser.find("#password")
    browser.reload()
    browser.find("#password")


def test_who_was_logged_out_elsewhere_is_told_to_log_in_again(console: Console) -> None:
    browser = console.browser
    console.go("queues")
    browser.find("main h1", "Queues")
    console.api("PUT", "users", "op", password="first", tags="monitoring")
    browser.click("button.user")
    console.log_in("op", "first")
    assert "Users" not in browser.texts("nav.side a")
    console.api("PUT", "users", "op", password="second", tags="monitoring")
    browser.wait_for_text("log in again", ".login .warning")
    assert browser.complaints()
    console.api("DELETE", "users", "op")


def test_who_may_enter_no_virtual_host_is_told_so(console: Console, unique: Unique) -> None:
    browser, queue = console.browser, unique("queue")
    console.api("PUT", "queues", "/", queue, durable=True)
    console.api("PUT", "users", "guest2", password="secret", tags="management")
    browser.click("button.user")
    console.log_in("guest2", "secret")
    browser.find("g.broker.root")
    console.go("queues")
    browser.wait_for_text("may enter no virtual host", "p.empty")
    assert "New queue" not in browser.texts("button")
    console.api("PUT", "permissions", "/", "guest2", configure=".*", write=".*", read=".*")
    browser.wait_for_text(queue, "table.rows")
    browser.click("button.user")
    console.log_in()
    console.api("DELETE", "users", "guest2")
    console.api("DELETE", "queues", "/", queue)


# ---- the cluster --------------------------------------------------------------------------------


def test_the_cluster_is_drawn_as_it_is(console: Console) -> None:
    browser = console.browser
    document = console.api("GET", "rhizome", "cluster")
    wait_until(lambda: browser.count("line.link.up") == 3, "three links")
    assert sorted(browser.texts("g.broker text.name")) == ["b1", "b2", "b3"]
    assert browser.texts("g.broker.root text.name") == [document["cluster"]["root"]]
    assert browser.count(".chip.home") == len(document["groups"])
    assert browser.count(".takeover path") == 3
    browser.wait_for_text("all well", ".pill")
    browser.click("g.broker", "b2")
    successor = document["failover_map"]["b2"][0]["broker"]
    browser.wait_for_text(f"{successor} takes over", ".takeover")
    panel = browser.text(browser.find(".broker-panel"))
    assert "machine-b2" in panel
    assert successor in panel


def test_numbers_of_groups_fit_their_chips(console: Console, unique: Unique) -> None:
    browser, stream = console.browser, unique("stream")
    console.api("PUT", "rhizome", "streams", "/", stream)
    try:
        numbers = lambda: browser.texts(".chip text")  # noqa: E731
        wait_until(lambda: any(len(each) == 5 for each in numbers()), "the stream's group")
        assert (
            browser.run(
                """return [...document.querySelectorAll(".chip")].filter((chip) =>
                 chip.querySelector("text").getBBox().width
                   > chip.querySelector("rect").getBBox().width).length"""
            )
            == 0
        )
    finally:
        console.api("DELETE", "rhizome", "streams", "/", stream)
        wait_until(lambda: max(map(len, numbers())) < 5, "the stream to go")


def test_rates_and_charts_move_while_messages_flow(console: Console, unique: Unique) -> None:
    browser = console.browser
    name = unique("queue")
    console.api("PUT", "queues", "/", name, durable=True)
    for number in range(30):
        console.publish(name, f"message {number}")
    wait_until(lambda: browser.texts(".tile b")[2] != "0", "ready messages in a tile")
    wait_until(lambda: browser.count(".plot polyline.line") >= 5, "lines in both charts")


def test_a_drain_is_shown_before_it_is_made(console: Console) -> None:
    browser = console.browser
    browser.click("g.broker", "b3")
    browser.click(".broker-panel button", "Drain")
    browser.find("dialog")
    browser.press(ESCAPE)
    assert not broker_row(console, "b3")["draining"]
    order(console, "Drain")
    browser.find("g.broker.is-draining", "b3")
    wait_until(lambda: broker_row(console, "b3")["homes"] == 0, "b3 to be home of nothing", 60)
    order(console, "Undrain")
    wait_until(lambda: browser.count("g.broker.is-draining") == 0, "b3 to be itself again")


def order(console: Console, action: str) -> None:
    """Have b3 drained or undrained. On a busy machine an election may come in between, and what was
    shown is refused: then look again."""
    browser = console.browser
    wanted = action == "Drain"

    def ordered() -> bool:
        browser.click(".broker-panel button", action)
        browser.find("dialog")
        if browser.count("dialog .steps li"):
            browser.click("dialog button", action)
            browser.find("#notes .note")
        else:
            browser.press(ESCAPE)
        return bool(broker_row(console, "b3")["draining"] == wanted)

    wait_until(ordered, f"b3 to take the order {action!r}", 60)


def broker_row(console: Console, name: str) -> dict[str, Any]:
    brokers = console.api("GET", "rhizome", "cluster")["brokers"]
    return next(broker for broker in brokers if broker["name"] == name)


# ---- queues and messages ------------------------------------------------------------------------


@pytest.mark.parametrize("at_home", [True, False])
def test_publish_and_browse_leave_the_queue_as_it_is(
    console: Console, cluster: ClusterProcess, unique: Unique, at_home: bool
) -> None:
    """In the console of the queue's home, and in that of another broker."""
    name = unique("queue")
    console.api("PUT", "queues", "/", name, durable=True)
    home = console.api("GET", "queues", "/", name)["node"]
    there = next(each for each in cluster.brokers if (each == home) == at_home)
    console = Console(console.browser, cluster.brokers[there])
    console.open()
    console.log_in_if_necessary()
    browser = console.browser
    console.queue_page(name)
    publish_in_browser(console, name, '{"order": 17}', '{"source": "console"}')
    publish_in_browser(console, name, "second")
    browser.click("button", "Browse")
    browser.wait_for_text('"order": 17', ".browsed li:first-child .payload")
    browser.wait_for_text("second", ".browsed li:nth-child(2) .payload")
    assert "header source" in browser.texts(".browsed li:first-child dl")[0]
    browser.fill("form.search input", "headers.source is null and body like '%eco%'")
    browser.click("form.search button", "Search")
    browser.wait_for_text("second", ".browsed li:first-child .payload")
    assert browser.count(".browsed li") == 1
    browser.fill("form.search input", "body is good")
    browser.click("form.search button", "Search")
    browser.wait_for_text("character 9 of the condition", ".messages .failure")
    assert browser.complaints()
    row = console.api("GET", "queues", "/", name)
    assert (row["messages_ready"], row["messages_unacknowledged"]) == (2, 0)
    got = console.api(
        "POST", "queues", "/", name, "get", count=5, ackmode="ack_requeue_false", encoding="auto"
    )
    assert [(each["payload"], each["redelivered"]) for each in got] == [
        ('{"order": 17}', False),
        ("second", False),
    ]


def test_a_queue_is_made_filtered_purged_and_deleted(console: Console, unique: Unique) -> None:
    browser = console.browser
    name = unique("made")
    console.go("queues")
    browser.click("button", "New queue")
    browser.fill("dialog #field-name", name)
    browser.fill("dialog #field-arguments", '{"x-max-length": oops}')
    browser.click("dialog button[type=submit]")
    browser.wait_for_text("Arguments", "dialog .failure")
    browser.fill("dialog #field-arguments", '{"x-max-length": 7}')
    browser.click("dialog button[type=submit]")
    browser.find("h1.name", name)
    assert console.api("GET", "queues", "/", name)["arguments"] == {"x-max-length": 7}

    console.publish(name, "x")
    browser.click("button", "Purge")
    browser.click("dialog button", "Cancel")
    assert console.api("GET", "queues", "/", name)["messages"] == 1
    browser.click("button", "Purge")
    browser.click("dialog button", "Purge")
    browser.wait_for_text("The queue is empty", "#notes")
    assert console.api("GET", "queues", "/", name)["messages"] == 0

    console.go("queues")
    browser.fill(".filter", name)
    wait_until(lambda: browser.texts("tbody th a") == [name], "the filtered list")
    browser.click("tbody th a", name)
    browser.click("button.danger", "Delete")
    browser.click("dialog button", "Delete")
    browser.find("main h1", "Queues")
    assert console.api("GET", "queues", "/", name) is None


def test_dead_letters_are_shown_with_their_cause_and_moved_back(
    console: Console, unique: Unique
) -> None:
    browser = console.browser
    work, dead = unique("work"), unique("dead")
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    console.api("PUT", "queues", "/", dead, durable=True)
    console.api("PUT", "queues", "/", work, durable=True, arguments=letters)
    console.publish(work, "spoilt")
    console.api("POST", "queues", "/", work, "get", count=1, ackmode="reject_requeue_false")
    depth = lambda queue: console.api("GET", "queues", "/", queue)["messages"]  # noqa: E731
    wait_until(lambda: depth(dead) == 1, "the dead letter")

    console.queue_page(work)
    facts = lambda: browser.texts("dl.facts dd")  # noqa: E731
    wait_until(lambda: any(f"with key {dead}" in each for each in facts()), "where letters go")
    console.queue_page(dead)
    titles = lambda: browser.texts(".chart-title")  # noqa: E731
    wait_until(lambda: "Age of the oldest" in titles(), "the charts")
    browser.click("button", "Browse")
    browser.wait_for_text(f"1 time in {work}: rejected", ".browsed li:first-child dl")
    browser.click("button", "Move")
    browser.fill("dialog #field-to", "no-such-queue")
    browser.click("dialog button[type=submit]")
    browser.wait_for_text("there is no queue", "dialog .failure")
    assert browser.complaints()
    assert depth(dead) == 1
    browser.fill("dialog #field-to", work)
    browser.click("dialog button[type=submit]")
    browser.wait_for_text("1 message was moved, 0 left", "#notes")
    assert (depth(dead), depth(work)) == (0, 1)


def test_groups_that_were_moved_go_back_where_they_came_from(
    console: Console, unique: Unique
) -> None:
    browser = console.browser
    console.go("")

    def group(number: int) -> dict[str, Any]:
        found = console.api("GET", "rhizome", "groups")
        return next(each for each in found if each["id"] == number)

    moved = console.api("GET", "rhizome", "groups")[0]
    number, origin = moved["id"], moved["origin"]
    queue = unique("moved")
    console.api("PUT", "queues", "/", queue, durable=True, arguments={"x-group": origin})
    console.publish(queue, "old", delivery_mode=2)
    to = next(each for each in ("b1", "b2", "b3") if each != moved["home"])

    def astray() -> bool:
        target = ("rhizome", "groups", str(number), "move")
        if group(number)["home"] == to:
            return True
        with suppress(AssertionError):  # it is under way, or something has changed: look again
            shown = console.api("POST", *target, broker=to, preview=True)
            console.api("POST", *target, broker=to, basis=shown["basis"])
        return False

    if moved["home"] == origin:
        wait_until(astray, f"group {number} to be at {to}", 60)

        def is_shown() -> bool:
            return [str(number), to] in [each.split()[:2] for each in browser.texts("tr")]

        wait_until(is_shown, "the page to show it", 60)
    browser.click("button", "Rebalance")
    browser.wait_for_text(f"to {origin}", "dialog")
    browser.click("dialog button", "Rebalance")
    wait_until(lambda: group(number)["home"] == origin, f"group {number} to be back", 60)
    console.queue_page(queue)  # the message is on disk there, and is as old as it is all the same
    age = lambda: [each for each in browser.texts(".tile") if "oldest waits" in each]  # noqa: E731
    wait_until(
        lambda: any(character.isdigit() for each in age() for character in each),
        "the age of what is next",
    )


def test_connections_of_all_brokers_are_listed_and_can_be_closed(
    console: Console, cluster: ClusterProcess, unique: Unique
) -> None:
    browser = console.browser
    name = unique("worker")
    parameters = pika.URLParameters(cluster.brokers["b3"].url)
    parameters.client_properties = {"connection_name": name}
    connection = pika.BlockingConnection(parameters)
    connection.channel()
    console.go("connections")
    browser.click("button.link", name)
    browser.wait_for_text("plain", "dialog table")
    browser.click("dialog button", "Close connection")
    browser.fill("dialog #field-reason", "time to go")
    browser.click("dialog button[type=submit]")
    browser.wait_for_no_text(name, "tbody")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="time to go"):
        connection.process_data_events(time_limit=10)


def test_policies_exchanges_and_users_are_made_in_the_browser(
    console: Console, unique: Unique
) -> None:
    browser = console.browser
    policy, exchange, user, queue = (unique(word) for word in ("p", "e", "u", "q"))
    console.go("policies")
    browser.click("button", "New policy")
    browser.fill("#field-name", policy)
    browser.fill("#field-pattern", "^never$")
    browser.fill("#field-definition", '{"max-length": 5}')
    browser.click("dialog button[type=submit]")
    browser.wait_for_text(policy, "tbody")
    assert console.api("GET", "policies", "/", policy)["definition"] == {"max-length": 5}
    console.api("DELETE", "policies", "/", policy)

    console.api("PUT", "queues", "/", queue)
    console.go("exchanges")
    browser.click("button", "New exchange")
    browser.fill("#field-name", exchange)
    browser.click("dialog button[type=submit]")
    browser.find("h1.name", exchange)
    browser.click("button", "Bind")
    browser.fill("dialog #field-destination", queue)
    browser.fill("dialog #field-routing_key", "a.*")
    browser.click("dialog button[type=submit]")
    browser.wait_for_text("a.*", "tbody")
    browser.fill("#field-routing_key", "a.b")
    browser.fill("#field-payload", "hello")
    browser.click("form.publish button[type=submit]")
    browser.wait_for_text("Published.", "#notes")
    assert console.api("GET", "queues", "/", queue)["messages"] == 1

    console.go("users")
    browser.click("button", "New user")
    browser.fill("#field-name", user)
    browser.fill("#field-password", "secret")
    browser.click("dialog button[type=submit]")
    browser.wait_for_text(user, "tbody")
    assert console.api("GET", "users", user)["tags"] == []
    console.api("DELETE", "users", user)


# ---- pipelines ----------------------------------------------------------------------------------


def flow_report(name: str, state: str = "running", **figures: Any) -> dict[str, Any]:
    """A flow, as a service of pipelines reports it."""
    return {"name": name, "state": state, "lag": {}, **figures}


def report(console: Console, name: str, *flows: dict[str, Any], state: str = "running") -> None:
    """What `rhizome pipeline run` sends; the other brokers show it, too."""
    parts = ("rhizome", "pipelines", "/", name, "report")
    console.api("POST", *parts, state=state, host="spark-1", flows=list(flows))


def test_pipelines_are_shown_as_their_services_report(
    console: Console, cluster: ClusterProcess, unique: Unique
) -> None:
    browser, name = console.browser, unique("orders")
    console.go("pipelines")
    browser.find("main h1", "Pipelines")
    elsewhere = Console(browser, cluster.brokers["b2"])
    lag = {"small": 7, "large": 1200}
    archive = flow_report(
        "archive", batch=412, rows=1_204_003, rows_per_second=812.4, batch_ms=1900, lag=lag,
        lag_total=1207,
    )  # fmt: skip
    trouble = {"error": f"ValueError: {EVIL}\nmore of it", "error_ms": 1_795_000_000_000}
    scored = flow_report("scored", "halted", restarts=2, set_aside=3, **trouble)
    report(elsewhere, name, archive, scored)
    browser.wait_for_text(name, "main h2")
    browser.wait_for_text("On spark-1, in /, reported", ".panel p")
    browser.wait_for_text("by guest to b2", ".panel p")
    rows = {cells[0]: cells[1:] for cells in pipeline_rows(console, name)}
    assert rows["archive"][:2] == ["running", "412"]
    assert rows["archive"][5] == "1.9 s"
    assert rows["archive"][4].split("\n")[-1] == "large: 1200"  # the one furthest behind
    assert rows["scored"][6:8] == ["2", "3"]
    assert rows["scored"][8].endswith(f"ValueError: {EVIL}")
    assert browser.texts(".panel .tag.bad") == ["halted"]
    assert browser.texts(".panel .tag.warn") == ["3"]
    assert browser.run("return document.querySelector('.panel [title*=small]').title") == (
        "large: 1200\nsmall: 7"
    )
    assert browser.run("return window.hacked") is None

    # The next report is drawn without anybody asking for it.
    report(elsewhere, name, {**archive, "state": "stopped", "batch": 413}, state="stopped")
    wait_until(
        lambda: (
            [row[:3] for row in pipeline_rows(console, name)] == [["archive", "stopped", "413"]]
        ),
        "the next report",
    )
    browser.wait_for_no_text("scored", ".panel")


def pipeline_rows(console: Console, service: str) -> list[list[str]]:
    """The cells of a service's table of flows."""
    script = """
        const panel = [...document.querySelectorAll(".panel")]
            .find((each) => each.querySelector("h2").textContent === arguments[0]);
        return [...(panel?.querySelectorAll("tbody tr") ?? [])]
            .map((row) => [...row.cells].map((cell) => cell.innerText.trim()));
    """
    found: list[list[str]] = console.browser.run(script, service)
    return found


def test_the_page_of_pipelines_is_readable_anywhere_and_for_its_vhost_alone(
    console: Console, unique: Unique
) -> None:
    browser, name = console.browser, EVIL + unique("p")
    busy = flow_report("f" * 100, "waiting", error="e" * 500, error_ms=1, set_aside=1)
    report(console, name, busy, flow_report(EVIL, lag={EVIL: 3}, lag_total=3))
    report(console, unique("gone"), flow_report("x", "halted"), state="stopping")
    console.go("pipelines")
    browser.wait_for_text(name, "main h2")
    for theme in ("light", "dark"):
        browser.run("document.documentElement.dataset.theme = arguments[0]", theme)
        assert browser.run(CONTRAST) == []
    browser.resize(360, 740)
    assert browser.run("return document.documentElement.scrollWidth") <= 360
    assert browser.run("return document.querySelectorAll('main img, main script').length") == 0
    assert browser.run("return window.hacked") is None

    stranger = unique("stranger")
    console.api("PUT", "users", stranger, password="secret-of-a-stranger", tags="management")
    console.api("PUT", "vhosts", stranger)
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    console.api("PUT", "permissions", stranger, stranger, **everything)
    browser.resize(1280, 900)
    browser.click("button.user")
    console.log_in(stranger, "secret-of-a-stranger")
    console.go("pipelines")
    browser.wait_for_text("No service reports here.", "main .empty")
    browser.click("button.user")
    browser.find("#password")
    console.api("DELETE", "users", stranger)
    console.api("DELETE", "vhosts", stranger)


# ---- what names and payloads must not do --------------------------------------------------------

EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>"\'&lt;{{7*7}}'


def test_markup_in_names_and_payloads_is_text(
    console: Console, cluster: ClusterProcess, unique: Unique
) -> None:
    browser = console.browser
    evil = EVIL + unique("x")[-12:]
    console.api("PUT", "queues", "/", evil, durable=True, arguments={"x-evil": EVIL})
    console.api("PUT", "exchanges", "/", evil, type="topic")
    console.api("POST", "bindings", "/", "e", evil, "q", evil, routing_key=EVIL)
    console.api("PUT", "policies", "/", evil, pattern="^nothing$", definition={"max-length": 1})
    console.api("PUT", "users", evil, password="x", tags="management," + EVIL)
    console.publish(evil, EVIL, headers={EVIL: EVIL}, content_type=EVIL, message_id=EVIL)
    console.publish(evil, json.dumps({"a": EVIL}))
    parameters = pika.URLParameters(cluster.brokers["b2"].url)
    parameters.client_properties = {"connection_name": evil, "product": EVIL}
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1)
    for page in ("queues", "exchanges", "policies", "users", "connections"):
        console.go(page)
        browser.wait_for_text(evil, "tbody")
    browser.click("button.link", evil)
    browser.wait_for_text(EVIL, "dialog dd")
    browser.press(ESCAPE)
    console.queue_page(evil)
    browser.wait_for_text(EVIL, "code")
    browser.click("button", "Browse")
    browser.wait_for_text(EVIL, ".browsed .payload")
    browser.wait_for_text(EVIL, ".browsed dd")
    assert browser.run("return window.hacked") is None
    assert browser.run("return document.querySelectorAll('main img, main script').length") == 0
    connection.close()
    for parts in (["policies", "/", evil], ["users", evil], ["exchanges", "/", evil]):
        console.api("DELETE", *parts)
    console.api("DELETE", "queues", "/", evil)


ODD = {"toString": "x", "valueOf": "x"}
"""No text can be made of it by JavaScript itself."""


def test_values_of_odd_types_break_no_page(
    console: Console, cluster: ClusterProcess, unique: Unique
) -> None:
    browser = console.browser
    queue = unique("odd")
    console.api("PUT", "queues", "/", queue, durable=True)
    parameters = pika.URLParameters(cluster.brokers["b1"].url)
    parameters.client_properties = {"connection_name": queue, "product": ODD, "version": [None]}
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    for number, deaths in enumerate(([None], [{"count": ODD, "queue": ODD, "reason": ODD}], [1])):
        properties = pika.BasicProperties(headers={"x-death": deaths, "odd": ODD})
        channel.basic_publish("", queue, f"odd {number}".encode(), properties)
    channel.basic_publish("", queue, b"[" * 4_000 + b"]" * 4_000)
    wait_until(lambda: console.api("GET", "queues", "/", queue)["messages"] == 4, "the messages")
    console.go("connections")
    browser.wait_for_text(queue, "tbody")
    browser.click("button.link", queue)
    browser.wait_for_text("toString", "dialog dd")
    browser.press(ESCAPE)
    console.queue_page(queue)
    browser.click("button", "Browse")
    for number in range(3):
        browser.wait_for_text(f"odd {number}", ".browsed .payload")
    shown = "return document.querySelector('.browsed').textContent.length"
    assert browser.run(shown) < 100_000, "nesting makes a message much longer"
    browser.click("button", "Move")
    browser.find("dialog #field-to")
    browser.press(ESCAPE)
    connection.close()
    console.api("DELETE", "queues", "/", queue)


def test_the_browser_runs_nothing_that_is_not_the_consoles_own(console: Console) -> None:
    browser = console.browser
    browser.run(
        "const script = document.createElement('script');"
        "script.textContent = 'window.hacked = 1';"
        "document.body.append(script);"
        "const image = document.createElement('img');"
        "image.setAttribute('onerror', 'window.hacked = 2');"
        "image.src = '/nothing';"
        "document.body.append(image);"
    )
    complaints: list[str] = []

    def has_refused() -> bool:
        complaints.extend(browser.complaints())
        return len(complaints) > 1 and any("/nothing" in each for each in complaints)

    wait_until(has_refused, "the browser to refuse")
    assert browser.run("return window.hacked") is None
    # What it still has to say of this page is no fault.
    browser.open("about:blank")
    browser.complaints()


class OtherSite(BaseHTTPRequestHandler):
    """A page of somebody else on this machine."""

    def do_GET(self) -> None:
        body = b"<!doctype html><title>other</title><p>other"
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass


@pytest.fixture
def other_site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), OtherSite)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_another_page_can_not_use_the_login(
    console: Console, other_site: str, unique: Unique
) -> None:
    """It is of the same host, so the browser sends the cookie; the guard is what it lacks."""
    browser = console.browser
    name = unique("csrf")
    browser.open(other_site)
    target = f"{console.url}api/definitions"
    script = """
        const [target, body, done] = arguments;
        const send = (kind) => fetch(target, {
            method: "POST", mode: "no-cors", credentials: "include",
            headers: {"content-type": kind}, body,
        }).catch(() => null);
        Promise.all([send("text/plain"), send("application/x-www-form-urlencoded")])
            .then(() => fetch(target, {credentials: "include"}).then((r) => r.text(), () => "no"))
            .then(done);
    """
    body = json.dumps({"queues": [{"vhost": "/", "name": name, "durable": True}]})
    assert browser.run_async(script, target, body) == "no", "and it can't read anything"
    assert console.api("GET", "queues", "/", name) is None
    browser.complaints()


# ---- for everybody ------------------------------------------------------------------------------


def test_everything_can_be_reached_with_the_keyboard(console: Console, unique: Unique) -> None:
    browser = console.browser
    first, second = unique("kq-a"), unique("kq-b")
    for name in (first, second):
        console.api("PUT", "queues", "/", name)
    browser.press("gq")
    browser.find("main h1", "Queues")
    browser.press("/")
    browser.press("kq-")
    wait_until(lambda: browser.texts("tbody th a") == [first, second], "the filtered list")
    browser.run("document.querySelector('tbody a').focus()")
    browser.press(DOWN)
    browser.press(ENTER)
    browser.find("h1.name", second)
    browser.press("?")
    browser.find("dialog dl.keys")
    browser.press(ESCAPE)
    wait_until(lambda: browser.count("dialog") == 0, "the dialog to close")
    browser.press("gc")
    browser.find("svg.cluster")
    browser.run("document.querySelector('g.broker').focus()")
    browser.press(ENTER)
    browser.find(".broker-panel")


CONTRAST = """
    const parse = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
    const light = (rgb) => {
        const [r, g, b] = rgb.map((c) => (c /= 255) <= 0.03928 ? c / 12.92
            : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (element) => {
        for (let each = element; each; each = each.parentElement) {
            const colour = getComputedStyle(each).backgroundColor;
            if (!/, 0\\)$|transparent/.test(colour)) return parse(colour);
        }
        return [255, 255, 255];
    };
    const poor = [];
    for (const element of document.querySelectorAll("main *, nav *, header *")) {
        if (element.closest("svg") || element.children.length) continue;
        if (!element.innerText.trim()) continue;
        const [a, b] = [parse(getComputedStyle(element).color), behind(element)].map(light);
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) poor.push(`${element.className} ${element.innerText}: ${ratio}`);
    }
    return poor;
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_is_readable_in_light_and_dark(console: Console, theme: str) -> None:
    browser = console.browser
    browser.find("svg.cluster")
    for page in ("", "queues", "users", "policies"):
        console.go(page)
        browser.find("main h1")
        browser.run("document.documentElement.dataset.theme = arguments[0]", theme)
        assert browser.run(CONTRAST) == []


def test_it_fits_on_a_phone(console: Console) -> None:
    browser = console.browser
    browser.resize(360, 740)
    for page in PAGES:
        console.go(page)
        browser.find("main h1")
        width = browser.run("return document.documentElement.scrollWidth")
        assert width <= 360, f"page {page!r} is {width} wide"
    assert browser.is_shown(browser.find("nav.side"))
    assert browser.text(browser.find("button.user")) == "log out"  # a name alone would be a trap


# ---- when a broker dies (keep this last) --------------------------------------------------------


def test_a_broker_that_dies_is_drawn_so_and_who_follows_is_told(
    console: Console, cluster: ClusterProcess
) -> None:
    browser = console.browser
    root = console.api("GET", "rhizome", "cluster")["cluster"]["root"]
    victim = root if root != "b1" else "b3"
    browser.find("svg.cluster")
    cluster.brokers[victim].kill()
    browser.find("g.broker.is-stopped", victim)
    browser.wait_for_text(f"{victim} is stopped", ".events")
    browser.wait_for_text("stall", ".pill")
    if victim == root:
        browser.wait_for_text("is root (term", ".events")
    cluster.brokers[victim].start()
    wait_until(lambda: browser.count("g.broker.is-stopped") == 0, "the broker to be back")
