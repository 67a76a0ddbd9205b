"""Audit records posted to a server, through the same guarded door as the requests of tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urldefrag

import msgspec

from foliot.engine.audit.sinks import SinkContext, as_data
from foliot.errors import FoliotError, Unavailable, UsageError
from foliot.store.audit.log import AuditRecord
from foliot.tools.outbound.client import OutboundClient
from foliot.tools.outbound.guard import Guard, Outbound
from foliot.tools.secrets.secrets import Secrets

TRY_AGAIN: Final = frozenset({408, 425, 429})


class WebhookSink:
    """Posts `{"records": [...]}`. A server that was reached twice can tell by `seq` what it has already."""

    def __init__(
        self, url: str, client: OutboundClient, secrets: Secrets, *, secret_ref: str = "", namespace: str = "default"
    ) -> None:
        self._url = url
        self._client = client
        self._secrets = secrets
        self._ref = secret_ref
        self._namespace = namespace

    async def write(self, records: Sequence[AuditRecord]) -> None:
        """Raises `Unavailable` for what may go better the next time, `FoliotError` for a refusal."""
        body = msgspec.json.encode({"records": [as_data(record) for record in records]})
        headers = {"Content-Type": "application/json"}
        async with self._client.send(
            "POST", self._url, headers=headers, credentials=await self._credentials(), body=body
        ) as answer:
            if answer.status in TRY_AGAIN or answer.status >= 500:
                raise Unavailable(f"the webhook answered with {answer.status}")
            if not 200 <= answer.status < 300:
                raise FoliotError(f"the webhook answered with {answer.status}")

    async def close(self) -> None:
        await self._client.close()

    async def _credentials(self) -> dict[str, str]:
        if not self._ref:
            return {}
        value = await self._secrets.value(self._ref, namespace=self._namespace)
        return {"Authorization": f"Bearer {value}"}


def webhook_sink(address: str, context: SinkContext) -> WebhookSink:
    """`webhook:https://siem.example/in`, or with the name of a Secret, sent as a bearer token, behind a `#`.

    Raises `UsageError`.
    """
    url, ref = urldefrag(address)
    if not url.startswith(("https://", "http://")):
        raise UsageError(f"audit records cannot be posted to {address!r}", hint="give an address such as https://…")
    client = OutboundClient(Guard(Outbound(allow_hosts=tuple(context.outbound_allow))))
    return WebhookSink(url, client, context.secrets, secret_ref=ref, namespace=context.namespace)
