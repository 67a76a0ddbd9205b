"""Somebody who has read a delivery sends it again, in every sender's way of signing, or signs with a secret that is
none; and somebody who may declare webhooks has the secret itself shown. Over HTTP, on the real application."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from foliot.resources.definitions.task_webhook import PROFILES
from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import Anonymous
from foliot.settings.settings import load_settings
from foliot.store.base import DeclaredBy, Key, Put
from foliot.work.triggers.endpoints import WebhookEndpoints
from foliot.work.triggers.signatures import sign
from foliot.work.triggers.webhook import read_webhook

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
        endpoints = WebhookEndpoints(runtime.inside.tasking.database, runtime.inside.resources)
        return (await endpoints.ensure(made.json()))["status"]["endpointPath"]

    async def signed(
        self, sender: str, body: bytes, secret: str = SECRET, *, at: float | None = None
    ) -> dict[str, str]:
        webhook = read_webhook(await self.runtime.inside.resources.get(Key("TaskWebhook", "default", sender)))
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


# --- whoever declares a webhook never sees what it is signed with ----------------------------------------------------

# Headers that a server, a proxy or the sender may set, and that somebody could name as that of the signature.
CARRIERS = ("", "User-Agent", "X-Event-Type", "X-Gitlab-Event", "X-GitHub-Event", "X-Event-Id", "Content-Type", "X-odd")
LOOKS = ("header.{}", "header. {}", "$.headers['{}']", "header.{}-")


def _leaky(sender: str, carrier: str, number: int) -> dict[str, Any]:
    """A webhook whose every field asks for the header that carries the proof."""
    name = carrier or PROFILES[sender].signature_header
    auth = {"profile": sender, "secret_ref": "hook", **({"signature_header": carrier} if carrier else {})}
    spelt = [name, name.lower(), name.upper(), "Authorization", "Cookie", "X-Gitlab-Token"]
    inputs = {
        f"x{place}": "see {{ " + look.format(each) + " }}"
        for place, (look, each) in enumerate((look, each) for look in LOOKS for each in spelt)
    }
    inputs |= {"event": "{{ event_id }}", "source": "{{ source }}", "body": "$"}
    spec: dict[str, Any] = {"task_ref": "brief", "auth": auth, "payload": {"mode": "json", "inputs": inputs}}
    if number % 3 == 1:
        spec["idempotency"] = {"event_id_header": name}
    if number % 3 == 2 and sender in ("generic", "slack", "standard-webhooks"):
        auth["timestamp_header"] = "X-odd-time"
    return spec


def _files(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(home.rglob("*")) if path.is_file())


async def _everything(site: Site, name: str) -> str:
    """All that can be read about a webhook and its tasks."""
    pages = [f"/v1/task-webhooks/{name}", f"/v1/task-webhooks/{name}/deliveries", "/v1/tasks", "/v1/runs", "/v1/audit"]
    found = [(await site.http.get(page)).text for page in pages]
    for each in json.loads(found[1])["deliveries"]:
        found.append((await site.http.get(f"{pages[1]}/{each['id']}")).text)
        found.append((await site.http.post(f"{pages[1]}/{each['id']}/replay", json={})).text)
    return "".join([*found, (await site.http.get("/v1/tasks")).text])


@pytest.mark.parametrize("sender", SENDERS)
async def test_no_field_of_a_webhook_shows_what_proves_the_sender(site: Site, sender: str, tmp_path: Path) -> None:
    await site.declare(sender)
    text, taken = base64.b64encode(body_of(sender)).decode(), 0
    for number, carrier in enumerate(CARRIERS):
        name, spec = f"leak-{number}", _leaky(sender, carrier, number)
        made = await site.write("task-webhooks", name, spec)
        assert made.status_code == 201, made.text
        trial = {"body": text, "event_id": f"evt-{number}"}
        answer = await site.http.post(f"/v1/task-webhooks/{name}/send-test", json=trial)
        assert answer.status_code == 200, answer.text
        taken += answer.json()["status"] == 202
        path = (await site.http.get(f"/v1/task-webhooks/{name}")).json()["status"]["endpointPath"]
        scheme = read_webhook(await site.runtime.inside.resources.get(Key("TaskWebhook", "default", name))).scheme
        body = body_of(sender) + b" "
        signed = sign(scheme, SECRET.encode(), body, now=time.time(), event_id=f"real-{number}")
        proof = signed[scheme.signature_header]
        extra = {
            "Authorization": f"Bearer {SECRET}",
            "Cookie": f"s={SECRET}",
            "X-Copy": SECRET,
            "X-Gitlab-Token": SECRET,
        }
        sent = await site.http.post(path, content=body, headers={**extra, **signed})
        told = answer.text + sent.text + await _everything(site, name)
        assert SECRET not in told
        assert re.split("[=,]", proof.rstrip("="))[-1] not in told, (carrier, spec)
    assert taken, "some of them make tasks"
    assert SECRET.encode() not in _files(tmp_path)


@pytest.mark.parametrize("sender", SENDERS)
async def test_no_filter_can_ask_about_what_proves_the_sender(site: Site, sender: str) -> None:
    await site.declare(sender)
    name = PROFILES[sender].signature_header.lower()
    asks = [
        f'has(headers["{name}"]) || headers["{name}"] != ""',
        f'headers["{name}"].startsWith("{SECRET[:3]}")',
        f'"{name}" in headers',
        f'headers.exists(each, headers[each].contains("{SECRET[:9]}"))',
        f'text.contains("{SECRET}") || string(event_id).contains("{SECRET[:9]}")',
    ]
    for number, ask in enumerate(asks):
        made = await site.write("task-webhooks", f"ask-{number}", {**_leaky(sender, "", 0), "filter": ask})
        if made.status_code == 422:
            continue
        trial = {"body": base64.b64encode(body_of(sender)).decode(), "event_id": f"evt-{number}"}
        answer = await site.http.post(f"/v1/task-webhooks/ask-{number}/send-test", json=trial)
        assert answer.json()["document"].get("filtered") is True, (ask, answer.text)


@pytest.mark.parametrize("echo", [SECRET, json.dumps(SECRET).replace("w", "\\u0077")[1:-1]], ids=["plain", "escaped"])
async def test_a_sender_that_repeats_its_secret_in_the_body_does_not_hand_it_on(
    site: Site, echo: str, tmp_path: Path
) -> None:
    path = await site.declare("gitlab")
    body = json.dumps({"id": "e", "hook": {"token": "HERE"}}).replace("HERE", echo).encode()
    headers = {**await site.signed("gitlab", body), "X-Gitlab-Event-UUID": f"id-{SECRET}"}

    answer = await site.http.post(path, content=body, headers=headers)

    assert answer.status_code == 202, answer.text
    told = answer.text + await _everything(site, "gitlab")
    assert SECRET not in told
    assert echo not in told
    assert SECRET.encode() not in _files(tmp_path)


@pytest.mark.parametrize("by", [DeclaredBy("ann"), DeclaredBy("root", operator=True)], ids=["author", "operator"])
@pytest.mark.parametrize("kind", ["elsewhere", "also", "unbound", "environment"])
async def test_a_secret_that_is_for_something_else_opens_no_webhook_of_an_author(
    site: Site, kind: str, by: DeclaredBy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever way the webhook came into the store."""
    hosts = {"elsewhere": ["api.example"], "also": ["api.example", "webhook"]}.get(kind, [])
    if kind == "environment":
        monkeypatch.setenv("FOLIOT_SECRET_HOOK", SECRET)
    else:
        assert (await site.write("secrets", "hook", {"stringData": {"value": SECRET}, "hosts": hosts})).is_success
    made = {
        "apiVersion": "foliot.dev/v1",
        "kind": "TaskWebhook",
        "metadata": {"name": "github", "namespace": "default"},
    }
    spec = {"task_ref": "brief", "auth": {"profile": "github", "secret_ref": "hook"}}
    await site.runtime.inside.resources.write([Put({**made, "spec": spec})], by=by)
    path = (await site.http.get("/v1/task-webhooks/github")).json()["status"]["endpointPath"]
    body = body_of("github")

    answer = await site.http.post(path, content=body, headers=await site.signed("github", body))
    trial = {"body": base64.b64encode(b"{}").decode(), "event_id": "e"}
    tried = await site.http.post("/v1/task-webhooks/github/send-test", json=trial)

    refused = not by.operator and kind in ("elsewhere", "environment")
    assert answer.status_code == (400 if refused else 202), answer.text
    assert tried.status_code == (422 if refused else 200), tried.text
    assert SECRET not in tried.text
