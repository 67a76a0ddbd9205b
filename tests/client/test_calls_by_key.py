"""Calls of a tool with one key are the same call: here, over a server, and over one whose answers get lost."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import foliot.client.http as module
from foliot import Client, Runtime, tool
from foliot.errors import Conflict, OutcomeUnknown
from foliot.runtime.groups.groups import Groups
from foliot.runtime.tools import ToolCaller
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.server.http.serve import HttpServer, Listen
from foliot.settings.settings import load_settings
from foliot.store.access.request_keys import ClaimedKey, SqlRequestKeys
from foliot.store.access.tokens import SqlTokens
from foliot.testing.served import served
from simulators.proxy import Proxy


class Till:
    """Three tools that note each call, and fail when `fails` says so."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.fails = False

    def tools(self) -> list[Any]:
        @tool(effect="once")
        def pay(amount: int) -> str:
            """Pays."""
            return self._note(amount)

        @tool(effect="idempotent")
        def put(amount: int) -> str:
            """Puts an amount there."""
            return self._note(amount)

        return [pay, put]

    def _note(self, amount: int) -> str:
        self.paid.append(amount)
        if self.fails:
            raise ValueError("the till is broken")
        return f"paid {amount}, number {len(self.paid)}"


@asynccontextmanager
async def opened(way: str, home: Path, till: Till) -> AsyncIterator[Groups]:
    if way == "runtime":
        async with Runtime(settings=load_settings({"home": str(home)}, {}), tools=till.tools()) as runtime:
            yield runtime
    else:
        async with served(home, tools=till.tools()) as url, Client(url, home=home) as client:
            yield client


@pytest.fixture(params=["runtime", "client"])
def way(request: pytest.FixtureRequest) -> str:
    return request.param


async def test_a_call_is_made_once_by_its_key(way: str, tmp_path: Path) -> None:
    till = Till()
    async with opened(way, tmp_path, till) as site:
        first = await site.tools.call("pay", {"amount": 5}, key="order-17")
        again = await site.tools.call("pay", {"amount": 5}, key="order-17")
        other = await site.tools.call("pay", {"amount": 5}, key="order-18")
        without = await site.tools.call("pay", {"amount": 5})

    assert first.result == again.result
    assert [each.result.text for each in (first, other, without)] == [f"paid 5, number {n}" for n in (1, 2, 3)]


async def test_a_key_belongs_to_one_call(way: str, tmp_path: Path) -> None:
    till = Till()
    async with opened(way, tmp_path, till) as site:
        await site.tools.call("pay", {"amount": 5}, key="order-17")
        with pytest.raises(Conflict, match="used for another request"):
            await site.tools.call("pay", {"amount": 6}, key="order-17")
        with pytest.raises(Conflict, match="used for another request"):
            await site.tools.call("put", {"amount": 5}, key="order-17")

    assert till.paid == [5]


async def test_what_was_refused_leaves_its_key_free(way: str, tmp_path: Path) -> None:
    till = Till()
    async with opened(way, tmp_path, till) as site:
        refused = await site.tools.call("pay", {"amount": "five"}, key="order-17")
        assert refused.result.error is not None
        await site.tools.call("pay", {"amount": 5}, key="order-17")

    assert till.paid == [5]


@pytest.mark.parametrize(("name", "times"), [("pay", 1), ("put", 2)])
async def test_a_call_that_failed_is_made_again_if_that_is_safe(
    way: str, tmp_path: Path, name: str, times: int
) -> None:
    till = Till()
    till.fails = True
    async with opened(way, tmp_path, till) as site:
        first = await site.tools.call(name, {"amount": 5}, key="order-17")
        second = await site.tools.call(name, {"amount": 5}, key="order-17")

    assert first.result.error is not None
    assert second.result.error is not None
    assert till.paid == [5] * times


async def test_a_call_whose_answer_is_lost_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.001)
    till, settings = Till(), load_settings({"home": str(tmp_path)}, {})
    async with Runtime(settings=settings, tools=till.tools()) as runtime:
        auth = TokenAuth(runtime.inside.database, local=True)
        tokens = SqlTokens(runtime.inside.database)
        _, token = await tokens.create("ann", namespaces=("*",), roles=("admin",), now=time.time())
        app = create_app(runtime, settings=settings, auth=auth)
        async with HttpServer(app, Listen("127.0.0.1", 0), grace=5) as server:
            for key in ("order-17", ""):
                with Proxy(server.url) as proxy:
                    proxy.cut_after(b"/v1/tools/pay/call")
                    async with Client(proxy.url, token=token) as client:
                        called = await client.tools.call("pay", {"amount": 5}, key=key)
                    await proxy.cut()
                assert called.result.error is None

    assert till.paid == [5, 5]


async def test_a_call_that_broke_off_is_not_made_again_unless_it_may_be(tmp_path: Path) -> None:
    """The first caller dies in the middle of its call: its claim lapses."""
    till = Till()
    settings = load_settings({"home": str(tmp_path)}, {})
    asker = ToolCaller("default")
    async with Runtime(settings=settings, tools=till.tools()) as runtime:
        for name in ("pay", "put"):
            await _dies(runtime, name, asker)
        with pytest.raises(OutcomeUnknown, match="whether it took effect is not known"):
            await runtime.inside.tools.call("pay", {"amount": 5}, asker, idempotency_key="pay")
        await runtime.inside.tools.call("put", {"amount": 5}, asker, idempotency_key="put")

    assert till.paid == [5]


async def _dies(runtime: Runtime, name: str, asker: ToolCaller) -> None:
    from foliot.runtime.tools import _digest, _owner  # pyright: ignore[reportPrivateUsage]

    offering = runtime.inside.tools
    _, call = await offering._prepared(name, {"amount": 5}, asker, name)  # pyright: ignore[reportPrivateUsage]
    keys = SqlRequestKeys(runtime.inside.database)
    claimed = await keys.claim(_owner(asker), name, _digest(name, call), now=keys.clock())
    assert isinstance(claimed, ClaimedKey)
    await keys.hold(claimed, until=0.0)
