"""Signed HTTP as a channel: a program posts what people say, and is posted the answers.

Both directions are signed as Standard Webhooks says, with one key. The id of a message is signed with it, so a message
that is sent again is the same input, under whatever time; a time that is off by more than five minutes is refused.
The id of an answer is the key of its delivery: a receiver that knows it drops what comes twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from foliot.channels.base import DeclaredChannel, DeliveryFailed, Incoming, Notification, Token
from foliot.channels.conversations import Conversations
from foliot.engine.base import Clock
from foliot.errors import Conflict, FoliotError, SecretError
from foliot.kernel.arguments import read_json
from foliot.kernel.messages import Media
from foliot.kernel.routing import bounded_key
from foliot.store.sessions.base import InboxFull
from foliot.tools.base import ToolError
from foliot.tools.outbound.client import OutboundClient
from foliot.tools.outbound.guard import OutboundRefused
from foliot.work.triggers.signatures import Scheme, SignatureRefused, lowered, sign, verify, weakness_of
from foliot.work.triggers.webhook import storable

UNKNOWN: Final = "this sender may not speak here"
LARGEST_BODY: Final = 1024 * 1024
LONGEST_ID: Final = 256
SCHEME: Final = Scheme(
    "standard-webhooks",
    signature_header="webhook-signature",
    timestamp_header="webhook-timestamp",
    id_header="webhook-id",
    encoding="base64",
)


class PostedMessage(Struct, forbid_unknown_fields=True):
    """The body of a message. `user` is who speaks, as the channel lists them."""

    user: str
    text: str = ""
    group: str = ""
    thread: str = ""
    attachments: list[dict[str, Any]] = []


class PostAnswer(Struct, frozen=True):
    """The response to whoever posted a message."""

    status: int
    document: dict[str, Any]


class WebhookChannel:
    """One sender and receiver of signed requests."""

    def __init__(
        self,
        declared: DeclaredChannel,
        client: OutboundClient,
        secret: Token,
        conversations: Conversations,
        *,
        clock: Clock,
    ) -> None:
        self.declared = declared
        self._client = client
        self._secret = secret
        self._conversations = conversations
        self._clock = clock

    async def start(self) -> None:
        """Looks whether answers could be posted. Raises `DeliveryFailed` for an address that may not be reached."""
        try:
            await self._client.guard.check_url(self.declared.endpoint)
        except OutboundRefused as error:
            raise DeliveryFailed(f"answers cannot be posted: {error.message}") from None
        except ToolError:
            return  # a name that is not resolved now may be when there is something to post

    async def stop(self) -> None:
        """Does nothing: the server stops."""

    async def take(self, headers: Mapping[str, str], body: bytes | None) -> PostAnswer:
        """Takes a message that was posted. Raises nothing of its own; what is refused says so in its status."""
        shown = lowered(headers.items())
        if body is None or len(body) > LARGEST_BODY:
            return _refusal(413, "the message is too large")
        try:
            secret = (await self._secret()).encode()
            if (weak := weakness_of(SCHEME, secret)) is not None:
                return _refusal(503, f"the key of the channel cannot be used: {weak}")
            verify(SCHEME, shown, body, [secret], self._clock())
        except SignatureRefused:
            return refused_signature()
        except (SecretError, ToolError):
            return _refusal(503, "the key of the channel cannot be looked up")
        id = storable(shown[SCHEME.id_header])
        if len(id) > LONGEST_ID:
            return _refusal(400, f"webhook-id is longer than {LONGEST_ID} characters")
        try:
            posted = msgspec.convert(read_json(body), PostedMessage)
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
            return _refusal(400, f"the message cannot be read: {error}")
        if not posted.text.strip():
            return _refusal(400, "the text is empty: there is nothing to say to the agent")
        incoming = Incoming(
            id,
            storable(posted.user),
            storable(posted.text),
            storable(posted.group or posted.user),
            storable(posted.group),
            storable(posted.thread),
            id,
            attachments=tuple(posted.attachments),
        )
        return await self._take(incoming)

    async def _take(self, incoming: Incoming) -> PostAnswer:
        try:
            received = await self._conversations.receive(self.declared, incoming)
        except InboxFull as error:
            return _refusal(503, error.message)  # nothing was stored: the same message is taken later
        except Conflict as error:
            # The key of the input names the channel too; its sender knows its own id.
            return _refusal(409, error.message.replace(bounded_key(f"{self.declared.uid}:", incoming.id), incoming.id))
        except FoliotError as error:
            return _refusal(503 if error.retryable else 400, error.message)
        if received.private:  # what was said is not taken; the reply is for its sender alone
            return PostAnswer(403, {"accepted": False, "error": UNKNOWN, "reply": received.reply})
        if received.refused:
            return _refusal(403, UNKNOWN)
        return PostAnswer(
            202,
            {
                "accepted": True,
                "duplicate": received.again,
                "session": received.session,
                "outcome": received.outcome,
                "reply": received.reply,
            },
        )

    async def deliver(self, notification: Notification) -> None:
        """Posts an answer to the declared address. Raises `DeliveryFailed`."""
        address = notification.address
        body = msgspec.json.encode(
            {
                "id": notification.key,
                "user": "" if address.group_id else address.to,
                "group": address.group_id,
                "thread": address.thread_id,
                "text": notification.text,
                "run": notification.run_id,
                "media": [_shown(media) for media in notification.media],
            }
        )
        try:
            secret = (await self._secret()).encode()
        except (SecretError, ToolError) as error:
            raise DeliveryFailed(error.message) from None
        signed = sign(SCHEME, secret, body, now=self._clock(), event_id=notification.key)
        headers = {"Content-Type": "application/json", "Idempotency-Key": notification.key}
        try:
            async with self._client.send(
                "POST", self.declared.endpoint, headers=headers, credentials=signed, body=body, redirects=0
            ) as answer:
                status, after = answer.status, answer.headers.get("Retry-After", "")
        except ToolError as error:
            raise DeliveryFailed(error.message, final=not error.retryable) from None
        if 200 <= status < 300:
            return
        final = 400 <= status < 500 and status not in (408, 409, 425, 429)
        wait = min(float(after), 3600.0) if after.isascii() and after.isdigit() else 0.0
        raise DeliveryFailed(f"{self.declared.endpoint} answered with HTTP {status}", final=final, after=wait)


def _shown(media: Media) -> dict[str, str]:
    given = {"media_type": media.media_type, "name": media.name, "url": media.url, "data": media.data}
    return {name: value for name, value in given.items() if value}


def refused_signature() -> PostAnswer:
    """Returns the one answer to who cannot sign, whether there is such a channel or not."""
    return _refusal(401, "signature verification failed")


def _refusal(status: int, text: str) -> PostAnswer:
    return PostAnswer(status, {"accepted": False, "error": text})
