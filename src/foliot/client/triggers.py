"""The verbs on schedules and webhooks: `LocalTriggers` on a store in this process, `RemoteTriggers` on a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from foliot.store.base import Document
from foliot.store.triggers import Delivery, Slot


class Fired(Struct, frozen=True):
    """A task that a schedule made right now: its id and phase; or, without one, why there is none."""

    task: str = ""
    phase: str = ""
    reason: str = ""


class Sent(Struct, frozen=True):
    """What a webhook answered to a delivery."""

    status: int
    document: dict[str, Any]


class Triggers(Protocol):
    async def schedule(self, namespace: str, name: str) -> Document:
        """A declared TaskSchedule. Raises `NotFound` that names what may be meant."""
        ...

    async def schedules(self, namespace: str | None) -> list[Document]: ...

    async def slots(self, namespace: str, name: str, *, limit: int) -> list[Slot]:
        """Every time it was due, newest first. Raises `NotFound`."""
        ...

    async def run_schedule(self, namespace: str, name: str, *, given: Mapping[str, str], by: str = "") -> Fired:
        """Make a task of the schedule now. Raises `NotFound`."""
        ...

    async def webhook(self, namespace: str, name: str) -> Document:
        """A declared TaskWebhook, which has an address from now on. Raises `NotFound`."""
        ...

    async def webhooks(self, namespace: str | None) -> list[Document]: ...

    async def rotate_webhook(self, namespace: str, name: str, *, grace: float) -> Document:
        """Give it another address; the old one goes on for `grace` seconds."""
        ...

    async def deliveries(self, namespace: str, name: str, *, limit: int) -> list[Delivery]:
        """Newest first, without their bodies."""
        ...

    async def delivery(self, namespace: str, name: str, id: str) -> Delivery:
        """One with its body, if that was kept. Raises `NotFound`."""
        ...

    async def replay_delivery(self, namespace: str, name: str, id: str, *, by: str = "") -> str:
        """Make a new task of a delivery; its name. Raises `NotFound`, `Conflict`."""
        ...

    async def send_test(
        self, namespace: str, name: str, body: bytes, *, event_id: str, headers: Mapping[str, str], by: str = ""
    ) -> Sent:
        """Deliver a body, signed as the sender would. `by` acts; over HTTP it is always the caller."""
        ...
