"""Deliveries on real stores: the table of steps, repeats, forgeries, rotation, filters, the log."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
from typing import Any

import pytest
from msgspec.structs import replace

from foliot.errors import Conflict, Denied, NotFound, Unavailable
from foliot.resources.validate import validate_document
from foliot.store.base import Database, Delete, Document, Key, Put
from foliot.store.resources.database import SqlResourceStore
from foliot.store.secrets.keyring import keyring_from_text
from foliot.store.triggers import WebhookDelivery, counts_of, deliveries_of, delivery_of
from foliot.work.triggers.deliveries import WebhookAnswer, Webhooks
from foliot.work.triggers.endpoints import WebhookEndpoints
from foliot.work.triggers.signatures import sign
from foliot.work.triggers.webhook import Webhook, read_webhook
from tests.work.task_book import Passing, TaskBook

NOW = 1_780_300_800.0
SECRET = "correct-horse-battery"
BODY = b'{"ref": "refs/heads/main", "commits": [{"id": "c1"}, {"id": "c2"}], "n": 3}'


class Gate:
    """One store with a webhook, and deliveries to it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.book = TaskBook()
        self.now = NOW
        self.store = SqlResourceStore(database, lambda: keyring_from_text("00" * 32), now=lambda: self.now)
        self.webhooks = self.another()
        self.endpoints = WebhookEndpoints(database, self.store, clock=lambda: self.now)

    def another(self) -> Webhooks:
        return Webhooks(self.database, self.store, self.book, environ={})

    async def secret(self, name: str = "hook", **values: str) -> None:
        spec = {"stringData": values or {"value": SECRET}}
        document, problems = validate_document({"kind": "Secret", "metadata": {"name": name}, "spec": spec})
        assert document is not None, problems
        await self.store.write([Put(document)])

    async def declare(self, profile: str = "generic", *, name: str = "push", **spec: Any) -> Document:
        auth = {"profile": profile, "secret_ref": "hook", **spec.pop("auth", {})}
        given = {"task_ref": "brief", "auth": auth, **spec}
        document, problems = validate_document({"kind": "TaskWebhook", "metadata": {"name": name}, "spec": given})
        assert document is not None, problems
        (written,) = await self.store.write([Put(document)])
        return await self.endpoints.ensure(written.document)

    async def get(self, name: str = "push") -> Document:
        return await self.store.get(Key("TaskWebhook", "default", name))

    async def webhook(self, name: str = "push") -> Webhook:
        return read_webhook(await self.get(name))

    async def send(
        self,
        event_id: str = "e1",
        body: bytes = BODY,
        *,
        secret: str = SECRET,
        headers: dict[str, str] | None = None,
        by: Webhooks | None = None,
        endpoint: str | None = None,
        name: str = "push",
    ) -> WebhookAnswer:
        document = await self.get(name)
        scheme = read_webhook(document).scheme
        signed = sign(scheme, secret.encode(), body, now=self.now, event_id=event_id)
        address = document["status"]["endpointID"] if endpoint is None else endpoint
        return await (by or self.webhooks).deliver(address, {**signed, **(headers or {})}, body, self.now)

    async def log(self, name: str = "push") -> list[WebhookDelivery]:
        """Newest first."""
        return await deliveries_of(self.database, (await self.get(name))["metadata"]["uid"])

    async def outcomes(self) -> list[tuple[str, str]]:
        """Oldest first."""
        return [(each.outcome, each.reason) for each in reversed(await self.log())]


@pytest.fixture
async def gate(opened_store: Database) -> Gate:
    made = Gate(opened_store)
    await made.secret()
    return made


def refused(status: int, text: str) -> WebhookAnswer:
    return WebhookAnswer(status, {"accepted": False, "error": text})


async def test_a_signed_delivery_makes_a_task_after_the_template(gate: Gate) -> None:
    await gate.declare()
    answer = await gate.send("e1")
    (name,) = gate.book.names
    assert name == f"push-{hashlib.sha256(b'e1').hexdigest()[:16]}"
    assert answer == WebhookAnswer(
        202,
        {
            "accepted": True,
            "duplicate": False,
            "event_id": "e1",
            "task": f"default/{name}",
            "message": "delivery accepted",
        },
    )
    command = gate.book.commands[f"default/{name}"]
    assert command.input == {
        "webhook_payload": BODY.decode(),
        "webhook_event_id": "e1",
        "webhook_received_at": "2026-06-01T08:00:00.000000Z",
        "webhook_source": "generic",
    }
    assert command.labels["foliot.dev/task-webhook"] == "push"
    assert command.labels["foliot.dev/webhook-event-id"] == name.removeprefix("push-")
    assert command.by == "webhook:default/push"
    assert await gate.outcomes() == [("accepted", "accepted")]


async def test_a_repeated_delivery_finds_the_task_of_the_first(gate: Gate) -> None:
    await gate.declare()
    first = await gate.send("e1")
    again = await gate.send("e1", by=gate.another())
    assert again.status == 202
    assert again.document == {**first.document, "duplicate": True, "message": "duplicate delivery"}
    assert len(gate.book.names) == 1
    await gate.send("e2", b'{"n": 4}')
    assert len(gate.book.names) == 2


async def test_the_same_delivery_many_times_at_once_makes_one_task(gate: Gate) -> None:
    await gate.declare()
    answers = await asyncio.gather(*(gate.send("e1", by=gate.another()) for _ in range(8)))
    assert {answer.document["task"] for answer in answers} == {f"default/{gate.book.names[0]}"}
    assert len(gate.book.names) == 1
    assert sorted(answer.document["duplicate"] for answer in answers) == [False] + [True] * 7


async def test_after_the_window_the_same_id_is_a_new_event(gate: Gate) -> None:
    await gate.declare(idempotency={"dedupe_window_seconds": 60})
    first = await gate.send("e1")
    gate.now += 59
    assert (await gate.send("e1")).document["duplicate"]
    gate.now += 2
    later = await gate.send("e1")
    assert later.document["duplicate"] is False
    assert later.document["task"] != first.document["task"]
    assert len(gate.book.names) == 2
    assert (await gate.send("e1")).document["task"] == later.document["task"]


async def test_an_id_or_an_address_that_is_none(gate: Gate) -> None:
    document = await gate.declare()
    assert await gate.send(endpoint="") == refused(400, "endpoint id is required")
    for unknown in ("0" * 32, "x" * 1000, "é", "a\x00b"):
        assert await gate.send(endpoint=unknown) == refused(404, "webhook endpoint not found")
    assert len(document["status"]["endpointID"]) == 32
    assert document["status"]["endpointPath"] == f"/v1/webhook-deliveries/{document['status']['endpointID']}"
    assert await gate.log() == []


async def test_each_step_that_fails_says_so_in_its_words(gate: Gate) -> None:
    await gate.declare()
    large = await gate.send("e1", b"x" * (1024 * 1024 + 1))
    unreadable = await gate.webhooks.deliver((await gate.get())["status"]["endpointID"], {}, None, gate.now)
    broken = await gate.send("e1", b"\xff\xfe")
    assert {large.status, unreadable.status, broken.status} == {400}
    assert large == unreadable == broken == refused(400, "invalid webhook payload")
    assert await gate.send("e1", secret="wrong") == refused(401, "signature verification failed")
    assert await gate.send("") == refused(400, "missing event id")
    gate.book.templates = set()
    assert await gate.send("e1") == refused(400, "webhook task creation failed")
    gate.book.templates = {"default/brief"}
    assert (await gate.send("e1")).document["duplicate"] is False  # what made no task may be sent again

    await gate.declare(suspend=True)
    assert await gate.send("e9") == refused(409, "webhook is suspended")
    await gate.declare(auth={"secret_ref": "nothing"})
    assert await gate.send("e9") == refused(400, "webhook secret resolution failed")
    assert [reason for _, reason in await gate.outcomes()] == [
        *["invalid_body"] * 3,
        "signature_invalid",
        "missing_event_id",
        "task_create_error",
        "accepted",
        "suspended",
        "secret_error",
    ]
    details = {each.reason: each.detail for each in await gate.log()}
    assert details["signature_invalid"] == "signature mismatch"
    assert details["task_create_error"] == 'task template "brief" not found'


async def test_json_that_is_asked_for_must_be_json(gate: Gate) -> None:
    await gate.declare(payload={"mode": "json", "input_key": "body"})
    for wrong in (b"{", b"NaN", b"[" * 100_000, b"plain"):
        assert (await gate.send("e1", wrong)).status == 400
    assert (await gate.send("e1", b'{"a": 1}')).status == 202
    (command,) = gate.book.commands.values()
    assert command.input["body"] == '{"a": 1}'


async def test_parts_of_the_body_become_input(gate: Gate) -> None:
    inputs = {
        "topic": "Look at {{ $.ref }} ({{ event_id }}, {{ header.X-Event-Type }})",
        "first": "$.commits[0].id",
        "last": "$.commits[-1].id",
        "all": "$.commits[*].id",
        "number": "$.n",
        "nothing": "$.not.there",
        "tricky": "$.hole",
    }
    await gate.declare(payload={"inputs": inputs})
    body = json.dumps({**json.loads(BODY), "hole": "{{ event_id }} \ud800 \x00"}).encode()
    await gate.send("e1", body, headers={"x-event-type": "push"})
    (command,) = gate.book.commands.values()
    mapped = {name: command.input[name] for name in inputs if name in command.input}
    assert mapped == {
        "topic": "Look at refs/heads/main (e1, push)",
        "first": "c1",
        "last": "c2",
        "all": '["c1","c2"]',
        "number": "3",
        "tricky": "{{ event_id }} \ufffd \ufffd",
    }


async def test_a_filter_leaves_out_what_is_not_wanted(gate: Gate) -> None:
    await gate.declare("github", filter='event == "push" && body.ref == "refs/heads/main"')
    assert (await gate.send("e1", headers={"X-GitHub-Event": "push"})).document["accepted"] is True
    left_out = await gate.send("e2", headers={"X-GitHub-Event": "issues"})
    assert left_out.status == 202
    assert left_out.document == {
        "accepted": False,
        "filtered": True,
        "event_id": "e2",
        "message": "delivery filtered",
    }
    other = await gate.send("e3", b"{}", headers={"X-GitHub-Event": "push"})
    assert other.document["filtered"] is True
    assert "cannot be evaluated" in (await gate.log())[0].detail
    assert len(gate.book.names) == 1


@pytest.mark.parametrize(
    ("profile", "body", "event"),
    [
        ("stripe", b'{"id": "evt_1", "type": "invoice.paid"}', "invoice.paid"),
        ("slack", b'{"event_id": "Ev1", "event": {"type": "app_mention"}}', "app_mention"),
        ("gitlab", b"{}", ""),
        ("linear", b'{"webhookTimestamp": 1780300800000}', ""),
        ("shopify", b"{}", ""),
        ("standard-webhooks", b'{"type": "user.created"}', "user.created"),
    ],
)
async def test_other_senders_are_understood(profile: str, body: bytes, event: str, gate: Gate) -> None:
    await gate.declare(profile, filter=f'event == "{event}"')
    for duplicate in (False, True):
        answer = await gate.send("id-1", body)
        assert answer.document["duplicate"] is duplicate, answer
    assert answer.document["event_id"] == {"stripe": "evt_1", "slack": "Ev1"}.get(profile, "id-1")


async def test_slack_hears_its_challenge_only_if_it_signed_it(gate: Gate) -> None:
    await gate.declare("slack")
    body = b'{"type": "url_verification", "challenge": "3eZb"}'
    assert await gate.send("", body) == WebhookAnswer(200, {"challenge": "3eZb"})
    assert (await gate.send("", body, secret="wrong")).status == 401
    assert gate.book.names == []


async def test_a_command_of_slack_has_no_id_and_is_known_by_what_was_signed(gate: Gate) -> None:
    await gate.declare("slack")
    first = await gate.send("", b"command=%2Fweather")
    again = await gate.send("", b"command=%2Fweather")
    gate.now += 1
    later = await gate.send("", b"command=%2Fweather")
    assert [each.document["duplicate"] for each in (first, again, later)] == [False, True, False]


# --- attacks ---------------------------------------------------------------------------------------------------------


async def test_a_captured_delivery_is_no_good_later(gate: Gate) -> None:
    document = await gate.declare()
    webhook = await gate.webhook()
    captured = sign(webhook.scheme, SECRET.encode(), BODY, now=gate.now, event_id="e1")
    gate.now += 301
    answer = await gate.webhooks.deliver(document["status"]["endpointID"], captured, BODY, gate.now)
    assert answer == refused(401, "signature verification failed")


async def test_another_event_id_for_the_same_signature_counts_where_that_is_declared(gate: Gate) -> None:
    await gate.declare("github", idempotency={"same_signature": "accept"})
    for id in ("e1", "e2"):
        assert (await gate.send(id)).document["duplicate"] is False


async def test_another_event_id_for_the_same_signature_counts_once(gate: Gate) -> None:
    await gate.declare("github")
    first = await gate.send("e1")
    forged = await gate.send("e2")  # the id is not signed, so anybody who listened can change it
    assert forged.document["duplicate"] is True
    assert forged.document["task"] == first.document["task"]
    assert len(gate.book.names) == 1


async def test_secrets_can_be_changed_without_a_moment_in_which_nothing_is_believed(gate: Gate) -> None:
    await gate.secret("hook", a="old-secret-value", b="new-secret-value")
    await gate.declare(auth={"secret_ref": "hook"})
    assert (await gate.send("e1", secret="old-secret-value")).status == 202  # the first key
    assert (await gate.send("e2", secret="new-secret-value")).status == 401
    await gate.declare(auth={"secret_ref": "hook:b", "secret_refs": ["hook:a", "gone"]})
    assert (await gate.send("e2", secret="new-secret-value")).status == 202
    assert (await gate.send("e3", secret="old-secret-value")).status == 202
    await gate.declare(auth={"secret_ref": "hook:b"})
    assert (await gate.send("e4", secret="old-secret-value")).status == 401


async def test_a_secret_of_another_namespace_is_not_used(gate: Gate) -> None:
    grant = {
        "kind": "ReferenceGrant",
        "metadata": {"name": "hook", "namespace": "other"},
        "spec": {"from": [{"namespace": "default"}], "to": [{"kind": "Secret"}]},
    }
    with pytest.raises(Denied, match="may not refer to a Secret of namespace 'other'"):
        await gate.declare(auth={"secret_ref": "other/hook"})
    value = base64.b64encode(SECRET.encode()).decode()
    secret = {"kind": "Secret", "metadata": {"name": "hook", "namespace": "other"}, "spec": {"data": {"value": value}}}
    await gate.store.write([Put(grant), Put(secret)])
    await gate.declare(auth={"secret_ref": "other/hook"})
    assert (await gate.send("e0")).status == 202
    await gate.store.write([Delete(Key("ReferenceGrant", "other", "hook"))])
    assert await gate.send() == refused(400, "webhook secret resolution failed")
    assert "namespace" in (await gate.log())[0].detail


async def test_the_environment_can_provide_the_secret(gate: Gate) -> None:
    await gate.declare(auth={"secret_ref": "from-env"})
    there = Webhooks(gate.database, gate.store, gate.book, environ={"FOLIOT_SECRET_FROM_ENV": SECRET})
    assert (await gate.send(by=there)).status == 202


async def test_an_address_can_be_changed_at_once_or_with_some_time(gate: Gate) -> None:
    old = (await gate.declare())["status"]["endpointID"]
    fresh = (await gate.endpoints.rotate(await gate.get(), grace=60))["status"]["endpointID"]
    assert fresh != old
    assert (await gate.send("e1", endpoint=old)).status == 202
    assert (await gate.send("e2", endpoint=fresh)).status == 202
    gate.now += 61
    assert (await gate.send("e3", endpoint=old)).status == 404
    newest = (await gate.endpoints.rotate(await gate.get()))["status"]["endpointID"]
    assert (await gate.send("e4", endpoint=fresh)).status == 404
    assert (await gate.send("e5", endpoint=newest)).status == 202


async def test_the_address_of_a_deleted_webhook_does_not_reach_its_successor(gate: Gate) -> None:
    old = (await gate.declare())["status"]["endpointID"]
    await gate.store.write([Delete(Key("TaskWebhook", "default", "push"))])
    again = await gate.declare()
    assert again["status"]["endpointID"] != old
    assert (await gate.send(endpoint=old)).status == 404


async def test_addresses_tell_nothing_of_names(gate: Gate) -> None:
    found = {(await gate.declare(name=f"w{number}"))["status"]["endpointID"] for number in range(20)}
    assert len(found) == 20


async def test_more_than_the_rate_is_refused_and_told_when_to_come_again(gate: Gate) -> None:
    await gate.declare(rate_limit={"requests": 2, "per": "10s"})
    answers = [await gate.send(f"e{number}") for number in range(4)]
    assert [answer.status for answer in answers] == [202, 202, 429, 429]
    assert answers[2].document["error"] == "webhook rate limit exceeded"
    assert int(answers[2].headers["Retry-After"]) >= 5
    gate.now += 10.1
    assert (await gate.send("e2")).status == 202
    for _ in range(50):
        assert (await gate.send("x", secret="wrong")).status == 401  # who cannot sign uses up nobody's rate
    gate.now += 5.1
    assert (await gate.send("e3")).status == 202


async def test_a_flood_of_forgeries_is_counted_and_hardly_written(gate: Gate) -> None:
    await gate.declare()
    for _ in range(200):
        await gate.send("x", secret="wrong")
    assert len(await gate.log()) == 20
    gate.now += 2
    await gate.send("x", secret="wrong")
    uid = (await gate.get())["metadata"]["uid"]
    assert (await counts_of(gate.database, uid)).rejected == 201


async def test_nothing_secret_is_kept(gate: Gate, store_url: str) -> None:
    await gate.declare("gitlab")
    secret_headers = {"Authorization": "Bearer abc-def-ghi", "Cookie": "session=abcdef", "User-Agent": "GitLab/17"}
    await gate.send("e1", headers=secret_headers)
    await gate.send("e2", b'{"echo": "' + SECRET.encode() + b'"}')
    await gate.send("e3", secret="wrong-" + SECRET)
    kept = [await delivery_of(gate.database, (await gate.webhook()).uid, each.id) for each in await gate.log()]
    text = repr(kept) + json.dumps(await gate.get())
    for hidden in (SECRET, "abc-def-ghi", "session="):
        assert hidden not in text
    assert "GitLab/17" in text
    assert [each.body is not None for each in kept if each] == [False, False, True]


# --- trouble ---------------------------------------------------------------------------------------------------------


async def test_who_was_killed_between_taking_and_making_has_lost_nothing(gate: Gate) -> None:
    await gate.declare()

    class Died(BaseException):
        pass

    for point in ("trouble", "dies_after"):
        setattr(gate.book, point, Died())
        with pytest.raises(Died):
            await gate.send(point, point.encode())
        answer = await gate.send(point, point.encode(), by=gate.another())
        assert answer.status == 202
        assert answer.document["task"].startswith("default/push-")
    assert len(gate.book.names) == 2


async def test_trouble_that_passes_is_503_and_the_next_try_finds_the_same_task(gate: Gate) -> None:
    await gate.declare()
    gate.book.dies_after = Passing("the store is away")
    assert await gate.send() == refused(503, "failed to process webhook")
    assert (await gate.send()).document["task"] == f"default/{gate.book.names[0]}"
    assert len(gate.book.names) == 1


async def test_a_store_that_does_not_answer_is_503(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    await gate.declare()
    address = (await gate.get())["status"]["endpointID"]

    async def away(*_: object, **__: object) -> Any:
        raise Unavailable("the store is away")

    monkeypatch.setattr(gate.database, "read", away)
    assert await gate.webhooks.deliver(address, {}, BODY, gate.now) == refused(503, "failed to process webhook")


# --- the log, replays, the status -----------------------------------------------------------------------------------


async def test_a_signed_delivery_can_be_replayed(gate: Gate) -> None:
    await gate.declare()
    gate.book.templates = set()
    await gate.send("e1")
    (failed,) = await gate.log()
    gate.book.templates = {"default/brief"}
    gate.now += 3600
    answer = await gate.webhooks.replay(await gate.webhook(), failed.id, gate.now, by="ada")
    assert answer.document["event_id"] == "e1"
    command = gate.book.commands[answer.document["task"]]
    assert command.input["webhook_payload"] == BODY.decode()
    assert command.by == "ada"
    again = await gate.webhooks.replay(await gate.webhook(), failed.id, gate.now + 1)
    assert again.document["task"] != answer.document["task"]
    assert (await gate.log())[0].detail == f"replay of {failed.id}"

    with pytest.raises(NotFound):
        await gate.webhooks.replay(await gate.webhook(), "nothing", gate.now)
    await gate.send("e2", secret="wrong")
    with pytest.raises(Conflict, match="was not kept"):
        await gate.webhooks.replay(await gate.webhook(), (await gate.log())[0].id, gate.now)


async def test_only_so_many_deliveries_are_remembered(gate: Gate) -> None:
    await gate.declare(delivery_history_limit=3)
    for number in range(6):
        await gate.send(f"e{number}")
    assert [each.event for each in await gate.log()] == ["e5", "e4", "e3"]
    await gate.declare(delivery_history_limit=0)
    await gate.send("e9")
    assert await gate.log() == []


async def test_the_status_follows_what_was_counted_and_is_written_only_when_it_changes(gate: Gate) -> None:
    await gate.declare()
    await gate.send("e1")
    await gate.send("e1")
    await gate.send("e2", secret="wrong")
    await gate.endpoints.tick()
    status = (await gate.get())["status"]
    assert {name: status[name] for name in status if name not in ("endpointID", "endpointPath")} == {
        "phase": "Ready",
        "lastError": "signature mismatch",
        "observedGeneration": 1,
        "lastDeliveryTime": "2026-06-01T08:00:00.000Z",
        "lastEventID": "e1",
        "lastTriggeredTask": f"default/{gate.book.names[0]}",
        "acceptedCount": 1,
        "duplicateCount": 1,
        "rejectedCount": 1,
        "filteredCount": 0,
    }
    revision = await gate.store.revision()
    for _ in range(3):
        await gate.endpoints.tick()
    assert await gate.store.revision() == revision


async def test_new_webhooks_get_an_address_and_deleted_ones_are_forgotten(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    made = await gate.declare()
    await gate.send("e1")
    await gate.store.write([Put({"kind": "TaskWebhook", "metadata": {"name": "broken"}, "spec": {}})])
    bare, _ = validate_document(
        {"kind": "TaskWebhook", "metadata": {"name": "bare"}, "spec": {"task_ref": "t", "auth": {"secret_ref": "s"}}}
    )
    assert bare is not None
    await gate.store.write([Put(bare)])
    with caplog.at_level(logging.CRITICAL):
        await gate.endpoints.tick()
    assert (await gate.get("bare"))["status"]["endpointPath"].startswith("/v1/webhook-deliveries/")
    await gate.store.write([Delete(Key("TaskWebhook", "default", "push"))])
    with caplog.at_level(logging.CRITICAL):
        await gate.endpoints.tick()
    assert await deliveries_of(gate.database, made["metadata"]["uid"]) == []
    assert await gate.send(endpoint=made["status"]["endpointID"], name="bare") == refused(
        404, "webhook endpoint not found"
    )


async def test_a_task_that_changed_hands_is_still_the_same_event(gate: Gate) -> None:
    await gate.declare()
    gate.book.dies_after = Passing("the answer was lost")
    await gate.send("e1")
    gate.book._keys.clear()  # as if the key meant another target now: only the name is still taken
    answer = await gate.send("e1")
    assert answer.document["duplicate"] is True
    assert len(gate.book.names) == 1
    first = gate.book.tasks[f"default/{gate.book.names[0]}"]
    gate.book.tasks[first.id] = replace(first, spawned_by="somebody else")
    gate.now += 86_401
    assert (await gate.send("e1")).document["task"] != first.id
