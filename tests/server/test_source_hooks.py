"""Sources that report changes over HTTP: the work of a hook is done once for the same items."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest

from foliot import Agent, Runtime, ScriptedModel

SESSION = {"agent": "helper", "channel": "mail", "session_mode": "reuse", "message": "{{ path }} has changed."}
EVENTS = "/v1/task-hooks/mail/events"


async def declared(http: httpx.AsyncClient, runtime: Runtime, **more: Any) -> None:
    runtime.inside.know(Agent("helper", model=ScriptedModel([{"say": "Seen."}] * 9)))
    spec = {"source": "mail", "session": SESSION, **more}
    manifest = {"apiVersion": "foliot.dev/v1", "kind": "TaskHook", "metadata": {"name": "mail"}, "spec": spec}
    made = await http.post("/v1/task-hooks", json=manifest)
    assert made.status_code == 201, made.text


async def test_the_same_items_are_said_once_in_whatever_order(http: httpx.AsyncClient, runtime: Runtime) -> None:
    await declared(http, runtime)
    for items in (["17", "18"], ["18", "17", "17"]):
        answer = await http.post(EVENTS, json={"path": "/mail", "integration": "imap", "items": items})
        assert answer.status_code == 200, answer.text
    (session,) = (await runtime.inside.sessions.list("default", identity=None)).items
    assert (session.id, session.arrivals) == (answer.json()["made"], 1)


async def test_a_suspended_hook_and_a_folder_take_no_reports(http: httpx.AsyncClient, runtime: Runtime) -> None:
    await declared(http, runtime, suspend=True)
    assert (await http.post(EVENTS, json={"path": "/mail"})).status_code == 409
    assert (await http.post("/v1/task-hooks/none/events", json={"path": "/mail"})).status_code == 404


@pytest.mark.parametrize(
    ("report", "field"),
    [
        ({"path": "/mail", "integration": "imap"}, "items"),
        ({"path": "/mail", "items": [], "new_items_hash": "  "}, "items"),
        ({"path": "/mail", "items": ["", " "]}, "items"),
        ({"path": "", "items": ["1"]}, "path"),
        ({"path": " \t", "new_items_hash": "h"}, "path"),
    ],
)
async def test_a_report_that_could_not_be_told_from_the_next_one_is_refused_and_fires_nothing(
    http: httpx.AsyncClient, runtime: Runtime, report: dict[str, Any], field: str
) -> None:
    await declared(http, runtime)
    answer = await http.post(EVENTS, json=report)
    assert 400 <= answer.status_code < 500, answer.text
    assert f"{field}: " in answer.text
    assert not (await runtime.inside.sessions.list("default", identity=None)).items
