"""The addresses of webhooks, and what a webhook shows of itself.

An address is random: who does not know it cannot even try. It is made when somebody first looks at the webhook, and can
be changed at any time, with or without some time in which the old one goes on. What is counted is in the store at once;
the status of the resource follows now and then, so that a flood of deliveries is no flood of changes.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from foliot.common.times import iso
from foliot.errors import FoliotError, NotFound
from foliot.store.base import Database, Document, Put, ResourceStore
from foliot.store.portions import forget_old
from foliot.store.transaction import run as execute
from foliot.store.triggers import counts_of, ensure_endpoint, forget_webhook, rotate_endpoint
from foliot.work.triggers.declared import FollowedResources

if TYPE_CHECKING:
    from foliot.work.triggers.webhook import Webhook

log = logging.getLogger(__name__)

PATH: Final = "/v1/webhook-deliveries/"
LONGEST_REST: Final = 5.0
PRUNE_EVERY: Final = 60.0


class WebhookEndpoints:
    """`run` looks after all webhooks until it is cancelled; the rest concerns one."""

    def __init__(self, database: Database, store: ResourceStore, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._store = store
        self._clock = clock
        self._followed = FollowedResources(database, store, "TaskWebhook")
        self._pruned = self._looked = 0.0
        self._swept = False

    async def ensure(self, document: Document) -> Document:
        """The webhook with its address and its counts in its status."""
        webhook = _read(document)
        endpoint = await self._database.write(
            ensure_endpoint, webhook.uid, webhook.key.namespace, webhook.key.name, _new_endpoint(), self._clock()
        )
        return await self._show(webhook, document, endpoint)

    async def rotate(self, document: Document, *, grace: float = 0.0) -> Document:
        """Give the webhook another address; the old one goes on for `grace` seconds."""
        webhook = _read(document)
        key, fresh, now = webhook.key, _new_endpoint(), self._clock()
        await self._database.write(rotate_endpoint, webhook.uid, key.namespace, key.name, fresh, now, grace)
        return await self._show(webhook, document, fresh)

    async def run(self) -> None:
        """Keeps endpoints up to date until cancelled. A store that does not answer is waited for."""
        while True:
            try:
                seen = self._database.change_mark()
                await self.tick()
                await self._database.wait_for_change(seen, timeout=LONGEST_REST)
            except FoliotError as error:
                log.warning("webhooks are looked at again: %s", error.message)
            await asyncio.sleep(1.0)  # a busy store wakes everybody with each commit

    async def tick(self) -> None:
        """Give new webhooks an address, forget deleted ones, and let each status say what was counted."""
        if not self._swept:
            await self._sweep()
        looked, self._looked = self._looked, self._clock()
        stirred = await self._followed.look()
        for uid in stirred - self._followed.documents.keys():
            await self._database.write(forget_webhook, uid)
        # Some are told twice, so that none is missed where clocks differ a little.
        called = await self._database.read("webhook_states_since", since=looked - 2 * LONGEST_REST)
        stirred |= {row["webhook"] for row in called}
        for uid in self._followed.documents.keys() & (stirred if looked else self._followed.documents.keys()):
            document = self._followed.documents[uid]
            try:
                self._followed.documents[uid] = await self._refresh(document)
            except Exception:  # one that nobody can read must not stop the others
                log.exception("webhook %s cannot be dealt with", document["metadata"]["name"])
        if abs(self._clock() - self._pruned) >= PRUNE_EVERY:
            self._pruned = self._clock()
            await forget_old(self._database, "event_forget_old", now=self._pruned)
            await self._database.write(execute, "endpoint_forget_old", now=self._pruned)

    async def _refresh(self, document: Document) -> Document:
        status: dict[str, Any] = document.get("status") or {}
        if not status.get("endpointID"):
            return await self.ensure(document)
        found = await self._database.read("endpoint_of", webhook=document["metadata"]["uid"])
        if not found:
            return await self.ensure(document)
        return await self._show(_read(document), document, found[0]["endpoint"])

    async def _sweep(self) -> None:
        """Forget webhooks that were deleted while nobody looked; read first, so that no new one is among them."""
        known = [row["webhook"] for row in await self._database.read("endpoint_webhooks")]
        await self._followed.look()
        for uid in known:
            if uid not in self._followed.documents:
                await self._database.write(forget_webhook, uid)
        self._swept = True

    async def _show(self, webhook: Webhook, document: Document, endpoint: str) -> Document:
        counts = await counts_of(self._database, webhook.uid)
        before: dict[str, Any] = document.get("status") or {}
        wanted: dict[str, Any] = {
            **before,
            "phase": "Suspended" if webhook.suspend else "Ready",
            "lastError": counts.last_error,
            "observedGeneration": webhook.generation,
            "endpointID": endpoint,
            "endpointPath": PATH + endpoint,
            "lastDeliveryTime": iso(counts.last_at) if counts.last_at else "",
            "lastEventID": counts.last_event,
            "lastTriggeredTask": counts.last_task,
            "acceptedCount": counts.accepted,
            "duplicateCount": counts.duplicate,
            "rejectedCount": counts.rejected,
            "filteredCount": counts.filtered,
        }
        wanted = {name: value for name, value in wanted.items() if value not in ("", None)}
        if wanted == before:
            return document
        try:
            (written,) = await self._store.write([Put({**document, "status": wanted}, only="status")])
        except NotFound:  # deleted meanwhile
            return document
        return written.document


def _read(document: Document) -> Webhook:
    from foliot.work.triggers.webhook import read_webhook  # most servers have none: loaded with the first

    return read_webhook(document)


def _new_endpoint() -> str:
    return secrets.token_hex(16)
