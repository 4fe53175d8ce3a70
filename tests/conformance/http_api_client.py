"""A client of the management API that says what came back, and nothing else."""

from __future__ import annotations

import http.client
import json
from base64 import b64encode
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from rhizome.testing.broker_process import Broker


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Api:
    """`api.get("queues", "/", name, page=1)`: parts of a path are quoted, keywords the query."""

    def __init__(self, broker: Broker, user: str = "", password: str = "") -> None:
        self.broker = broker
        self.user = user or broker.user
        self.password = password or broker.password

    def get(self, *parts: str, **query: object) -> Answer:
        return self.ask("GET", path(*parts, **query))

    def rows(self, *parts: str, **query: object) -> Any:
        answer = self.get(*parts, **query)
        assert answer.status == 200, answer
        return answer.json

    def put(self, *parts: str, **document: Any) -> Answer:
        return self.ask("PUT", path(*parts), document)

    def post(self, *parts: str, **document: Any) -> Answer:
        return self.ask("POST", path(*parts), document)

    def delete(self, *parts: str, reason: str = "", **query: object) -> Answer:
        headers = {"X-Reason": reason} if reason else {}
        return self.ask("DELETE", path(*parts, **query), None, headers)

    def publish(self, exchange: str, key: str, payload: str, **properties: Any) -> Any:
        answer = self.post(
            "exchanges",
            "/",
            exchange,
            "publish",
            routing_key=key,
            payload=payload,
            payload_encoding="string",
            properties=properties,
        )
        assert answer.status == 200, answer
        return answer.json

    def take(self, queue: str, count: int = 10, mode: str = "ack_requeue_false") -> Any:
        answer = self.post("queues", "/", queue, "get", count=count, ackmode=mode, encoding="auto")
        assert answer.status == 200, answer
        return answer.json

    def ask(
        self, method: str, target: str, document: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        body = None if document is None else json.dumps(document)
        return self.ask_raw(method, target, body, headers)

    def ask_raw(
        self,
        method: str,
        target: str,
        body: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        connection = http.client.HTTPConnection(self.broker.host, self.broker.http_port, timeout=40)
        login = b64encode(f"{self.user}:{self.password}".encode()).decode()
        sent = {"Content-Type": "application/json"}
        if self.user != "-":
            sent["Authorization"] = f"Basic {login}"
        connection.request(method, target, body, {**sent, **(headers or {})})
        answer = connection.getresponse()
        found = Answer(
            answer.status,
            {name.lower(): text for name, text in answer.getheaders()},
            answer.read(),
        )
        connection.close()
        return found


def path(*parts: str, **query: object) -> str:
    shown = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in query.items()
    }
    return (
        "/api/"
        + "/".join(quote(part, safe="") for part in parts)
        + (f"?{urlencode(shown)}" if shown else "")
    )
