"""Results that tools push to the server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from urllib.parse import urlsplit

import httpx2 as httpx
import pytest

from foliot.common.cancellation import stop_tasks
from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import Anonymous
from foliot.settings.settings import load_settings

ID = "run/call_1"
UNTIL = time.time() + 3600
DONE = {"tool_contract_version": "v1", "request_id": ID, "status": "ok", "output": {"result": "42"}}


@pytest.fixture
def settings(tmp_path):
    return load_settings({"home": str(tmp_path)}, {"FOLIOT_PUBLIC_URL": "http://foliot.example/"})


def address(runtime) -> str:
    """Where the tool was told to push to, as the server sees it."""
    parts = urlsplit(runtime.inside.callbacks.url(ID))
    assert parts.netloc == "foliot.example"
    return f"{parts.path}?{parts.query}"


async def test_a_pushed_result_reaches_the_call_that_waits_and_only_once(runtime, http):
    async with runtime.inside.callbacks.waiting(ID, until=UNTIL) as (_, pushed):
        first = await http.post(address(runtime), json=DONE)
        again = await http.post(address(runtime), json=DONE)
        assert (await pushed).output == {"result": "42"}
    assert (first.status_code, first.json()) == (202, {"accepted": True})
    assert again.status_code == 410
    assert again.json()["code"] == "gone"


async def test_a_forged_or_changed_address_is_refused(runtime, http):
    async with runtime.inside.callbacks.waiting(ID, until=UNTIL) as (_, pushed):
        good = address(runtime)
        for wrong in (good[:-1] + ("0" if good[-1] != "0" else "1"), good.replace("call_1", "call_2"), good + "x"):
            assert (await http.post(wrong, json=DONE)).status_code == 403
        assert (await http.post(good.split("?")[0], json=DONE)).status_code == 422
        assert not pushed.done()


async def test_a_body_that_is_no_response_is_told_so_and_the_call_waits_on(runtime, http):
    async with runtime.inside.callbacks.waiting(ID, until=UNTIL) as (_, pushed):
        answer = await http.post(address(runtime), content=b"\xff{")
        assert answer.status_code == 422
        assert "not a tool's response" in answer.json()["detail"]
        assert not pushed.done()


# --- several processes -------------------------------------------------------------------------------------------


@pytest.fixture
async def other(settings):
    """Another process of the installation, as far as it shares nothing but the store and its keys."""
    async with Runtime(settings=settings) as another:
        yield another


@pytest.fixture
async def other_http(other, settings):
    app = create_app(other, settings=settings, auth=Anonymous())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


async def test_any_process_takes_a_push_and_the_one_that_waits_gets_it(runtime, other_http, http):
    async with runtime.inside.callbacks.waiting(ID, until=time.time() + 60) as (address, pushed):
        place = address.removeprefix("http://foliot.example")
        taken = await other_http.post(place, json=DONE)
        again = [await client.post(place, json=DONE) for client in (other_http, http)]
        async with asyncio.timeout(60):
            assert (await pushed).output == {"result": "42"}
        forged = await other_http.post(place[:-1] + ("0" if place[-1] != "0" else "1"), json=DONE)
    late = await other_http.post(place, json=DONE)
    assert (taken.status_code, [each.status_code for each in again]) == (202, [410, 410])
    assert (forged.status_code, late.status_code) == (403, 410)


async def test_a_push_that_came_while_nobody_waited_is_there_for_who_goes_on(runtime, other, other_http):
    """As after a crash: the row of the call stays, and the next process makes the same call under the same id."""
    address = runtime.inside.callbacks.waiting(ID, until=time.time() + 60)
    place, _ = await address.__aenter__()
    runtime.inside.callbacks._shared = None  # it is gone, and removes nothing
    assert (await other_http.post(place.removeprefix("http://foliot.example"), json=DONE)).status_code == 202
    async with other.inside.callbacks.waiting(ID, until=time.time() + 60) as (_, pushed), asyncio.timeout(60):
        assert (await pushed).output == {"result": "42"}
    with contextlib.suppress(Exception):
        await address.__aexit__(None, None, None)


async def test_a_push_between_two_workers_is_there_for_the_second(runtime, other, other_http):
    """A worker that is stopped, or has lost the run, leaves the place of the push to whoever takes the call up."""
    waits, place = asyncio.Event(), ""

    async def first() -> None:
        nonlocal place
        async with runtime.inside.callbacks.waiting(ID, until=time.time() + 60) as (address, pushed):
            place = address.removeprefix("http://foliot.example")
            waits.set()
            await pushed

    stopped = asyncio.create_task(first())
    await waits.wait()
    await stop_tasks(stopped)

    taken = await other_http.post(place, json=DONE)
    async with other.inside.callbacks.waiting(ID, until=time.time() + 60) as (_, pushed), asyncio.timeout(60):
        assert (await pushed).output == {"result": "42"}
    assert taken.status_code == 202


async def test_neither_the_key_nor_what_was_pushed_is_stored_in_clear(runtime, http, tmp_path):
    async with runtime.inside.callbacks.waiting(ID, until=time.time() + 60) as (address, pushed):
        await http.post(
            address.removeprefix("http://foliot.example"), json={**DONE, "output": {"result": "in-the-clear"}}
        )
        await pushed
        database = runtime.inside.tasking.database
        (row,) = await database.read("request_key_look", id=f"tool-push {ID}")
        assert b"in-the-clear" not in bytes(row["body"])
        (key,) = await database.read("setting_get", name="callbacks.key")
        assert runtime.inside.callbacks._key not in key["value"].encode()
        assert base64.b64encode(runtime.inside.callbacks._key)[:20].decode() not in key["value"]
