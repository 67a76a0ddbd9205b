"""Two channels never share a key: a message that is signed for one is refused by the other."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from foliot import Runtime
from foliot.channels.keeper import ChannelKeeper
from foliot.channels.webhook import SCHEME, WebhookChannel
from foliot.store.base import Key
from foliot.work.triggers.signatures import sign
from tests.channels.kit import KEY, declare, opened

OTHER = "whsec_" + base64.b64encode(b"another key of sixteen bytes").decode()
BODY = b'{"user": "zoe", "text": "Hello"}'


@pytest.fixture
async def runtime(store_url: str, tmp_path: Path) -> AsyncIterator[Runtime]:
    async with opened(store_url, tmp_path, {"helper": [{"say": "Done."}] * 9}) as runtime:
        yield runtime


async def channel(runtime: Runtime, name: str, key: str) -> None:
    await declare(runtime, "Secret", name, {"data": {"value": base64.b64encode(key.encode()).decode()}})
    await point(runtime, name, name)


async def point(runtime: Runtime, name: str, secret: str) -> None:
    spec = {
        "type": "webhook",
        "agent": "helper",
        "endpoint": "http://127.0.0.1:9/x",
        "auth": {"secretRef": secret},
        "users": [{"id": "zoe", "user": "ann"}],
    }
    await declare(runtime, "Channel", name, spec)


async def taken(keeper: ChannelKeeper, name: str, key: str, id: str) -> int:
    found = await keeper.find("default", name)
    assert isinstance(found, WebhookChannel)
    now = keeper._inside.clock()
    return (await found.take(sign(SCHEME, key.encode(), BODY, now=now, event_id=id), BODY)).status


@pytest.mark.parametrize("same", ["a Secret", "a value"])
async def test_what_is_signed_for_one_channel_is_refused_by_another(runtime: Runtime, same: str) -> None:
    keeper = ChannelKeeper(runtime.inside)
    await channel(runtime, "first", KEY)
    await channel(runtime, "second", OTHER)
    assert [await taken(keeper, "first", KEY, "m1"), await taken(keeper, "second", OTHER, "m2")] == [202, 202]
    if same == "a Secret":
        await point(runtime, "second", "first")
    else:
        await declare(runtime, "Secret", "second", {"data": {"value": base64.b64encode(KEY.encode()).decode()}})
    assert await taken(keeper, "first", KEY, "m3") == 202
    assert await taken(keeper, "second", KEY, "m3") == 503
    await runtime.inside.resources.get(Key("Channel", "default", "second"))
    await channel(runtime, "second", OTHER)
    assert await taken(keeper, "second", OTHER, "m4") == 202
