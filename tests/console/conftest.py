"""A cluster of three brokers, and a browser that looks at it."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from rhizome.testing.broker_process import BrokerProcess
from rhizome.testing.cluster_process import ClusterProcess

from .browser import Browser, Driver, missing, wait_until

SEED: Final = 6
HARMLESS: Final = ("/api/rhizome/session - Failed to load resource",)
"""Whoever isn't logged in is told so; that is no fault."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = missing()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(120))
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    driver = Driver(tmp_path_factory.mktemp("driver"))
    yield driver
    driver.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """Groups stay where they are until somebody moves them."""

    def make(name: str, directory: Path) -> BrokerProcess:
        return BrokerProcess(directory, environment={"RHIZOME_CLUSTER_REBALANCE": "off"})

    cluster = ClusterProcess(tmp_path_factory.mktemp("cluster"), 3, 0, SEED, make=make)
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def window(driver: Driver) -> Iterator[Browser]:
    browser = Browser(driver)
    yield browser
    browser.quit()


class Console:
    """The console of one broker in the browser."""

    def __init__(self, browser: Browser, broker: BrokerProcess) -> None:
        self.browser = browser
        self.broker = broker

    @property
    def url(self) -> str:
        return self.broker.http_url + "/"

    def open(self, page: str = "") -> None:
        """Go to a page; the document is loaded anew."""
        self.browser.open("about:blank")
        self.browser.open(f"{self.url}#/{page}")

    def log_in(self, user: str = "guest", password: str = "guest") -> None:
        self.browser.fill("#user", user)
        self.browser.fill("#password", password)
        self.browser.click("button[type=submit]")
        self.browser.find("nav.side")

    def log_in_if_necessary(self) -> None:
        self.browser.find("#password, nav.side")
        if self.browser.count("nav.side") == 0:
            self.log_in()

    def go(self, page: str) -> None:
        """Go to a page as a link does."""
        self.browser.run("location.hash = arguments[0]", f"#/{page}")

    def queue_page(self, name: str) -> None:
        self.go(f"queues/%2F/{quote(name, safe='')}")
        self.browser.find("h1.name")

    def api(self, method: str, *parts: str, **document: Any) -> Any:
        """What the API answers; None for 404. On a busy machine elections are waited out."""
        status, text = wait_until(
            lambda: self._ask(method, parts, document), "the cluster to be available", 60
        )
        if status == 404:
            return None
        assert status < 300, f"{method} {'/'.join(parts)}: {status} {text!r}"
        return json.loads(text) if text else {}

    def _ask(
        self, method: str, parts: tuple[str, ...], document: dict[str, Any]
    ) -> tuple[int, bytes] | None:
        connection = HTTPConnection(self.broker.host, self.broker.http_port, timeout=30)
        login = b64encode(f"{self.broker.user}:{self.broker.password}".encode()).decode()
        target = "/api/" + "/".join(quote(part, safe="") for part in parts)
        body = json.dumps(document) if method != "GET" else None
        connection.request(method, target, body, {"Authorization": f"Basic {login}"})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return None if answer.status == 503 else (answer.status, text)

    def publish(self, queue: str, payload: str, **properties: Any) -> None:
        answer = self.api(
            "POST",
            "exchanges",
            "/",
            "amq.default",
            "publish",
            routing_key=queue,
            payload=payload,
            payload_encoding="string",
            properties=properties,
        )
        assert answer == {"routed": True}


@pytest.fixture
def console(window: Browser, cluster: ClusterProcess) -> Iterator[Console]:
    """The console of the first broker, logged in; nothing may go wrong in the browser."""
    console = Console(window, cluster.brokers["b1"])
    window.open("about:blank")
    window.complaints()
    console.open()
    console.log_in_if_necessary()
    yield console
    window.resize(1280, 900)
    complaints = [
        text for text in window.complaints() if not any(word in text for word in HARMLESS)
    ]
    assert complaints == []
