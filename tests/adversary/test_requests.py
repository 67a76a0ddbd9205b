"""Every route, every parameter, every odd spelling, as a tenant who reaches for what another one has.

Whatever could be read in two ways is refused; what can be read in one way tells and changes nothing of the other
tenant, and is answered as if there were none. The routes come from the table of the server: new ones are walked too.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from foliot.server.app import described
from foliot.server.route_table import ROUTES
from foliot.settings import Settings, load_settings
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
                if "text/event-stream" in head and b"data: " in said:
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
