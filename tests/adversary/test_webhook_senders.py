"""Somebody who has read a delivery sends it again, in every sender's way of signing, or signs with a secret that is
none. Over HTTP, on the real application."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from foliot.resources.definitions.task_webhook import PROFILES
from foliot.runtime import Runtime
from foliot.server.access.auth import Anonymous
from foliot.server.app import create_app
from foliot.settings import load_settings
from foliot.store.base import Key
from foliot.work.triggers.declared_webhook import read_webhook
from foliot.work.triggers.signatures import sign
from foliot.work.triggers.webhook_endpoints import WebhookEndpoints

SECRET = "whsec_" + base64.b64encode(b"correct-horse-battery-staple").decode()
SENDERS = sorted(PROFILES)
# Headers by which senders name an event without signing the name.
NAMES = ("X-Event-Id", "X-GitHub-Delivery", "X-Gitlab-Event-UUID", "Linear-Delivery", "X-Shopify-Webhook-Id")


class Site:
    """A server with a webhook of each sender."""

    def __init__(self, http: httpx.AsyncClient, runtime: Runtime) -> None:
        self.http = http
        self.runtime = runtime

    async def write(self, kind: str, name: str, spec: dict[str, Any]) -> httpx.Response:
        return await self.http.post(f"/v1/{kind}", json={"metadata": {"name": name}, "spec": spec})

    async def declare(self, sender: str, secret: str = SECRET, **idempotency: Any) -> str:
        """A webhook of this sender; the path of its deliveries."""
        if secret:
            assert (await self.write("secrets", "hook", {"stringData": {"value": secret}})).is_success
        auth = {"profile": sender, "secret_ref": "hook"}
        spec = {"task_ref": "brief", "auth": auth, "idempotency": idempotency}
        made = await self.write("task-webhooks", sender, spec)
        assert made.status_code == 201, made.text
        runtime = self.runtime
        endpoints = WebhookEndpoints(runtime.tasking.database, runtime.resources)
        return (await endpoints.ensure(made.json()))["status"]["endpointPath"]

    async def signed(
        self, sender: str, body: bytes, secret: str = SECRET, *, at: float | None = None
    ) -> dict[str, str]:
        webhook = read_webhook(await self.runtime.resources.get(Key("TaskWebhook", "default", sender)))
        return sign(webhook.scheme, secret.encode(), body, now=at or time.time(), event_id="evt-1")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    settings = load_settings({"home": str(tmp_path)}, {})
    async with Runtime(settings=settings) as runtime:
        transport = httpx.ASGITransport(create_app(runtime, settings=settings, auth=Anonymous()))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            made = Site(http, runtime)
            await made.write("model-endpoints", "mock", {"provider": "mock", "default_model": "m"})
            await made.write("agents", "writer", {"model_ref": "mock", "prompt": "Write."})
            await made.write("tasks", "brief", {"mode": "template", "agent": "writer"})
            yield made


def body_of(sender: str) -> bytes:
    event = {"id": "evt-1", "event_id": "evt-1", "webhookTimestamp": int(time.time() * 1000), "sender": sender}
    return json.dumps(event).encode()


@pytest.mark.parametrize("sender", SENDERS)
async def test_a_delivery_that_was_read_on_its_way_makes_no_second_task(site: Site, sender: str) -> None:
    path, body = await site.declare(sender), body_of(sender)
    headers = await site.signed(sender, body)
    first = await site.http.post(path, content=body, headers=headers)
    assert (first.status_code, first.json().get("duplicate")) == (202, False), first.text

    for number in range(3):
        renamed = {**headers, **dict.fromkeys(NAMES, f"another-{number}"), "webhook-id": f"another-{number}"}
        answer = await site.http.post(path, content=body, headers=renamed)
        told = answer.json()
        assert answer.status_code == 401 or (told["duplicate"], told["task"]) == (True, first.json()["task"]), told


@pytest.mark.parametrize("sender", sorted(set(SENDERS) - {"github", "shopify", "gitlab"}))
async def test_an_old_delivery_is_refused_whatever_its_unsigned_headers_say(site: Site, sender: str) -> None:
    path, then = await site.declare(sender), time.time() - 3600
    body = json.dumps({"id": "e", "event_id": "e", "webhookTimestamp": int(then * 1000)}).encode()
    headers = await site.signed(sender, body, at=then)
    now = str(int(time.time()))
    for moved in ({}, {"X-Timestamp": now}, {"X-Slack-Request-Timestamp": now}, {"webhook-timestamp": now}):
        assert (await site.http.post(path, content=body, headers={**headers, **moved})).status_code == 401


@pytest.mark.parametrize("sender", SENDERS)
async def test_a_short_window_does_not_let_a_delivery_in_again_while_its_time_is_good(site: Site, sender: str) -> None:
    path, body = await site.declare(sender, dedupe_window_seconds=0), body_of(sender)
    headers = await site.signed(sender, body)

    answers = [await site.http.post(path, content=body, headers=headers) for _ in range(2)]

    assert [answer.json().get("duplicate") for answer in answers] == [False, True]


async def test_a_delivery_without_its_signed_time_is_refused(site: Site) -> None:
    path, body = await site.declare("linear"), b'{"action": "create"}'

    answer = await site.http.post(path, content=body, headers=await site.signed("linear", body))

    assert answer.status_code == 401


@pytest.mark.parametrize("hollow", ["whsec_", "whsec_ ", "whsec_AAAA", "whsec_" + base64.b64encode(b"0" * 15).decode()])
async def test_a_secret_with_which_anybody_can_sign_cannot_be_declared(site: Site, hollow: str) -> None:
    for spec in ({"stringData": {"value": hollow}}, {"data": {"value": base64.b64encode(hollow.encode()).decode()}}):
        refused = await site.write("secrets", "hook", spec)

        assert refused.status_code == 422, refused.text
        assert "anybody could sign" in refused.text


@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("weak", ["whsec_", "a", "1234567", "       1"])
async def test_nobody_is_believed_by_a_secret_that_can_be_tried_out(
    site: Site, sender: str, weak: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it does not come from a Secret: the environment of the server."""
    monkeypatch.setenv("FOLIOT_SECRET_HOOK", weak)
    path, body = await site.declare(sender, ""), body_of(sender)
    headers = await site.signed(sender, body, weak)

    answer = await site.http.post(path, content=body, headers=headers)

    assert (answer.status_code, answer.json()["error"]) == (400, "webhook secret resolution failed")
