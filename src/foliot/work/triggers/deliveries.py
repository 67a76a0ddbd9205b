"""The log of deliveries: what came, what became of it, and nothing that is secret.

Of a delivery that was not signed only size and digest are kept, of headers only a few that never carry credentials. A
flood of refused deliveries is counted, and gets a row only now and then.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import Final

from msgspec import Struct

from foliot.store.base import Database
from foliot.store.triggers import Delivery, Outcome, log_delivery
from foliot.work.triggers.declared_webhook import Webhook, storable, told_headers
from foliot.work.triggers.signatures import Headers

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
REFUSED_BURST: Final = 20
REFUSED_PER_SECOND: Final = 1.0


class Bucket:
    """So many at once, and so many a second after that. Time may stand still or go back; nothing is gained by it."""

    def __init__(self, burst: float, per_second: float, now: float) -> None:
        self._tokens = self._burst = burst
        self._rate = per_second
        self._at = now

    def take(self, now: float) -> float:
        """0 when there was one to take, else for how many seconds there will be none."""
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._at) * self._rate)
        self._at = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self._rate


class Event(Struct, frozen=True):
    """What is to be remembered of one delivery. `body` is None for one that was not signed, or holds a secret."""

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
        self._refused: dict[str, Bucket] = {}
        self._uncounted: dict[str, int] = {}

    async def write(self, webhook: Webhook, event: Event, headers: Headers, body: bytes | None, *, now: float) -> str:
        """Remember it; the id of its row, blank when it was only counted."""
        if event.outcome == "rejected":
            bucket = self._refused.setdefault(webhook.uid, Bucket(REFUSED_BURST, REFUSED_PER_SECOND, now))
            if bucket.take(now) > 0:
                self._uncounted[webhook.uid] = self._uncounted.get(webhook.uid, 0) + 1
                return ""
        content = body or b""
        delivery = Delivery(
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
