"""Cursors that a server gives out: nobody reads a place in them, makes one up, or brings one of another store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2 as httpx
import pytest

from foliot.common.cursors import write_cursor
from foliot.models.scripted.model import ScriptedModel
from foliot.runtime.agent import Agent
from foliot.runtime.runtime import Runtime
from foliot.server.cursors import SealedCursors, is_sealed
from foliot.server.errors import BadParameter
from foliot.store.base import Database
from foliot.store.open import open_database

REFUSED = "the cursor does not belong to this list"


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = await open_database(f"sqlite:///{tmp_path}/cursors.db")
    yield database
    await database.close()


async def test_servers_of_one_store_read_each_others_cursors_and_nobody_else_does(
    database: Database, tmp_path: Path
) -> None:
    plain = write_cursor(1234, kind="run")
    one, other = SealedCursors(database), SealedCursors(database)

    sealed = await one.seal(plain)

    assert sealed is not None
    assert await other.open(sealed) == plain
    assert await other.seal(plain) == sealed, "a place is one text, so that answers can be compared"
    elsewhere = await open_database(f"sqlite:///{tmp_path}/elsewhere.db")
    try:
        with pytest.raises(BadParameter, match=REFUSED):
            await SealedCursors(elsewhere).open(sealed)
    finally:
        await elsewhere.close()


async def test_not_even_the_length_of_a_cursor_tells_how_large_a_key_is(database: Database) -> None:
    cursors = SealedCursors(database)
    sealed = [await cursors.seal(write_cursor(key, kind="run")) for key in (1, 999, 10**15)]
    assert len({len(each or "") for each in sealed}) == 1
    assert len(set(sealed)) == 3


async def test_a_cursor_that_was_changed_is_none(database: Database) -> None:
    cursors = SealedCursors(database)
    sealed = await cursors.seal(write_cursor(7, kind="run"))
    assert sealed is not None
    assert is_sealed(sealed)
    for place in range(1, len(sealed), 7):
        changed = sealed[:place] + ("A" if sealed[place] != "A" else "B") + sealed[place + 1 :]
        with pytest.raises(BadParameter, match=REFUSED):
            await cursors.open(changed)
    for other in (sealed[1:], sealed + "AAAA", "_", "_" + "A" * 64, "_" + "é" * 64, "r1", "WyJhIl0"):
        with pytest.raises(BadParameter, match=REFUSED):
            await cursors.open(other)
    assert await cursors.open(None) is None
    assert await cursors.open("") is None


DECLARED = [
    {"kind": "ModelEndpoint", "metadata": {"name": "m"}, "spec": {"provider": "mock"}},
    *({"kind": "Agent", "metadata": {"name": f"a{n}"}, "spec": {"modelRef": "m"}} for n in range(3)),
]
LISTS = (
    "/v1/runs",
    "/v1/tasks",
    "/v1/agents",
    "/v1/resources",
    "/v1/workers",
    "/v1/sessions",
    "/v1/folders",
    "/v1/questions",
    "/v1/interrupted-runs",
    "/v1/unknown-calls",
)
# Places as they were given out before they were sealed: anybody can write one.
PLAIN = (
    write_cursor(3, kind="run"),
    write_cursor(3, kind="task"),
    write_cursor(3, kind="question"),
    write_cursor([0, None]),
    write_cursor((1.5, 3), kind="sessions"),
    write_cursor(("a", "b"), kind="folders"),
    write_cursor((1.5, "r", "c"), kind="doubt"),
)


@pytest.mark.parametrize("path", LISTS)
async def test_what_this_store_did_not_give_out_is_refused_in_one_way(path: str, http: httpx.AsyncClient) -> None:
    name = "after" if path == "/v1/unknown-calls" else "continue"
    for given in (*PLAIN, "none", "_" + "A" * 80):
        answer = await http.get(path, params={name: given, "namespace": "default"})
        assert answer.status_code == 400, (given, answer.text)
        assert (answer.json()["code"], answer.json()["detail"]) == ("invalid", REFUSED), given
        assert "first page" in answer.json()["hint"]


async def test_pages_of_runs_go_on_and_tell_no_number(runtime: Runtime, http: httpx.AsyncClient) -> None:
    clerk = Agent("clerk", model=ScriptedModel({"otherwise": {"say": "done"}}))
    for number in range(3):
        await runtime.inside.run(clerk, "hello", run_id=f"r{number}")
    found: list[str] = []
    place: dict[str, str] = {}
    while True:
        page = (await http.get("/v1/runs", params={"limit": 1, **place})).json()
        found += [each["metadata"]["name"] for each in page["items"]]
        if "continue" not in page:
            break
        place = {"continue": page["continue"]}
        assert is_sealed(page["continue"])
    assert found == ["r2", "r1", "r0"]


@pytest.mark.parametrize("path", ["/v1/agents", "/v1/resources"])
async def test_a_cursor_of_another_list_is_refused_like_one_of_nobody(path: str, http: httpx.AsyncClient) -> None:
    for each in DECLARED:
        made = await http.post("/v1/apply", json={"apiVersion": "foliot.dev/v1", **each})
        assert made.status_code == 200, made.text
    page = (await http.get(path, params={"limit": 1})).json()

    assert (await http.get(path, params={"continue": page["continue"]})).status_code == 200
    for other in LISTS:
        if other == path:
            continue
        name = "after" if other == "/v1/unknown-calls" else "continue"
        answer = await http.get(other, params={name: page["continue"], "namespace": "default"})
        assert (answer.status_code, answer.json().get("detail")) == (400, REFUSED), other


@pytest.mark.parametrize("path", [*LISTS, "/v1/audit"])
async def test_a_mistyped_filter_is_refused_with_what_was_probably_meant(path: str, http: httpx.AsyncClient) -> None:
    for wrong, meant in {"namespce": "namespace", "limt": "limit", "Limit": "limit"}.items():
        answer = await http.get(path, params={wrong: "1"})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid"), answer.text
        assert answer.json()["detail"] == f"{wrong}: there is no such parameter here"
        assert answer.json()["hint"] == f"did you mean {meant}?"
    nothing_like_it = await http.get(path, params={"zzzzzz": "1"})
    assert "the parameters are" in nothing_like_it.json()["hint"]
