"""/api/rhizome/damaged: what can't be read is listed, told and dropped."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.management.conftest import Api, Core


def set_aside(core: Core) -> None:
    """Have the only message of the queue q set aside, as if its record were damaged."""
    core.shell.begin_turn()
    queue = core.queue("q")
    message = queue.lane.pop()
    assert message is not None
    core.broker.damage.set_aside(
        queue, 0, message.index, message.position, len(message.content), "no valid record"
    )


def test_damaged_messages_are_listed_and_dropped(api: Api, core: Core) -> None:
    api.put("queues", "/", "q", durable=True)
    api.publish("q", "m", delivery_mode=2)
    where = ("rhizome", "queues", "/", "q", "damaged")
    assert api.get(*where).json == []
    assert api.get("rhizome", "damaged").json == []
    set_aside(core)
    (row,) = api.get("rhizome", "damaged").json
    assert (row["vhost"], row["queue"], row["reason"]) == ("/", "q", "no valid record")
    assert api.get(*where).json == [row]
    assert api.delete(*where, "999").status == 404
    assert api.delete(*where, "no number").status == 404
    assert api.delete(*where, str(row["index"])).status == 204
    assert api.get(*where).json == []


def test_damage_and_faults_are_told_to_doctor_and_metrics(api: Api, core: Core) -> None:
    api.put("queues", "/", "q", durable=True)
    api.publish("q", "m", delivery_mode=2)
    set_aside(core)
    core.broker.report_bug(ValueError("odd"), "queue 'q' in vhost '/'", "queue")
    facts = api.get("rhizome", "checkup", "own").json
    assert [each["queue"] for each in facts["damaged"]] == ["q"]
    (fault,) = facts["faults"]
    assert (fault["kind"], fault["count"], fault["text"]) == ("queue", 1, "ValueError: odd")
    text = api.ask("GET", "/metrics").body.decode()
    assert "rhizome_damaged_messages 1" in text
    assert 'rhizome_faults_total{kind="queue"} 1' in text
    assert 'rhizome_faults_total{kind="link"} 0' in text


def test_only_who_may_see_everything_lists_damage_everywhere(
    as_user: Callable[[str], Api],
) -> None:
    assert as_user("manager").get("rhizome", "damaged").status == 401
    assert as_user("monitor").get("rhizome", "damaged").status == 200
