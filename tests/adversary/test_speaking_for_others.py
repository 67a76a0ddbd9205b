"""Nobody speaks, restarts or reads in the name of another by way of the runs behind a session."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.adversary.test_sessions import CANARY, callers  # noqa: F401 - fixture

READS = (
    "",
    "?alike=true",
    "/journal",
    "/events",
    "/trace",
    "/results",
    "/results/none",
    "/content/sha256:" + 64 * "0",
    "/state?messages=true",
    "/replay",
    "/why",
)


async def turn_of(callers: Any, *, turns: int = 1) -> str:  # noqa: F811
    """Returns the run of Ann's newest turn, once it has ended."""
    async with asyncio.timeout(60):
        while True:
            items = (await callers["ann"].get("/v1/sessions/hers/history")).json()["items"]
            if len(items) >= turns and items[-1]["phase"] == "succeeded":
                return items[-1]["run_id"]
            await asyncio.sleep(0)


async def ended(client: Any, run_id: str) -> None:
    async with asyncio.timeout(60):
        while (await client.get(f"/v1/runs/{run_id}")).json()["status"]["phase"] != "succeeded":
            await asyncio.sleep(0)


async def audit_of(callers: Any, verb: str) -> list[Any]:  # noqa: F811
    items = (await callers["root"].get("/v1/audit", params={"limit": 500})).json()["records"]
    return [each["body"] for each in items if each["body"]["outcome"] == verb]


async def test_an_operator_does_not_speak_in_the_session_of_another_by_its_runs(callers) -> None:  # noqa: F811
    turn = await turn_of(callers)
    for path in ("say", "input"):
        refused = await callers["bob"].post(f"/v1/runs/{turn}/{path}", json={"message": "pay all", "mode": "followup"})
        assert refused.status_code == 403, refused.text
        assert "impersonator" in refused.text

    assert len((await callers["ann"].get("/v1/sessions/hers/inputs")).json()["items"]) == 1
    assert await audit_of(callers, "run_told") == []


@pytest.mark.parametrize(("who", "by"), [("ann", ""), ("ima", "ima")])
async def test_who_may_speak_there_is_recorded_with_what_was_said(callers, who: str, by: str) -> None:  # noqa: F811
    turn = await turn_of(callers)
    said = await callers[who].post(f"/v1/runs/{turn}/say", json={"message": "more", "mode": "followup", "key": "k"})
    again = await callers[who].post(f"/v1/runs/{turn}/say", json={"message": "more", "mode": "followup", "key": "k"})

    assert (said.status_code, again.json()["input"]["again"]) == (202, True), said.text
    heard = (await callers["ann"].get("/v1/sessions/hers/inputs")).json()["items"]
    assert [each["by"] for each in heard] == ["", by]
    assert [each["caller"]["user"] for each in await audit_of(callers, "run_told")] == [who]


async def test_an_ended_run_is_restarted_by_its_user_and_not_as_its_user_by_others(callers) -> None:  # noqa: F811
    order = {"agent": "x", "input": "hello", "run_id": "annsrun"}
    assert (await callers["ann"].post("/v1/runs", params={"namespace": "team-a"}, json=order)).status_code == 200
    await ended(callers["ann"], "annsrun")

    refused = await callers["bob"].post("/v1/runs/annsrun/say", json={"message": "pay all"})
    assert refused.status_code == 403, refused.text
    runs = (await callers["bob"].get("/v1/runs", params={"agent": "x"})).json()["items"]
    assert len(runs) == 2  # hers, and the turn of her session
    for who in ("ima", "ann"):
        went_on = await callers[who].post("/v1/runs/annsrun/say", json={"message": "go on"})
        assert went_on.status_code == 202, went_on.text
        await ended(callers["ann"], went_on.json()["metadata"]["name"])


async def test_only_its_user_and_admins_cancel_a_turn(callers) -> None:  # noqa: F811
    turn = await turn_of(callers)
    for who, status in {"rob": 403, "bob": 403, "mallory": 404}.items():
        assert (await callers[who].post(f"/v1/runs/{turn}/cancel", json={})).status_code == status
    assert (await callers["bob"].post(f"/v1/responses/resp_{turn}/cancel")).status_code in (403, 404)
    for who in ("ann", "ada"):
        assert (await callers[who].post(f"/v1/runs/{turn}/cancel", json={})).status_code == 409  # it has ended


@pytest.mark.parametrize("path", READS)
async def test_for_a_reader_the_turn_of_another_does_not_exist(callers, path: str) -> None:  # noqa: F811
    turn = await turn_of(callers)
    hidden, missing = [await callers["rob"].get(f"/v1/runs/{id}{path}") for id in (turn, "none")]

    assert hidden.status_code == missing.status_code == 404
    assert hidden.json()["detail"].replace(turn, "none") == missing.json()["detail"]


async def test_lists_leave_out_turns_of_others_and_go_on_behind_them(callers) -> None:  # noqa: F811
    turn = await turn_of(callers)
    for number in range(3):
        order = {"agent": "x", "input": "hello", "run_id": f"bobs{number}"}
        assert (await callers["bob"].post("/v1/runs", params={"namespace": "team-a"}, json=order)).status_code == 200
        await ended(callers["bob"], f"bobs{number}")
        await callers["ann"].post("/v1/sessions/hers/say", json={"message": CANARY})
        await turn_of(callers, turns=number + 2)

    found: list[str] = []
    after: dict[str, str] = {}
    for _ in range(10):
        page = (await callers["rob"].get("/v1/runs", params={"limit": 1, "namespace": "team-a", **after})).json()
        found += [each["metadata"]["name"] for each in page["items"]]
        if "continue" not in page:
            break
        after = {"after": page["continue"]}
    assert found == ["bobs2", "bobs1", "bobs0"]
    hidden, missing = [await callers["rob"].get("/v1/runs", params={"after": each}) for each in (turn, "none")]
    assert (hidden.status_code, hidden.json()["detail"]) == (missing.status_code, missing.json()["detail"])
    assert hidden.status_code == 400
    for who in ("ann", "bob", "ada"):
        assert turn in (await callers[who].get("/v1/runs", params={"namespace": "team-a"})).text
        assert (await callers[who].get(f"/v1/runs/{turn}/state")).status_code == 200


async def test_words_of_a_session_stay_private_in_what_goes_on_after_it(callers) -> None:  # noqa: F811
    turn = await turn_of(callers)
    order = {"agent": "x", "input": "what did I say", "run_id": "afterhers", "after": turn}
    for who, status in {"bob": 404, "ann": 200}.items():
        begun = await callers[who].post("/v1/runs", params={"namespace": "team-a"}, json=order)
        assert begun.status_code == status, begun.text
    await ended(callers["ann"], "afterhers")
    forked = await callers["bob"].post(f"/v1/runs/{turn}/fork", json={"at": 1, "new_id": "forkofhers"})
    assert forked.status_code == 200, forked.text

    for run_id in ("afterhers", "forkofhers"):
        assert (await callers["rob"].get(f"/v1/runs/{run_id}/state?messages=true")).status_code == 404
    logs = await callers["rob"].get("/v1/agents/x/logs", params={"namespace": "team-a"})
    assert (logs.status_code, logs.json()["logs"]) == (200, [])
    for path in ("questions", "interrupted-runs", "unknown-calls", "session-search?text=4711"):
        assert CANARY not in (await callers["rob"].get(f"/v1/{path}")).text
