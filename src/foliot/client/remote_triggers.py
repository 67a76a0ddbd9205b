"""The verbs on schedules and webhooks, over the connection to a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from msgspec import Struct

from foliot.client.asking import Asking
from foliot.client.triggers import Fired, Sent
from foliot.store.base import Document
from foliot.store.triggers import Delivery, Slot

SCHEDULES: Final = "/v1/work/schedules"
WEBHOOKS: Final = "/v1/work/webhooks"


class Items(Struct, frozen=True):
    items: list[Document]


class Slots(Struct, frozen=True):
    slots: list[Slot]


class Deliveries(Struct, frozen=True):
    deliveries: list[Delivery]


class Replayed(Struct, frozen=True):
    task: str


class RemoteTriggers(Asking):
    """Implements `Triggers`."""

    async def schedule(self, namespace: str, name: str) -> Document:
        return await self._get(_at(SCHEDULES, name), Document, namespace=namespace)

    async def schedules(self, namespace: str | None) -> list[Document]:
        return (await self._get(SCHEDULES, Items, namespace=namespace)).items

    async def slots(self, namespace: str, name: str, *, limit: int) -> list[Slot]:
        return (await self._get(f"{_at(SCHEDULES, name)}/slots", Slots, namespace=namespace, limit=limit)).slots

    async def run_schedule(self, namespace: str, name: str, *, given: Mapping[str, str], by: str = "") -> Fired:
        body = {"by": by, "given": dict(given)}
        return await self._post(f"{_at(SCHEDULES, name)}/run", body, Fired, namespace=namespace)

    async def webhook(self, namespace: str, name: str) -> Document:
        return await self._get(_at(WEBHOOKS, name), Document, namespace=namespace)

    async def webhooks(self, namespace: str | None) -> list[Document]:
        return (await self._get(WEBHOOKS, Items, namespace=namespace)).items

    async def rotate_webhook(self, namespace: str, name: str, *, grace: float) -> Document:
        return await self._post(f"{_at(WEBHOOKS, name)}/rotate", {"grace": grace}, Document, namespace=namespace)

    async def deliveries(self, namespace: str, name: str, *, limit: int) -> list[Delivery]:
        path = f"{_at(WEBHOOKS, name)}/deliveries"
        return (await self._get(path, Deliveries, namespace=namespace, limit=limit)).deliveries

    async def delivery(self, namespace: str, name: str, id: str) -> Delivery:
        return await self._get(f"{_at(WEBHOOKS, name)}/deliveries/{quote(id, safe='')}", Delivery, namespace=namespace)

    async def replay_delivery(self, namespace: str, name: str, id: str, *, by: str = "") -> str:
        path = f"{_at(WEBHOOKS, name)}/deliveries/{quote(id, safe='')}/replay"
        return (await self._post(path, {"by": by}, Replayed, namespace=namespace)).task

    async def send_test(
        self, namespace: str, name: str, body: bytes, *, event_id: str, headers: Mapping[str, str], by: str = ""
    ) -> Sent:
        """See `Triggers`. The server signs: it has the secret, and knows who calls."""
        sent = {"body": body, "event_id": event_id, "headers": dict(headers)}
        return await self._post(f"{_at(WEBHOOKS, name)}/send-test", sent, Sent, namespace=namespace)


def _at(base: str, name: str) -> str:
    return f"{base}/{quote(name, safe='')}"
