"""Deliveries that were given up: shown in the status of the channel, listed with the reason, and tried again."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Runtime
from foliot.channels.keeper import ChannelKeeper
from foliot.errors import NotFound
from foliot.kernel.routing import Address
from foliot.store.base import Key
from tests.channels.kit import declare, opened

KEY = "whsec_" + base64.b64encode(b"a key of thirty-two bytes, about").decode()
INSIDE = "http://10.255.255.1:9/answers"


@pytest.fixture
async def runtime(store_url: str, tmp_path: Path) -> AsyncIterator[Runtime]:
    async with opened(store_url, tmp_path, {"helper": [{"say": "Done."}]}) as made:
        await declare(made, "Secret", "desk", {"data": {"value": base64.b64encode(KEY.encode()).decode()}})
        yield made


async def declared(runtime: Runtime, **more: Any) -> ChannelKeeper:
    spec = {
        "type": "webhook",
        "agent": "helper",
        "endpoint": INSIDE,
        "auth": {"secretRef": "desk"},
        "users": [{"id": "zoe", "user": "ann"}],
        **more,
    }
    await declare(runtime, "Channel", "desk", spec)
    return ChannelKeeper(runtime.inside)


async def status(runtime: Runtime) -> dict[str, Any]:
    return (await runtime.inside.resources.get(Key("Channel", "default", "desk")))["status"]


async def test_an_address_inside_is_said_as_soon_as_the_channel_is_kept(runtime: Runtime) -> None:
    keeper = await declared(runtime)
    await keeper.tick()
    shown = await status(runtime)
    assert shown["phase"] == "Error"
    assert "outbound_allow" in shown["lastError"]


async def test_what_was_given_up_is_shown_listed_and_tried_again(runtime: Runtime) -> None:
    keeper = await declared(runtime, endpoint="http://127.0.0.1:9/answers")
    await keeper.tick()
    now = runtime.inside.clock()
    await keeper.outbox.notice("n1", "default", Address("desk", "zoe"), "secret words", now=now)
    (taken,) = await keeper.outbox.claim(now=now, lease=60)
    await keeper.outbox.settle(taken, "failed", now=now, error="the receiver is gone")
    await keeper._show_failures()  # pyright: ignore[reportPrivateUsage]

    shown = await status(runtime)
    assert (shown["phase"], shown["failedCount"]) == ("Error", 1)
    assert shown["lastError"] == "a delivery was given up: the receiver is gone"
    (listed,) = await runtime.channels.deliveries("desk", state="failed")
    assert (listed.to, listed.attempts, listed.error) == ("zoe", 1, "the receiver is gone")
    assert "secret words" not in repr(listed)

    with pytest.raises(NotFound):
        await runtime.channels.retry("desk", listed.key + 1)
    await runtime.channels.retry("desk", listed.key)
    (again,) = await keeper.outbox.claim(now=now + 1, lease=60)
    await keeper.outbox.settle(again, "sent", now=now + 1)
    await keeper._show_failures()  # pyright: ignore[reportPrivateUsage]
    assert (await status(runtime)) == {"phase": "Ready", "observedGeneration": 1, "endpointPath": shown["endpointPath"]}


async def test_a_channel_of_another_name_retries_nothing_of_this_one(runtime: Runtime) -> None:
    keeper = await declared(runtime, endpoint="http://127.0.0.1:9/answers")
    now = runtime.inside.clock()
    await keeper.outbox.notice("n1", "default", Address("other", "zoe"), "words", now=now)
    (taken,) = await keeper.outbox.claim(now=now, lease=60)
    await keeper.outbox.settle(taken, "failed", now=now, error="gone")
    with pytest.raises(NotFound):
        await runtime.channels.retry("desk", taken.key)
    with pytest.raises(NotFound):
        await runtime.channels.deliveries("desc")
