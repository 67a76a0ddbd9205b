"""Every route, every parameter, every odd spelling, as a tenant who reaches for what another one has.

Whatever could be read in two ways is refused; what can be read in one way tells and changes nothing of the other
tenant, and is answered as if there were none. The routes come from the table of the server: new ones are walked too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlsplit

import httpx2 as httpx
import pytest

from foliot.server.app import described
from foliot.server.route_table import ROUTES
from foliot.settings.settings import Settings, load_settings
from foliot.store.queue.placement import Offer
from tests.server.contract_kit import MANIFESTS
from tests.server.test_tenants import (
    BODY,
    FORMS,
    MARK,
    MINE,
    NOWHERE,
    TABLE,
    THEIRS,
    WITHIN,
    Place,
    _plain,
    concrete,
    place,
)

__all__ = ["place"]  # the fixture

LONG = bool(os.environ.get("FOLIOT_CHAOS"))
SEED = random.SystemRandom().randrange(10**9) if LONG else 11
# Spellings that each route is tried with; over all routes, each of them many times.
TRIED = 99 if LONG else 7
HEADERS = {"If-Match": "*", "Accept": "application/json, text/event-stream"}
# Each has two readings, or none. `{t}` is the namespace of the other tenant, `{m}` the caller's own.
ODD = [
    "namespace={m}&namespace={t}",
    "namespace={t}&namespace={m}",
    "namespace=&namespace={t}",
    "n%61mespace={t}",
    "%6eamespace={t}",
    "namespac%65={t}",
    "namespace={m}&n%61mespace={t}",
    "n%2561mespace={t}",
    "+namespace={t}",
    "%20namespace={t}",
    "namespace+={t}",
    "namespace%00={t}",
    "namespace=%20{t}",
    "namespace={t}+",
    "namespace={t}%09",
    "namespace=%e3%80%80{t}",
    "namespace={t}%00",
    "namespace={t}%0a",
    "namespace={t}%e2%80%a8",
    "namespace={m};namespace={t}",
    "x=1;namespace={t}",
    "namespace={t}%zz",
    "namespace=%ff{t}",
    "%ef%bd%8eamespace={t}",
    "={t}",
]
# Of another name than the route has: refused where programs are written for this API, else not looked at.
UNKNOWN = ["Namespace={t}", "NAMESPACE={t}", "name_space={t}", "name-space={t}", "namespace[]={t}"]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"home": str(tmp_path), "request_rate": "0"}, {})


def routes() -> Iterator[tuple[str, str, str]]:
    """Method, path of the row, and a kind for routes of all kinds; in an order that the seed says."""
    found = [(m, p, k) for m, p in TABLE for k in (("agents", "secrets") if "{kind}" in p else ("",))]
    random.Random(SEED).shuffle(found)
    yield from found


def parameters(method: str, path: str) -> list[str]:
    """Return the query parameters that a path is described with."""
    operation = DESCRIBED.get(path, {}).get(method.lower(), {})
    return [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]


DESCRIBED = described()["paths"]


async def ask(place: Place, method: str, path: str, query: str, body: str | None) -> tuple[int, str]:
    """Send bytes that nobody has looked at; return the status and what was said, of a stream its first event."""
    address = urlsplit(place.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    content = (body or "").encode()
    lines = [f"{method} {path}?{query} HTTP/1.1", f"Host: {address.netloc}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in (HEADERS | place.mine).items()]
    lines += [f"Idempotency-Key: {secrets.token_hex(8)}", f"Content-Length: {len(content)}"]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + content)
    try:
        async with asyncio.timeout(WITHIN):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            said = b""
            while part := await reader.read(65536):
                said += part
                if "text/event-stream" in head and (b"data: " in said or b": changes from here on" in said):
                    break
    finally:
        writer.close()
    return int(head.split(" ", 2)[1]), said.decode()


def body_of(method: str, route: str, namespace: str) -> str | None:
    if method not in ("POST", "PUT", "PATCH"):
        return None
    return json.dumps(FORMS.get(route, BODY if "{name}" not in route else {})).replace(THEIRS, namespace)


async def test_no_odd_spelling_of_the_namespace_reaches_another_tenant(place: Place) -> None:
    before = await place.theirs()
    assert before.count(MARK) > 15
    chance = random.Random(SEED)

    for method, route, kind in routes():
        path = concrete(place, route, kind)
        others = ROUTES[method, route].rule.others
        for spelling in chance.sample([*ODD, *UNKNOWN], min(TRIED, len(ODD) + len(UNKNOWN))):
            query = spelling.replace("{t}", THEIRS).replace("{m}", MINE)
            status, said = await ask(place, method, path, query, body_of(method, route, THEIRS))
            told = (SEED, method, path, query, status, said)
            assert MARK not in said, told
            assert status < 500, told
            assert spelling in UNKNOWN or status == 400, told
            assert others or status >= 400, told
        assert await place.theirs() == before, (SEED, method, path)


async def test_what_another_tenant_has_is_as_if_it_were_not_there(place: Place) -> None:
    before = await place.theirs()

    for method, route, kind in routes():
        path = concrete(place, route, kind)
        for asked, body in (("{t}", "{t}"), ("{m}", "{t}"), ("{t}", "{m}"), ("", "{t}")):
            answers: list[tuple[int, str]] = []
            for space in (THEIRS, NOWHERE):
                query, inside = (text.replace("{t}", space).replace("{m}", MINE) for text in (asked, body))
                named = path.replace(f"{THEIRS}/", f"{space}/")
                query = f"namespace={query}" if query else ""
                status, said = await ask(place, method, named, query, body_of(method, route, inside))
                assert MARK not in said, (SEED, method, path, query, said)
                assert status < 500, (SEED, method, path, query, said)
                answers.append((status, _plain(said, space)))
            if "{m}" in asked + body and all(status < 300 for status, _ in answers):
                continue  # done twice in the caller's own namespace
            assert answers[0] == answers[1], (SEED, method, path, asked, body)
        assert await place.theirs() == before, (SEED, method, path)


async def test_no_parameter_is_given_twice_or_under_another_spelling(place: Place) -> None:
    walked = 0
    for method, route, kind in routes():
        described_path = route.replace("{kind}", kind).replace(":path}", "}")
        if ROUTES[method, route].rule.others:
            continue
        path = concrete(place, route, kind).replace(THEIRS, MINE)
        for name in parameters(method, described_path):
            encoded = f"%{ord(name[0]):02x}{name[1:]}"
            for query in (f"{name}=1&{name}=1", f"{encoded}=1", f"{name}=%00", f"+{name}=1", f"{name}=%ff"):
                status, said = await ask(place, method, path, query, body_of(method, route, MINE))
                assert status == 400, (SEED, method, path, query, status, said)
                walked += 1
    assert walked > 300


# --- what another tenant was given, given back -------------------------------------------------------------------

# Where a place in a list or stream, or an id, can be said.
PLACES = {"after", "continue", "cursor", "resourceVersion", "before", "starting_after"}
IDS = {"after", "run", "call", "name", "trace_id", "branch_id"}
# The answers of these to another tenant are looked through for such things.
GIVEN = {"continue", "cursor", "after", "next", "resourceVersion", "seq", "revision", "last_id", "first_id"}
NAMES = {"uid", "id", "run", "run_id", "trace_id", "branch_id", "call_id", "message_id"}


@dataclass
class Handed:
    """What the other tenant holds: places (cursors, positions, numbers) and ids, of real answers to them."""

    places: set[str] = field(default_factory=set[str])
    ids: set[str] = field(default_factory=set[str])

    def look_through(self, value: Any, key: str = "") -> None:
        if isinstance(value, dict):
            for name, inner in cast("dict[str, Any]", value).items():
                self.look_through(inner, name)
        elif isinstance(value, list):
            for inner in cast("list[Any]", value):
                self.look_through(inner, key)
        elif value and isinstance(value, str | int) and not isinstance(value, bool):
            if key in GIVEN:
                self.places.add(str(value))
            elif key in NAMES and isinstance(value, str) and re.search(r"\d", value) and len(value) > 8:
                self.ids.add(value)


def twin(id: str) -> str:
    """Of the same form, and nobody's."""
    if id.isdigit():
        return f"{id}000000"
    return id[:-1] + ("0" if id[-1] != "0" else "1")


async def told(http: httpx.AsyncClient, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
    """Return the status and what was said, of a stream as much as comes with its first event."""
    sent = {**HEADERS, **headers} | ({} if body is None else {"Content-Type": "application/json"})
    content = None if body is None else json.dumps(body)
    async with asyncio.timeout(WITHIN), http.stream(method, path, content=content, headers=sent) as answer:
        said = ""
        if not answer.headers.get("content-type", "").startswith("text/event-stream"):
            return answer.status_code, said + (await answer.aread()).decode()
        async for line in answer.aiter_lines():
            said += line + "\n"
            if line.startswith(("data: ", ": changes from here on")):
                break
        return answer.status_code, said


class Both:
    """Both tenants have run something; the other one before and after the caller."""

    def __init__(self, place: Place, mine: httpx.AsyncClient, theirs: httpx.AsyncClient) -> None:
        self.place, self.mine, self.theirs = place, mine, theirs
        self.handed = Handed()
        self.run = self.response = self.record = ""

    async def furnish(self) -> None:
        runtime = self.place.runtime
        applied = await self.theirs.post(
            "/v1/apply", params={"namespace": MINE, "allowMissing": "true"}, content=MANIFESTS
        )
        assert applied.status_code == 200, applied.text
        worker = runtime.inside.tasking.worker(Offer("w2", runtime.inside.runs.worker, capacity=4), grace=0)
        working = asyncio.create_task(worker.run())
        task = {"metadata": {"name": "greet"}, "spec": {"agent": "greeter", "input": {"topic": "x"}}}
        assert (await self.mine.post("/v1/tasks", params={"namespace": MINE}, json=task)).status_code == 201
        await self.mine.get("/v1/tasks/greet/events", params={"namespace": MINE})  # until it has ended
        worker.drain()
        await working
        said = {"model": f"{THEIRS}/greeter", "input": MARK, "conversation": "diary"}
        answer = await self.theirs.post("/v1/responses", json=said)
        assert answer.status_code == 200, answer.text
        self.response = answer.json()["id"]
        self.run = self.response.removeprefix("resp_")
        self.mine_run = (await self.mine.get("/v1/runs", params={"namespace": MINE})).json()["items"][-1]["metadata"][
            "name"
        ]
        audit = await self.theirs.get("/v1/audit", params={"namespace": THEIRS, "limit": 1})
        self.record = str(audit.json()["records"][0]["seq"])
        await self._look()

    async def _look(self) -> None:
        """Ask everything that can be read, as the other tenant, a page at a time."""
        for method, route, kind in routes():
            if method != "GET":
                continue
            path = concrete(self.place, route, kind)
            known = parameters(method, route.replace("{kind}", kind).replace(":path}", "}"))
            asked = f"{path}?namespace={THEIRS}{'&limit=1' if 'limit' in known else ''}"
            status, said = await told(self.theirs, method, asked)
            if status != 200:
                continue
            for line in said.splitlines():
                if line.startswith("id: "):
                    self.handed.places.add(line[4:])
                with contextlib.suppress(ValueError):
                    self.handed.look_through(json.loads(line.removeprefix("data: ")))
        self.handed.ids |= {self.run, self.response, *self.place.names.values()}

    def own(self, route: str, kind: str) -> str:
        """The path to something of the caller's own."""
        path = concrete(self.place, route, kind).replace(THEIRS, MINE)
        return path.replace(self.place.names["run"], self.mine_run)


@pytest.fixture
async def both(place: Place) -> AsyncIterator[Both]:
    async with (
        httpx.AsyncClient(base_url=place.url, headers=place.mine, timeout=WITHIN) as mine,
        httpx.AsyncClient(base_url=place.url, headers=place.admin, timeout=WITHIN) as theirs,
    ):
        found = Both(place, mine, theirs)
        await found.furnish()
        yield found


def some(values: set[str], chance: random.Random, most: int) -> list[str]:
    return chance.sample(sorted(values), min(len(values), 99 if LONG else most))


async def check_unknown(both: Both, method: str, first: str, id: str, body: Any = None, **headers: str) -> None:
    """Hold the answer about an id of the other tenant against that about an id that nobody has."""
    answers: list[tuple[int, str]] = []
    for each in (id, twin(id)):
        sent = None if body is None else json.loads(json.dumps(body).replace("{id}", each))
        status, said = await told(both.mine, method, first.replace("{id}", each), sent, **headers)
        assert MARK not in said, (SEED, method, first, id, said)
        assert status < 500, (SEED, method, first, id, said)
        # What was asked for is said again, whole or its last part. Positions are of the whole installation, which
        # goes on meanwhile.
        echoed = re.compile(f"{re.escape(each)}|{re.escape(each.rpartition('/')[2])}")
        said = re.sub(r'id: \d+|"resourceVersion":"\d+"', "", said if len(each) < 8 else echoed.sub("…", said))
        answers.append((status, _plain(said, THEIRS)))
    assert answers[0] == answers[1], (SEED, method, first, id)


async def test_places_and_ids_of_another_tenant_are_worth_nothing_as_parameters(both: Both) -> None:
    before, chance, walked = await both.place.theirs(), random.Random(SEED), 0
    assert len(both.handed.places) > 10, both.handed
    assert len(both.handed.ids) > 10, both.handed
    for method, route, kind in routes():
        known = set(parameters(method, route.replace("{kind}", kind).replace(":path}", "}")))
        path = both.own(route, kind)
        for name in sorted(known & (PLACES | IDS)) if method == "GET" else ():
            for space in (f"&namespace={MINE}", "") if "namespace" in known else ("",):
                for value in some(both.handed.places, chance, 3) if name in PLACES else ():
                    status, said = await told(both.mine, method, f"{path}?{name}={quote(value, safe='')}{space}")
                    assert MARK not in said, (SEED, path, name, value, said)
                    assert THEIRS not in said, (SEED, path, name, value, said)
                    assert status < 500, (SEED, path, name, value, said)
                    walked += 1
                chosen = {both.run, *some(both.handed.ids, chance, 2)} if name in IDS else set[str]()
                for id in sorted(chosen):
                    await check_unknown(both, method, f"{path}?{name}={{id}}{space}", id)
                    walked += 1
    assert walked > 100
    assert await both.place.theirs() == before


async def test_streams_do_not_go_on_where_another_tenant_was(both: Both) -> None:
    chance, walked = random.Random(SEED), 0
    for method, route, kind in routes():
        operation = DESCRIBED.get(route.replace("{kind}", kind).replace(":path}", "}"), {}).get(method.lower(), {})
        heads = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "header"}
        if method != "GET" or "Last-Event-ID" not in heads:
            continue
        for value in some(both.handed.places, chance, 3):
            if not value.isascii() or not value.isprintable():
                continue
            asked = f"{both.own(route, kind)}?namespace={MINE}"
            status, said = await told(both.mine, method, asked, **{"Last-Event-ID": value})
            assert MARK not in said, (SEED, route, value, said)
            assert THEIRS not in said, (SEED, route, value, said)
            assert status < 500, (SEED, route, value, said)
            walked += 1
    assert walked > 10


async def test_ids_of_another_tenant_in_paths_and_bodies_are_as_if_there_were_none(both: Both) -> None:
    before, chance = await both.place.theirs(), random.Random(SEED)
    for method, route, kind in routes():
        if not (names := re.findall(r"{(name|run_id|response_id|number)}", route)) or method == "DELETE":
            continue
        ids = {"response_id": {both.response}, "run_id": {both.run}, "number": {both.record}}.get(names[0])
        for id in sorted(ids or {both.run, *some(both.handed.ids, chance, 2)}):
            path = route.replace("{kind}", kind).replace(f"{{{names[0]}}}", "{id}")
            path = re.sub(r"{(?!id})[^}]*}", "1", path)
            known = parameters(method, route.replace("{kind}", kind).replace(":path}", "}"))
            path += f"?namespace={MINE}" if "namespace" in known else ""
            body = None if body_of(method, route, MINE) is None else FORMS.get(route, {})
            headers = {"Idempotency-Key": "k"} if method == "POST" and "key" in route else {}
            await check_unknown(both, method, path, id, body, **headers)
    for body in (
        {"model": f"{MINE}/greeter", "input": "go on", "previous_response_id": "{id}"},
        {"model": f"{MINE}/greeter", "input": "go on", "previous_response_id": f"resp_task~{THEIRS}~{{id}}"},
    ):
        for id in (both.response, both.run, "greet-and-more"):
            await check_unknown(both, "POST", "/v1/responses", id, body)
    again = {"model": f"{MINE}/greeter", "input": "go on", "conversation": "diary"}
    answer = await both.mine.post("/v1/responses", json=again)
    assert answer.json().get("previous_response_id") is None, "a conversation of this name is another one"
    assert await both.place.theirs() == before


async def test_a_session_of_another_tenant_is_not_entered_or_ended(both: Both) -> None:
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}
    opened = await both.theirs.post("/mcp", params={"namespace": THEIRS}, json=hello, headers=HEADERS)
    session = opened.headers["mcp-session-id"]
    look = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    version = {"MCP-Protocol-Version": "2025-06-18"}
    for space in (MINE, THEIRS):
        for method, body in (("POST", look), ("GET", None), ("DELETE", None)):
            answers = [
                await told(both.mine, method, f"/mcp?namespace={space}", body, **version, **{"Mcp-Session-Id": each})
                for each in (session, twin(session))
            ]
            assert answers[0] == answers[1], (method, space)
            assert answers[0][0] >= 400, (method, space)
    asked = await told(both.theirs, "POST", f"/mcp?namespace={THEIRS}", look, **version, **{"Mcp-Session-Id": session})
    assert asked[0] == 200, asked


def made(said: str) -> str:
    """Return the id of the run or task that an answer is about."""
    body = json.loads(said)
    return body.get("id") or (body.get("metadata") or body["task"])["uid"]


async def test_keys_of_another_tenant_find_nothing(both: Both) -> None:
    """Whatever was done under a key stays with whoever gave it, also for the same words to the same address."""
    orders: dict[str, dict[str, Any]] = {
        "/v1/tasks": {"metadata": {"name": "keyed"}, "spec": {"agent": "greeter", "input": {"topic": "x"}}},
        "/v1/tasks/submit": {"target_kind": "agent", "target": "greeter", "message": "x", "namespace": THEIRS},
        "/v1/responses": {"model": f"{THEIRS}/greeter", "input": "x"},
        "/v1/chat/completions": {"model": f"{THEIRS}/greeter", "messages": [{"role": "user", "content": "x"}]},
    }
    for number, (path, body) in enumerate(orders.items()):
        asked = f"{path}?namespace={THEIRS}" if "tasks" in path else path
        status, first = await told(both.theirs, "POST", asked, body, **{"Idempotency-Key": f"theirs-{number}"})
        assert status < 300, first
        status, again = await told(both.theirs, "POST", asked, body, **{"Idempotency-Key": f"theirs-{number}"})
        assert status < 300
        assert made(again) == made(first), "it is a key that finds something, for its owner"
        before = await both.place.theirs()
        for where in (THEIRS, MINE):
            mine = json.loads(json.dumps(body).replace(THEIRS, where))
            for _ in range(2):
                key = {"Idempotency-Key": f"theirs-{number}"}
                status, said = await told(both.mine, "POST", asked.replace(THEIRS, where), mine, **key)
                assert MARK not in said, (path, where, said)
                assert (status < 300) == (where == MINE), (path, where, said)
                assert status >= 300 or made(said) != made(first), (path, said)
        assert await both.place.theirs() == before
