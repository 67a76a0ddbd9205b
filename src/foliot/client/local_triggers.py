"""The verbs on schedules and webhooks, on a store in this process."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from foliot.client.triggers import Fired, Sent
from foliot.errors import NotFound
from foliot.store.base import Database, Document, Filter, Key, ResourceStore
from foliot.store.triggers import Delivery, Slot, deliveries_of, delivery_of, slots_of

if TYPE_CHECKING:
    from foliot.work.base import Tasks

SCHEDULE = "TaskSchedule"
WEBHOOK = "TaskWebhook"


class LocalTriggers:
    """Implements `Triggers`. `tasks` opens what accepts work, when a task is made: looking does not need it."""

    def __init__(
        self, database: Database, store: ResourceStore, tasks: Callable[[], AbstractAsyncContextManager[Tasks]]
    ) -> None:
        self._db = database
        self._store = store
        self._tasks = tasks

    # --- schedules -----------------------------------------------------------------------------------------------

    async def schedule(self, namespace: str, name: str) -> Document:
        return await self._declared(SCHEDULE, namespace, name)

    async def schedules(self, namespace: str | None) -> list[Document]:
        return await self._all(SCHEDULE, namespace)

    async def slots(self, namespace: str, name: str, *, limit: int) -> list[Slot]:
        document = await self.schedule(namespace, name)
        return await slots_of(self._db, document["metadata"]["uid"], limit=limit)

    async def run_schedule(self, namespace: str, name: str, *, given: Mapping[str, str], by: str = "") -> Fired:
        """See `Triggers`."""
        from foliot.work.triggers.schedules import Scheduler

        await self.schedule(namespace, name)
        async with self._tasks() as tasks:
            task = await Scheduler(self._db, self._store, tasks).run_now(namespace, name, by=by, given=given)
        if task is not None:
            return Fired(task.id, task.phase)
        (slot, *_) = await self.slots(namespace, name, limit=1)
        return Fired(reason=slot.reason.partition(": ")[2] or "it is tried again by whoever runs the scheduler")

    # --- webhooks ------------------------------------------------------------------------------------------------

    async def webhook(self, namespace: str, name: str) -> Document:
        from foliot.work.triggers.webhook_endpoints import WebhookEndpoints

        document = await self._declared(WEBHOOK, namespace, name)
        return await WebhookEndpoints(self._db, self._store).ensure(document)

    async def webhooks(self, namespace: str | None) -> list[Document]:
        from foliot.work.triggers.webhook_endpoints import WebhookEndpoints

        endpoints = WebhookEndpoints(self._db, self._store)
        return [await endpoints.ensure(document) for document in await self._all(WEBHOOK, namespace)]

    async def rotate_webhook(self, namespace: str, name: str, *, grace: float) -> Document:
        from foliot.work.triggers.webhook_endpoints import WebhookEndpoints

        document = await self._declared(WEBHOOK, namespace, name)
        return await WebhookEndpoints(self._db, self._store).rotate(document, grace=grace)

    async def deliveries(self, namespace: str, name: str, *, limit: int) -> list[Delivery]:
        found = await deliveries_of(self._db, await self._webhook_uid(namespace, name), limit=limit)
        return [replace(each, body=None, headers="{}") for each in found]

    async def delivery(self, namespace: str, name: str, id: str) -> Delivery:
        """See `Triggers`."""
        found = await delivery_of(self._db, await self._webhook_uid(namespace, name), id)
        if found is None:
            hint = f"`foliot webhook deliveries {name}` lists those that are remembered."
            raise NotFound(f"Webhook {name!r} remembers no delivery {id!r}.", hint=hint)
        return found

    async def replay_delivery(self, namespace: str, name: str, id: str, *, by: str = "") -> str:
        """See `Triggers`."""
        from foliot.work.triggers.declared_webhook import read_webhook
        from foliot.work.triggers.webhooks import Webhooks

        read = read_webhook(await self._declared(WEBHOOK, namespace, name))
        async with self._tasks() as tasks:
            answer = await Webhooks(self._db, self._store, tasks).replay(read, id, time.time(), by=by)
        return answer.document["task"]

    async def send_test(
        self, namespace: str, name: str, body: bytes, *, event_id: str, headers: Mapping[str, str], by: str = ""
    ) -> Sent:
        """See `Triggers`."""
        from foliot.work.triggers.declared_webhook import read_webhook
        from foliot.work.triggers.webhooks import Webhooks

        read = read_webhook(await self.webhook(namespace, name))
        async with self._tasks() as tasks:
            webhooks = Webhooks(self._db, self._store, tasks)
            answer = await webhooks.try_out(read, body, time.time(), event_id=event_id, headers=headers, by=by)
        return Sent(answer.status, dict(answer.document))

    # --- what is declared ----------------------------------------------------------------------------------------

    async def _webhook_uid(self, namespace: str, name: str) -> str:
        return (await self._declared(WEBHOOK, namespace, name))["metadata"]["uid"]

    async def _declared(self, kind: str, namespace: str, name: str) -> Document:
        try:
            return await self._store.get(Key(kind, namespace, name))
        except NotFound:
            page = await self._store.list(Filter(kind, namespace), limit=1000)
            names = [str(each["metadata"]["name"]) for each in page.items]
            near = difflib.get_close_matches(name, names, n=3) or names[:5]
            word = "schedule" if kind == SCHEDULE else "webhook"
            hint = f"There are: {', '.join(near)}." if near else f"There is none in this namespace: apply a {kind}."
            raise NotFound(f"There is no {word} {name!r} in namespace {namespace!r}.", hint=hint) from None

    async def _all(self, kind: str, namespace: str | None) -> list[Document]:
        page = await self._store.list(wanted := Filter(kind, namespace))
        found = [*page.items]
        while page.cursor is not None:
            page = await self._store.list(wanted, cursor=page.cursor)
            found += page.items
        return found


async def signed_headers(webhook: Document, store: ResourceStore, body: bytes, event_id: str) -> dict[str, str]:
    """The headers of a delivery that is signed now, with the first of the webhook's secrets. Raises `SecretError`."""
    from foliot.tools.secrets import EnvironmentSecrets
    from foliot.work.triggers import signatures
    from foliot.work.triggers.declared_webhook import read_webhook
    from foliot.work.triggers.webhook_secrets import signing_secrets

    read = read_webhook(webhook)
    (secret, *_) = await signing_secrets(read, store, EnvironmentSecrets(os.environ))
    return signatures.sign(read.scheme, secret, body, now=time.time(), event_id=event_id)
