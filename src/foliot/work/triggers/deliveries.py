"""Deliveries to webhooks: from what came over the wire to a task, once for each event.

    answer = await webhooks.deliver(endpoint_id, headers, body, now)

needs no server and no token: the signature is who the caller is. An event is taken in the store before its task is
made; whoever is killed in between has answered nothing, so the sender tries again, and finds the event taken: the task
then has the same key and the same name, and there is one. When the window of an event is over, the same id is a new
event, with a task of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from foliot.common.buckets import Rate, TokenBucket
from foliot.engine.definition.references import References
from foliot.errors import Conflict, FoliotError, NotFound, SecretError, SecretMissing
from foliot.resources.event_filters import FilterFailed, event_filter
from foliot.resources.rates import SlidingWindow
from foliot.resources.references import Target
from foliot.store.access.tokens import SqlTokens
from foliot.store.base import Database, Key, ResourceStore
from foliot.store.triggers import (
    Outcome,
    TakenEvent,
    WebhookDelivery,
    delivery_of,
    log_delivery,
    settle_event,
    take_event,
)
from foliot.tools.secrets.secrets import DEFAULT_KEY, EnvironmentSecrets, SecretRef, takes_webhooks
from foliot.work.tasks.base import Accepted, Command, Tasks
from foliot.work.triggers.signatures import Headers, SignatureRefused, lowered, sign, verify, weakness_of
from foliot.work.triggers.webhook import (
    TAKEN,
    BodyRefused,
    Parcel,
    Webhook,
    command_for,
    event_id_of,
    event_of,
    open_parcel,
    read_webhook,
    short_digest,
    storable,
    task_name,
    told_headers,
)

# --- deliveries ------------------------------------------------------------------------------------------------------

# The log of deliveries: what came, what became of it, and nothing that is secret.
#
# Of a delivery that was not signed only size and digest are kept, of headers only a few that never carry credentials.
# A flood of refused deliveries is counted, and gets a row only now and then.

_SHOWN_HEADERS: Final = (
    "content-type",
    "user-agent",
    "x-event-type",
    "x-github-event",
    "x-gitlab-event",
    "linear-event",
    "x-shopify-topic",
)
_LONGEST: Final = 300
REFUSED: Final = Rate.per_second(1.0, burst=20)


class Event(Struct, frozen=True):
    """The record of one delivery. `body` is None for one that was not signed, or holds a secret."""

    outcome: Outcome
    reason: str
    status: int
    detail: str = ""
    event_id: str = ""
    task: str = ""
    body: bytes | None = None


class DeliveryLog:
    """Writes the log of one process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._refused: dict[str, TokenBucket] = {}
        self._uncounted: dict[str, int] = {}

    async def write(self, webhook: Webhook, event: Event, headers: Headers, body: bytes | None, *, now: float) -> str:
        """Remember it; the id of its row, blank when it was only counted."""
        if event.outcome == "rejected":
            bucket = self._refused.setdefault(webhook.uid, TokenBucket(REFUSED))
            if bucket.take(now) > 0:
                self._uncounted[webhook.uid] = self._uncounted.get(webhook.uid, 0) + 1
                return ""
        content = body or b""
        delivery = WebhookDelivery(
            id=secrets.token_hex(8),
            at=now,
            outcome=event.outcome,
            reason=event.reason,
            detail=_short(event.detail),
            status=event.status,
            event=_short(event.event_id),
            task=event.task,
            size=len(content),
            digest=hashlib.sha256(content).hexdigest(),
            headers=json.dumps(_shown(webhook, headers)),
            body=event.body,
        )
        more = self._uncounted.pop(webhook.uid, 0)
        try:
            await self._database.write(log_delivery, webhook.uid, delivery, keep=webhook.keep, more_rejected=more)
        except BaseException:
            self._uncounted[webhook.uid] = self._uncounted.get(webhook.uid, 0) + more
            raise
        return delivery.id


def _shown(webhook: Webhook, headers: Headers) -> dict[str, str]:
    names = [*_SHOWN_HEADERS, webhook.scheme.id_header.lower(), webhook.scheme.timestamp_header.lower()]
    told = told_headers(webhook, headers)
    return {name: _short(told[name]) for name in names if name and name in told}


def _short(text: str) -> str:
    text = storable(text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


# --- webhook secrets -------------------------------------------------------------------------------------------------

# The secrets that senders of a webhook sign with: all that are valid now.


async def signing_secrets(webhook: Webhook, store: ResourceStore, environment: EnvironmentSecrets) -> list[bytes]:
    """The values, in the order of the references. One that is missing, or so short that anybody could sign with it, is
    left out as long as there is another.

    A reference without a key means the first key of the Secret. Raises `SecretMissing` when what is declared is at
    fault, `SecretError` when this machine is; neither ever holds a value.
    """
    found: list[bytes] = []
    problem = "the webhook names no secret"
    fault: type[SecretError] = SecretMissing
    for text in webhook.secret_refs:
        try:
            value = await _value(text, webhook, store, environment)
        except FoliotError as error:
            problem = error.message
            if isinstance(error, SecretError) and not isinstance(error, SecretMissing):
                fault = SecretError
            continue
        if (weak := weakness_of(webhook.scheme, value)) is not None:
            problem = f"the secret {text!r} cannot be used: {weak}"
        else:
            found.append(value)
    if not found:
        raise fault(problem)
    return found


async def _value(text: str, webhook: Webhook, store: ResourceStore, environment: EnvironmentSecrets) -> bytes:
    ref = SecretRef.parse(text, webhook.key.namespace)
    await References(store).allow(webhook.origin, Target("Secret", ref.namespace, ref.name))
    chosen = text.partition(":")[2].strip()
    try:
        values = await store.reveal(Key("Secret", ref.namespace, ref.name))
    except NotFound:
        if not webhook.by_operator:  # whether there is such a variable is not told
            raise SecretMissing(
                f"there is no Secret {ref.namespace}/{ref.name}; variables of the environment are only for webhooks "
                "that the operator of this installation declared"
            ) from None
        return (await environment.resolve(ref)).encode()
    if not webhook.by_operator and not takes_webhooks(values.hosts):
        raise SecretMissing(f"the Secret {ref.namespace}/{ref.name} is bound to hosts, and not for webhooks")
    key = chosen or (DEFAULT_KEY if not values else min(values))
    value = values.get(key, b"")
    if not value.strip():
        raise SecretMissing(f"secret {ref.namespace}/{ref.name} has no value under {key!r}")
    return value


# --- webhooks --------------------------------------------------------------------------------------------------------

LONGEST_ENDPOINT: Final = 64


class WebhookAnswer(Struct, frozen=True):
    """The response to the sender."""

    status: int
    document: dict[str, Any]
    headers: dict[str, str] = {}


class _Refused(Exception):
    """A step that failed: what the caller is told, and what the owner of the webhook can read."""

    def __init__(
        self, status: int, text: str, reason: str, detail: str, event_id: str = "", *, retry_after: float = 0.0
    ) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.reason = reason
        self.detail = detail
        self.event_id = event_id
        self.headers = {"Retry-After": str(int(retry_after) + 1)} if retry_after else {}


class Webhooks:
    """Takes deliveries. Rates are counted by each process for itself."""

    def __init__(
        self,
        database: Database,
        store: ResourceStore,
        tasks: Tasks,
        *,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._database = database
        self._store = store
        self._tasks = tasks
        self._environment = EnvironmentSecrets(environ)
        self._log = DeliveryLog(database)
        self._tokens = SqlTokens(database)
        self._rates: dict[str, tuple[object, TokenBucket, SlidingWindow]] = {}

    async def deliver(
        self,
        endpoint_id: str,
        headers: Mapping[str, str],
        body: bytes | None,
        now: float | None = None,
    ) -> WebhookAnswer:
        """Take one delivery. `body` is None for one that was too large or broke off. Raises nothing of its own."""
        now = time.time() if now is None else now
        if not endpoint_id:
            return _refusal(400, "endpoint id is required")
        try:
            webhook = await self.find(endpoint_id, now)
        except NotFound:
            return _refusal(404, "webhook endpoint not found")
        except (FoliotError, KeyError, ValueError) as error:  # the store is away, or holds what nobody can read
            return _refusal(_status_of(error), "failed to process webhook")
        return await self._deliver(webhook, lowered(headers.items()), body, now)

    async def try_out(
        self, webhook: Webhook, body: bytes, now: float, *, event_id: str, headers: Mapping[str, str], by: str = ""
    ) -> WebhookAnswer:
        """Deliver a body that is signed here, for `by`. Raises `SecretError` when there is nothing to sign with."""
        (secret, *_) = await signing_secrets(webhook, self._store, self._environment)
        signed = sign(webhook.scheme, secret, body, now=now, event_id=event_id)
        return await self._deliver(webhook, lowered([*headers.items(), *signed.items()]), body, now, by=by)

    async def _deliver(
        self, webhook: Webhook, shown: dict[str, str], body: bytes | None, now: float, *, by: str = ""
    ) -> WebhookAnswer:
        told: Headers = shown
        kept = False
        try:
            parcel, secrets = await self._open(webhook, shown, body)
            told = parcel.headers
            digest = _verified(webhook, shown, body or b"", secrets, now)
            kept = parcel.text.encode() == body  # else a secret stands in it
            if (challenge := _challenge(webhook, parcel)) is not None:
                return WebhookAnswer(200, {"challenge": challenge})
            answer, event = await self._take(webhook, parcel, digest, now, by)
        except _Refused as refused:
            answer = _refusal(refused.status, refused.text, refused.headers)
            event = Event("rejected", refused.reason, refused.status, refused.detail, refused.event_id)
        event = replace(event, body=body if kept else None)
        try:
            await self._log.write(webhook, event, told, body, now=now)
        except FoliotError:
            if event.outcome == "rejected":
                return answer
            # The task is there; not to say so would only make the sender try again.
        return answer

    async def find(self, endpoint_id: str, now: float) -> Webhook:
        """The webhook with this address. Raises `NotFound`."""
        if len(endpoint_id) > LONGEST_ENDPOINT or "\x00" in endpoint_id or not endpoint_id.isascii():
            raise NotFound("webhook endpoint not found")
        found = await self._database.read("endpoint_get", endpoint=endpoint_id)
        if not found or (found[0]["expires_at"] is not None and found[0]["expires_at"] <= now):
            raise NotFound("webhook endpoint not found")
        document = await self._store.get(Key("TaskWebhook", found[0]["namespace"], found[0]["name"]))
        if document["metadata"]["uid"] != found[0]["webhook"]:  # deleted, and another one of this name was made
            raise NotFound("webhook endpoint not found")
        return read_webhook(document)

    async def replay(self, webhook: Webhook, delivery_id: str, now: float, *, by: str = "") -> WebhookAnswer:
        """Make a new task of a delivery that was signed and is still remembered.

        Raises `NotFound`, `Conflict` when its body was not kept, and what making the task does.
        """
        delivery = await delivery_of(self._database, webhook.uid, delivery_id)
        if delivery is None:
            raise NotFound(f"webhook {webhook.key.name!r} remembers no delivery {delivery_id!r}")
        if delivery.body is None:
            raise Conflict(
                f"the body of delivery {delivery_id!r} was not kept",
                hint="only deliveries that were signed can be replayed",
            )
        shown: dict[str, str] = json.loads(delivery.headers)
        try:
            parcel = open_parcel(webhook, shown, delivery.body)
        except BodyRefused as refused:
            raise Conflict(f"delivery {delivery_id!r} cannot be replayed: {refused}") from None
        event_id = event_id_of(webhook, parcel) or delivery.event
        taken_at = int(now * 1000)
        key = f"{webhook.spawner}:replay:{delivery_id}:{taken_at}"
        name = f"{task_name(webhook, event_id)}-r{taken_at:x}"
        command = command_for(webhook, parcel, event_id, taken_at=taken_at, key=key, name=name, by=by)
        accepted = await self._tasks.accept_template(
            webhook.ref, command, origin=webhook.origin, by_operator=webhook.by_operator and not by
        )
        event = Event(
            "accepted", "replayed", 202, f"replay of {delivery_id}", event_id, accepted.task.id, delivery.body
        )
        await self._log.write(webhook, event, parcel.headers, delivery.body, now=now)
        return WebhookAnswer(202, _told(event_id, accepted.task.id, duplicate=False))

    # --- steps -----------------------------------------------------------------------------------------------------

    async def _open(self, webhook: Webhook, shown: dict[str, str], body: bytes | None) -> tuple[Parcel, list[bytes]]:
        if webhook.suspend:
            raise _Refused(409, "webhook is suspended", "suspended", "the webhook is suspended")
        try:
            open_parcel(webhook, shown, body)  # before a secret is opened for it
            secrets = await signing_secrets(webhook, self._store, self._environment)
            return open_parcel(webhook, shown, body, secrets), secrets
        except BodyRefused as refused:
            raise _Refused(400, "invalid webhook payload", "invalid_body", str(refused)) from None
        except SecretError as error:
            raise _Refused(400, "webhook secret resolution failed", "secret_error", error.message) from None
        except FoliotError as error:
            raise _trouble(error, "secret_error") from None

    async def _take(
        self, webhook: Webhook, parcel: Parcel, digest: str, now: float, by: str
    ) -> tuple[WebhookAnswer, Event]:
        if not by and (why := await self._tokens.withdrawn(webhook.declarer)):
            told = f"{why}, and declared this webhook: somebody else has to change it, or declare it anew"
            raise _Refused(409, "webhook is suspended", "suspended", told)
        if (wait := self._too_often(webhook, now)) > 0:
            raise _Refused(429, "webhook rate limit exceeded", "rate_limited", _allowed(webhook), retry_after=wait)
        event_id = event_id_of(webhook, parcel)
        if not event_id and webhook.scheme.profile == "slack":
            event_id = digest  # commands have no id, and what was signed holds the time
        if not event_id:
            raise _Refused(400, "missing event id", "missing_event_id", _where(webhook))
        if (why := _unwanted(webhook, parcel, event_id)) is not None:
            told = {"accepted": False, "filtered": True, "event_id": event_id, "message": "delivery filtered"}
            return WebhookAnswer(202, told), Event("filtered", "filtered", 202, why, event_id)
        windows = {f"id:{hashlib.sha256(event_id.encode()).hexdigest()}": webhook.window}
        if webhook.once_signed:
            # Most senders do not sign the id. What was signed is known for as long as its time is good, at least.
            windows[f"signed:{digest}"] = max(webhook.window, 2 * webhook.scheme.max_skew)
        names = [*windows]
        try:
            taken = await self._database.write(take_event, webhook.uid, windows, now)
        except FoliotError as error:
            raise _trouble(error, "dedupe_error", event_id) from None
        if taken.task:
            return _taken(event_id, taken.task, duplicate=True)
        accepted = await self._accept(webhook, parcel, event_id, names, taken, by)
        return _taken(event_id, accepted.task.id, duplicate=accepted.duplicate)

    async def _accept(
        self, webhook: Webhook, parcel: Parcel, event_id: str, names: list[str], taken: TakenEvent, by: str
    ) -> Accepted:
        """The task of an event that was taken, here or by somebody who did not come to an end."""
        key = f"{webhook.spawner}:{short_digest(event_id)}:{taken.taken_at}"
        name = task_name(webhook, event_id)
        command = command_for(webhook, parcel, event_id, taken_at=taken.taken_at, key=key, name=name, by=by)
        try:
            accepted = await self._make(webhook, command, by_operator=webhook.by_operator and not by)
        except FoliotError as error:
            if error.retryable:  # it may be there: the event stays taken, and the next try finds out
                raise _trouble(error, "task_create_error", event_id) from None
            await self._settle(webhook, names, taken, "", event_id)
            raise _Refused(400, "webhook task creation failed", "task_create_error", error.message, event_id) from None
        await self._settle(webhook, names, taken, accepted.task.id, event_id)
        return accepted

    async def _settle(self, webhook: Webhook, names: list[str], taken: TakenEvent, task: str, event_id: str) -> None:
        try:
            await self._database.write(settle_event, webhook.uid, names, taken.taken_at, task)
        except FoliotError as error:
            raise _trouble(error, "dedupe_store_error", event_id) from None

    async def _make(self, webhook: Webhook, command: Command, *, by_operator: bool) -> Accepted:
        """A name may be that of the same event in an earlier window: then the time is added to it."""
        for name in (command.name, f"{command.name}-{int(command.labels[TAKEN]):x}"):
            try:
                return await self._tasks.accept_template(
                    webhook.ref, replace(command, name=name), origin=webhook.origin, by_operator=by_operator
                )
            except Conflict:
                try:
                    task = await self._tasks.get(webhook.ref.partition("/")[0], name)
                except NotFound:
                    continue
                if task.spawned_by == command.spawned_by and task.labels.get(TAKEN) == command.labels[TAKEN]:
                    return Accepted(task, duplicate=True)
        raise Conflict(f"the name {command.name!r} is taken by another task")

    def _too_often(self, webhook: Webhook, now: float) -> float:
        """Returns for how many seconds no more are taken; 0 when this one is."""
        rate = webhook.rate
        if rate is None:
            return 0.0
        kept = self._rates.get(webhook.uid)
        if kept is None or kept[0] != rate:
            bucket = TokenBucket(Rate.per_second(rate.requests / rate.per, rate.burst))
            kept = self._rates[webhook.uid] = (rate, bucket, SlidingWindow())
        _, bucket, window = kept
        wait = window.wait(rate.requests, rate.per, now) or bucket.take(now)
        if not wait:
            window.add(rate.per, now)
        return wait


def _trouble(error: FoliotError, reason: str, event_id: str = "") -> _Refused:
    return _Refused(_status_of(error), "failed to process webhook", reason, error.message, event_id)


def _status_of(error: Exception) -> int:
    """Returns the status for trouble that is not the sender's: 503 when it passes, and senders try again."""
    return 503 if isinstance(error, FoliotError) and error.retryable else 500


def _verified(webhook: Webhook, shown: dict[str, str], body: bytes, secrets: list[bytes], now: float) -> str:
    try:
        return verify(webhook.scheme, shown, body, secrets, now)
    except SignatureRefused as refused:
        raise _Refused(401, "signature verification failed", "signature_invalid", str(refused)) from None


def _challenge(webhook: Webhook, parcel: Parcel) -> str | None:
    """Returns the challenge that Slack expects back before it sends anything else."""
    match webhook.scheme.profile, parcel.json:
        case "slack", {"type": "url_verification", "challenge": str(word)}:
            return word
        case _:
            return None


def _unwanted(webhook: Webhook, parcel: Parcel, event_id: str) -> str | None:
    """Why the filter leaves it out; None when it does not."""
    if not webhook.filter:
        return None
    values = {
        "body": parcel.json,
        "text": parcel.text,
        "headers": dict(parcel.headers),
        "event": event_of(webhook, parcel),
        "event_id": event_id,
    }
    try:
        return None if event_filter(webhook.filter).wants(values) else "the filter is false"
    except FilterFailed as failed:
        return f"the filter cannot be evaluated: {failed}"


def _allowed(webhook: Webhook) -> str:
    rate = webhook.rate
    return "" if rate is None else f"more than {rate.requests} in {rate.per:g} s, {rate.burst} at once"


def _where(webhook: Webhook) -> str:
    scheme = webhook.scheme
    return f"missing event id header {scheme.id_header}" if scheme.id_header else f"no event id at {webhook.id_path}"


def _told(event_id: str, task: str, *, duplicate: bool) -> dict[str, Any]:
    message = "duplicate delivery" if duplicate else "delivery accepted"
    return {"accepted": True, "duplicate": duplicate, "event_id": event_id, "task": task, "message": message}


def _taken(event_id: str, task: str, *, duplicate: bool) -> tuple[WebhookAnswer, Event]:
    outcome = "duplicate" if duplicate else "accepted"
    answer = WebhookAnswer(202, _told(event_id, task, duplicate=duplicate))
    return answer, Event(outcome, outcome, 202, "", event_id, task)


def _refusal(status: int, text: str, headers: dict[str, str] | None = None) -> WebhookAnswer:
    return WebhookAnswer(status, {"accepted": False, "error": text}, headers or {})
