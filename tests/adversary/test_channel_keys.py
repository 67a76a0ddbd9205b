"""Whoever knows the key of a channel can be any of its senders: so its value is set only by who may name its users."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.channels.webhook import SCHEME
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.store.access.tokens import SqlTokens
from foliot.store.base import DeclaredBy, Filter, Key, Page, Put
from foliot.work.triggers.signatures import sign
from tests.channels.kit import opened
from tests.taking_missing import TAKES_MISSING

SPACE = "default"  # where agents from Python are
ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "root": (("*",), ("admin",)),
    "admin-a": ((SPACE,), ("admin",)),
    "ima-a": ((SPACE,), ("admin", "impersonator")),
    "author-a": ((SPACE,), ("author",)),
    "carol": ((SPACE,), ("operator", "approver")),
    "admin-b": (("team-b",), ("admin",)),
    "author-b": (("team-b",), ("author",)),
}
LINK = re.compile(r"foliot channels link (\S+)")
APPROVE = re.compile(r"approve ([A-Z2-7]{4}-[A-Z2-7]{4})")


def key(word: str) -> str:
    return "whsec_" + base64.b64encode(word.encode() * 32).decode()[:44]


class Town:
    """A server with channels, the tokens of its people, and what was posted to the endpoint and paid."""

    def __init__(self, runtime: Runtime, http: httpx.AsyncClient) -> None:
        self.runtime = runtime
        self.http = http
        self.tokens: dict[str, str] = {}
        self.posted: list[str] = []
        self.paid: list[str] = []
        self.url = ""
        self._came = asyncio.Condition()
        self._count = 0

    async def took(self, request: web.Request) -> web.Response:
        async with self._came:
            self.posted.append(json.loads(await request.read())["text"])
            self._came.notify_all()
        return web.Response()

    async def shown(self, what: re.Pattern[str]) -> str:
        async with asyncio.timeout(60), self._came:
            await self._came.wait_for(lambda: any(what.search(each) for each in self.posted))
        found = next(found for each in self.posted if (found := what.search(each)))
        return found[1]

    async def ask(self, who: str, method: str, path: str, *, space: str = SPACE, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        if method == "PUT":
            there = (await self.ask("root", "GET", path.partition("?")[0], space=space)).json()
            headers["If-Match"] = there["metadata"]["resourceVersion"]
        params = {"namespace": space, **more.pop("params", {})}
        return await self.http.request(method, path, headers=headers, params=params, **more)

    async def made(self, who: str, kind: str, spec: dict[str, Any], *, name: str = "desk", space: str = SPACE) -> None:
        plural = {"Secret": "secrets", "Channel": "channels", "ReferenceGrant": "reference-grants"}[kind]
        answer = await self.ask(who, "POST", f"/v1/{plural}", json=document(kind, spec, name, space), space=space)
        assert answer.status_code in (200, 201), answer.text

    async def channel(self, who: str = "root", *, ref: str = "desk:key", **more: Any) -> None:
        spec = {"type": "webhook", "agent": "helper", "endpoint": self.url, "auth": {"secretRef": ref}, **more}
        await self.made(who, "Channel", spec)

    async def write(self, signed_with: str, sender: str, text: str, **more: Any) -> httpx.Response:
        self._count += 1
        body = json.dumps({"user": sender, "text": text, **more}).encode()
        signed = sign(SCHEME, key(signed_with).encode(), body, now=time.time(), event_id=f"m{self._count}")
        return await self.http.post(f"/v1/channel-messages/{SPACE}/desk", content=body, headers=signed)

    async def speaks(self, signed_with: str, sender: str) -> str:
        """Whom a sender is here; blank for nobody."""
        answer = (await self.write(signed_with, sender, "/whoami")).json()
        found = re.match(r"You are (\S+) ", answer.get("reply", ""))
        return found[1] if found else ""

    async def linked(self, who: str, signed_with: str, sender: str) -> None:
        code = LINK.search((await self.write(signed_with, sender, "hi")).json()["reply"])
        assert code is not None
        answer = await self.ask(who, "POST", "/v1/channel-links", json={"code": code[1]})
        assert answer.status_code == 200, answer.text

    def ways(self, value: str, space: str = SPACE) -> list[tuple[str, str, dict[str, Any]]]:
        """Every way to give the Secret another value."""
        whole = document("Secret", secret(value), "desk", space)
        return [
            ("POST", "/v1/secrets", whole),
            ("PUT", "/v1/secrets/desk", whole),
            ("PATCH", "/v1/secrets/desk", {"spec": {"stringData": {"key": key(value)}}}),
            ("POST", "/v1/apply", whole),
        ]

    async def past_the_door(self, who: str, value: str) -> None:
        """The value of the Secret, set by somebody whom the server would have refused (an older one has not)."""
        data = {"key": base64.b64encode(key(value).encode()).decode()}
        put = Put(document("Secret", {"data": data, "hosts": ["127.0.0.1"]}, "desk", SPACE))
        await self.runtime.inside.resources.write([put], by=DeclaredBy(who))


def document(kind: str, spec: dict[str, Any], name: str, space: str) -> dict[str, Any]:
    return {
        "apiVersion": "foliot.dev/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": space},
        "spec": spec,
    }


def secret(value: str) -> dict[str, Any]:
    return {"stringData": {"key": key(value)}, "hosts": ["127.0.0.1"]}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def town(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Town]:
    sqlite = request.param == "sqlite"
    store = f"sqlite:///{tmp_path}/foliot.db" if sqlite else request.getfixturevalue("postgres_url")
    async with opened(store, tmp_path, {}) as runtime:
        auth = TokenAuth(runtime.inside.database, local=False)
        app = create_app(runtime, settings=runtime.inside.settings, auth=auth)
        answers, server = web.Application(), None
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://x.test", event_hooks=TAKES_MISSING) as http,
        ):
            made = Town(runtime, http)

            @tool(effect="once")
            def refund(order: str) -> str:
                """Refund an order."""
                made.paid.append(order)
                return "paid"

            model = ScriptedModel([{"call": {"refund": {"order": "A-1"}}}, *[{"say": "Done."}] * 9])
            runtime.inside.know(Agent("helper", model=model, tools=[refund]))
            tokens = SqlTokens(runtime.inside.database)
            for name, (spaces, roles) in ROLES.items():
                _, made.tokens[name] = await tokens.create(name, namespaces=spaces, roles=roles, now=time.time())
            answers.router.add_post("/answers", made.took)
            server = TestServer(answers)
            await server.start_server()
            made.url = f"http://127.0.0.1:{server.port}/answers"
            yield made
            await server.close()
        await auth.close()


LISTED = {"users": [{"id": "al", "user": "alice"}]}


# --- at the door -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [LISTED, {}], ids=["listed", "linked"])
async def test_an_admin_does_not_become_the_users_of_a_channel_by_its_key(town: Town, more: dict[str, Any]) -> None:
    await town.made("root", "Secret", secret("k"))
    await town.channel(**more)
    await town.linked("carol", "k", "7")
    for who in ("author-a", "admin-a"):
        for method, path, body in town.ways("stolen"):
            refused = await town.ask(who, method, path, json=body)
            assert (refused.status_code, "Channel/desk is signed with it" in refused.text) == (403, True), refused.text
        assert (await town.write("stolen", "al", "/whoami")).status_code == 401
    for who, value in (("ima-a", "by ima"), ("root", "by root")):
        for method, path, body in town.ways(value):
            done = await town.ask(who, method, path, json=body)
            assert done.status_code in (200, 201), (who, method, done.text)
    assert await town.speaks("by root", "7") == "carol"


async def test_a_secret_that_comes_after_its_channel_is_a_key_too(town: Town) -> None:
    """Also one that stands before a variable of the environment."""
    await town.channel(**LISTED)
    for who in ("author-a", "admin-a"):
        refused = await town.ask(who, "POST", "/v1/secrets", json=document("Secret", secret("k"), "desk", SPACE))
        assert refused.status_code == 403, refused.text
    await town.made("ima-a", "Secret", secret("k"))
    assert await town.speaks("k", "al") == "alice"


async def test_an_author_of_another_namespace_does_not_speak_by_a_secret_that_was_granted(town: Town) -> None:
    grant = {"from": [{"namespace": SPACE, "kind": "Channel"}], "to": [{"kind": "Secret", "name": "desk"}]}
    await town.made("root", "Secret", secret("k"), space="team-b")
    await town.made("admin-b", "ReferenceGrant", grant, space="team-b")
    await town.channel(ref="team-b/desk:key", **LISTED)
    assert await town.speaks("k", "al") == "alice"
    for who in ("author-b", "admin-b"):
        for method, path, body in town.ways("stolen", "team-b"):
            refused = await town.ask(who, method, path, json=body, space="team-b")
            assert refused.status_code == 403, refused.text
            assert "Channel/" not in refused.text  # what others declare is not told to who sees nothing of it
            assert SPACE not in refused.text
    assert await town.speaks("k", "al") == "alice"


def granting(kind: str) -> dict[str, Any]:
    return {"from": [{"namespace": SPACE, "kind": kind}], "to": [{"kind": "Secret", "name": "desk"}]}


async def test_what_has_lost_its_grant_does_not_keep_a_secret_from_its_owner(town: Town) -> None:
    await town.made("root", "Secret", secret("k"), space="team-b")
    await town.made("admin-b", "ReferenceGrant", granting("Channel"), space="team-b")
    await town.channel(ref="team-b/desk:key", **LISTED)
    assert await town.speaks("k", "al") == "alice"
    withdrawn = await town.ask("admin-b", "DELETE", "/v1/reference-grants/desk", space="team-b")
    assert withdrawn.status_code in (200, 204), withdrawn.text
    for who in ("author-b", "admin-b"):
        for method, path, body in town.ways(f"by {who}", "team-b"):
            done = await town.ask(who, method, path, json=body, space="team-b")
            assert done.status_code in (200, 201), (who, method, done.text)
    assert (await town.write("by admin-b", "al", "/whoami")).status_code >= 400
    # The grant again: whoever has set the value meanwhile speaks for nobody by it.
    await town.made("admin-b", "ReferenceGrant", granting("Channel"), space="team-b")
    async with asyncio.timeout(60):
        while (answer := await town.write("by admin-b", "al", "/whoami")).status_code in (401, 404, 503):
            await asyncio.sleep(0.05)
    assert "You are alice" not in answer.text
    refused = await town.ask(
        "admin-b", "POST", "/v1/secrets", json=document("Secret", secret("x"), "desk", "team-b"), space="team-b"
    )
    assert refused.status_code == 403, refused.text


async def test_a_grant_of_another_kind_or_secret_keeps_nobody_from_a_secret(town: Town) -> None:
    await town.made("root", "Secret", secret("k"), space="team-b")
    await town.made("admin-b", "ReferenceGrant", granting("Channel"), space="team-b")
    await town.channel(ref="team-b/desk:key", **LISTED)
    for changed in (granting("Tool"), {**granting("Channel"), "to": [{"kind": "Secret", "name": "other"}]}):
        await town.made("admin-b", "ReferenceGrant", changed, space="team-b")
        done = await town.ask(
            "author-b", "POST", "/v1/secrets", json=document("Secret", secret("x"), "desk", "team-b"), space="team-b"
        )
        assert done.status_code == 200, done.text
    for wide in ({"from": [{"namespace": "*"}], "to": [{"kind": "Secret"}]}, granting("Channel")):
        await town.made("admin-b", "ReferenceGrant", wide, space="team-b")
        refused = await town.ask(
            "admin-b", "POST", "/v1/secrets", json=document("Secret", secret("y"), "desk", "team-b"), space="team-b"
        )
        assert refused.status_code == 403, refused.text


async def test_a_webhook_is_not_signed_again_with_a_value_that_was_set_while_its_grant_was_gone(town: Town) -> None:
    """Of a webhook nothing asks with each call who set the value: so it is asked of whoever grants it anew."""
    await town.made("root", "Secret", {**secret("k"), "hosts": ["webhook"]}, space="team-b")
    await town.made("admin-b", "ReferenceGrant", granting("TaskWebhook"), space="team-b")
    hook = {"task_ref": "job", "auth": {"profile": "generic", "secretRef": "team-b/desk:key"}}
    job = document("Task", {"agent": "helper", "mode": "template"}, "job", SPACE)
    for plural, body in (("tasks", job), ("task-webhooks", document("TaskWebhook", hook, "hook", SPACE))):
        made = await town.ask("root", "POST", f"/v1/{plural}", json=body)
        assert made.status_code in (200, 201), made.text
    new = document("Secret", {**secret("mine"), "hosts": ["webhook"]}, "desk", "team-b")
    refused = await town.ask("admin-b", "POST", "/v1/secrets", json=new, space="team-b")
    assert refused.status_code == 403, refused.text
    same = await town.ask(
        "admin-b",
        "POST",
        "/v1/apply",
        json=document("ReferenceGrant", granting("TaskWebhook"), "desk", "team-b"),
        space="team-b",
    )
    assert same.status_code == 200, same.text  # what stands may be declared again
    await town.ask("admin-b", "DELETE", "/v1/reference-grants/desk", space="team-b")
    await town.made("admin-b", "Secret", new["spec"], space="team-b")
    for again in (granting("TaskWebhook"), {"from": [{"namespace": "*"}], "to": [{"kind": "Secret"}]}):
        body = document("ReferenceGrant", again, "desk", "team-b")
        refused = await town.ask("admin-b", "POST", "/v1/reference-grants", json=body, space="team-b")
        assert refused.status_code == 403, refused.text
        assert "hook" not in refused.text.lower().replace("taskwebhook", "")
    await town.made("admin-b", "ReferenceGrant", granting("Channel"), space="team-b")
    await town.made("root", "ReferenceGrant", granting("TaskWebhook"), space="team-b")


async def test_a_secret_is_written_without_a_look_at_namespaces_that_were_granted_nothing(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[Filter] = []
    store, list_ = town.runtime.inside.resources, town.runtime.inside.resources.list

    async def noted(filter: Filter, **more: Any) -> Page:
        listed.append(filter)
        return await list_(filter, **more)

    await town.channel()
    monkeypatch.setattr(store, "list", noted)
    await town.made("author-b", "Secret", secret("k"), space="team-b")
    assert listed
    assert {each.namespace for each in listed if each.kind == "Channel"} == {"team-b"}


async def test_a_value_that_names_nobody_is_set_by_who_may_declare_the_channel(town: Town) -> None:
    await town.made("root", "Secret", secret("k"))
    await town.channel()
    refused = await town.ask("author-a", "POST", "/v1/secrets", json=document("Secret", secret("x"), "desk", SPACE))
    assert refused.status_code == 403
    await town.made("admin-a", "Secret", secret("k2"))
    await town.linked("carol", "k2", "7")
    await town.made("admin-a", "Secret", secret("k3"))  # their own key: who linked under it goes on
    assert await town.speaks("k3", "7") == "carol"
    await town.made("root", "Secret", secret("k4"))
    assert await town.speaks("k4", "7") == "carol"
    await town.linked("carol", "k4", "8")
    refused = await town.ask("admin-a", "POST", "/v1/secrets", json=document("Secret", secret("x"), "desk", SPACE))
    assert (refused.status_code, "impersonator" in refused.text) == (403, True)  # 8 was linked under the operator's


# --- and behind it ---------------------------------------------------------------------------------------------------


async def test_a_value_that_was_set_past_the_door_names_nobody(town: Town) -> None:
    await town.made("root", "Secret", secret("k"))
    await town.channel(**LISTED)
    await town.linked("carol", "k", "7")
    for who in ("admin-a", "author-a", "author-b", ""):
        await town.past_the_door(who, f"by {who}")
        assert (await town.speaks(f"by {who}", "al"), await town.speaks(f"by {who}", "7")) == ("", ""), who
    await town.past_the_door("ima-a", "ima")  # may name the listed; the linked have not agreed to it
    assert (await town.speaks("ima", "al"), await town.speaks("ima", "7")) == ("alice", "")
    await town.made("root", "Secret", secret("anew"))
    assert (await town.speaks("anew", "al"), await town.speaks("anew", "7")) == ("alice", "carol")


async def test_whoever_changes_the_rest_of_a_secret_does_not_vouch_for_its_value(town: Town) -> None:
    await town.made("root", "Secret", secret("k"))
    await town.channel(**LISTED)
    await town.past_the_door("admin-a", "stolen")
    kept = {"data": {"key": "***"}, "hosts": ["127.0.0.1", "hooks.example"]}
    whole = document("Secret", kept, "desk", SPACE)
    for method, path, body, params in (
        ("PUT", "/v1/secrets/desk", whole, {}),
        ("PATCH", "/v1/secrets/desk", {"spec": {"hosts": ["127.0.0.1"]}}, {}),
        ("POST", "/v1/apply", whole, {"forceConflicts": "true"}),
        ("PATCH", "/v1/secrets/desk", {"spec": {"hosts": ["127.0.0.1"]}}, {"takeOver": "true"}),
        ("PUT", "/v1/secrets/desk", whole, {"takeOver": "true"}),
    ):
        done = await town.ask("root", method, path, json=body, params=params)
        assert done.status_code in (200, 201), done.text
        assert await town.speaks("stolen", "al") == "", (method, path)
    shown = (await town.ask("root", "GET", "/v1/secrets/desk")).text
    assert "valuesBy" not in shown
    found = await town.runtime.inside.resources.reveal(Key("Secret", SPACE, "desk"))
    assert found.set_by == {"key": DeclaredBy("admin-a")}


async def test_who_set_a_value_is_never_taken_from_a_document(town: Town) -> None:
    await town.channel()
    body = document("Secret", secret("k"), "desk", SPACE)
    body["metadata"]["valuesBy"] = {"key": {"user": "root", "operator": True}}
    answer = await town.ask("admin-a", "POST", "/v1/secrets", json=body)
    assert (answer.status_code, "valuesBy" in answer.text) == (422, True)
    put = Put({**body, "spec": {"data": {"key": "QUJD"}}})
    await town.runtime.inside.resources.write([put], by=DeclaredBy("admin-a"))
    found = await town.runtime.inside.resources.reveal(Key("Secret", SPACE, "desk"))
    assert found.set_by == {"key": DeclaredBy("admin-a")}


async def test_nobody_approves_by_the_key_what_they_have_asked_for_by_it(town: Town) -> None:
    """The channel is the operator's, its key is not: a linked account says nothing more than who set the key."""
    rule = {"tool_ref": "refund", "operation_rules": [{"operation_class": "*", "verdict": "approval_required"}]}
    rule["four_eyes"] = True
    await town.runtime.inside.resources.write([Put(document("ToolPermission", rule, "ask", SPACE))])
    await town.made("admin-a", "Secret", secret("k"))
    await town.channel(groups=[{"id": "g", "respond": "always"}])
    await town.linked("ima-a", "k", "al")
    await town.linked("carol", "k", "7")
    asked = await town.write("k", "al", "Refund A-1", group="g")
    assert asked.status_code == 202, asked.text
    code = await town.shown(APPROVE)
    decided = (await town.write("k", "7", f"approve {code}", group="g")).json()
    assert "admin-a says who writes here" in decided["reply"], decided
    assert town.paid == []
