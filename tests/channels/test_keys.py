"""Two channels never share a key: a message that is signed for one is refused by the other."""

from __future__ import annotations

import asyncio
import base64
import string
from collections.abc import AsyncIterator, Callable
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
    await asyncio.sleep(0.002)  # which of two channels was there first is known to the millisecond
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


@pytest.mark.parametrize(
    "respell", [lambda bare: bare, lambda bare: f" {bare}\n", lambda bare: "whsec_" + same_bytes(bare)]
)
async def test_one_key_is_one_key_however_it_is_written(runtime: Runtime, respell: Callable[[str], str]) -> None:
    keeper = ChannelKeeper(runtime.inside)
    await channel(runtime, "first", OTHER)
    await channel(runtime, "second", respell(OTHER.removeprefix("whsec_")))
    assert await taken(keeper, "first", OTHER, "m1") == 202
    assert await taken(keeper, "second", OTHER, "m2") == 503


def same_bytes(bare: str) -> str:
    """Another base64 of the same bytes: the last letter before the padding has bits that nobody reads."""
    letters = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
    text, padding = bare.rstrip("="), "=" * (len(bare) - len(bare.rstrip("=")))
    other = text[:-1] + letters[letters.index(text[-1]) ^ 1] + padding
    assert other != bare
    assert base64.b64decode(other) == base64.b64decode(bare)
    return other


async def test_a_signed_message_that_is_no_text_is_refused_in_words(runtime: Runtime) -> None:
    keeper = ChannelKeeper(runtime.inside)
    await channel(runtime, "first", KEY)
    found = await keeper.find("default", "first")
    assert isinstance(found, WebhookChannel)
    body = b'{"user": "zoe", "text": "\xff"}'
    answer = await found.take(sign(SCHEME, KEY.encode(), body, now=keeper._inside.clock(), event_id="m1"), body)
    assert answer.status == 400
