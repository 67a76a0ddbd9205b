"""The channels of one process: started as they are declared, stopped when they change, and swept for deliveries.

Every server keeps all channels. Which process polls a bot is decided by the store, and so is who delivers what.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from inspect import isawaitable
from typing import Any, Final

from foliot.channels.approvals import ApprovalDesk
from foliot.channels.base import Channel, ChannelContext, DeclaredChannel, DeliveryFailed, read_channel
from foliot.channels.bot_api import BotApi
from foliot.channels.conversations import Conversations
from foliot.channels.delivery import Deliveries
from foliot.channels.telegram import Sleep, TelegramChannel, TurnWatch
from foliot.channels.webhook import SCHEME, WebhookChannel
from foliot.common.cancellation import stop_tasks
from foliot.common.pages import read_pages
from foliot.errors import FoliotError, NotFound, SecretError
from foliot.resources.powers import secret_targets
from foliot.runtime.inside import Inside
from foliot.store.base import Document, Filter, Key, Put
from foliot.store.channels import ChannelReaders, Outbox
from foliot.store.taken import TakenMessages
from foliot.work.triggers.declared import FollowedResources
from foliot.work.triggers.signatures import hmac_key

log = logging.getLogger(__name__)

PATH: Final = "/v1/channel-messages/"
KIND: Final = "Channel"
# What a channel may lack when it is declared: it is tried again when one of these has changed.
LACKED: Final = ("Secret", "ReferenceGrant")
LONGEST_REST: Final = 5.0
PACE: Final = 0.2
KEPT_FOR: Final = 7 * 86_400.0
# For so long a message that comes again is known to be the same.
KNOWN_FOR: Final = 90 * 86_400.0
CROWDED_REST: Final = 1.0
PRUNE_EVERY: Final = 3600.0


class ChannelKeeper:
    """`run` keeps the channels until it is cancelled; `find` and `tick` serve whoever needs one of them at once."""

    def __init__(self, inside: Inside, *, sleep: Sleep = asyncio.sleep, poll_seconds: int | None = None) -> None:
        self._inside = inside
        self._clock = inside.clock
        self._sleep = sleep
        self._poll = {} if poll_seconds is None else {"poll_seconds": poll_seconds}
        database = inside.database
        self.outbox = Outbox(database)
        self.readers = ChannelReaders(database)
        self.taken = TakenMessages(database)
        self.conversations = Conversations(
            inside.sessions, database, inside.resources, clock=inside.clock, approvals=ApprovalDesk(inside)
        )
        holder = str(inside.runs.worker)
        reaches = self.conversations.reaches
        self.deliveries = Deliveries(self.outbox, inside.runs, self.find, reaches, clock=inside.clock, holder=holder)
        self._followed = FollowedResources(database, inside.resources, KIND)
        self._open: dict[str, Channel] = {}
        self._started: set[str] = set()
        self._errors: dict[str, str] = {}  # why a channel could not be opened
        self._unopened: dict[str, int] = {}  # which could not, and as of which revision
        # Digests of the keys of all channels, as of a revision: two channels never share one.
        self._salt = secrets.token_bytes(32)
        self._keys: dict[bytes, str] = {}
        self._keys_at = -1
        self._pruned = 0.0
        self._shown = 0
        self._opening: dict[str, asyncio.Lock] = {}
        self._replugged = False
        inside.plugins.on_exchange(self._replug)

    async def find(self, namespace: str, name: str) -> Channel:
        """Returns the channel of this name, as it is declared now. Raises `NotFound`, `DeliveryFailed`."""
        document = await self._inside.resources.get(Key(KIND, namespace, name))
        return await self._opened(document)

    async def run(self) -> None:
        """Keeps channels and delivers until cancelled. A store that does not answer is waited for."""
        try:
            while True:
                try:
                    seen = self._inside.database.change_mark()
                    await self._look()
                    await self.deliveries.begin()
                    await self._inside.database.wait_for_change(seen, timeout=await self._rest())
                except FoliotError as error:
                    log.warning("channels are looked at again: %s", error.message)
                    await asyncio.sleep(1.0)
                await asyncio.sleep(PACE)  # a busy store wakes everybody with each commit
        finally:
            await self.close()

    async def _rest(self) -> float:
        due = await self.outbox.next_due()
        if self.deliveries.crowded:
            return CROWDED_REST
        return LONGEST_REST if due is None else min(LONGEST_REST, max(0.0, due - self._clock()))

    async def tick(self) -> None:
        """Starts what is new, stops what is gone or changed, and delivers what is due."""
        await self._look()
        await self.deliveries.sweep()
        await self._look()

    async def _look(self) -> None:
        stirred = await self._followed.look()
        for uid in stirred:
            document = self._followed.documents.get(uid)
            await self._stop(uid)
            if document is None:
                await self.readers.forget(uid)
                self._opening.pop(uid, None)
        if self._replugged:
            await self._make_plugged_anew()
        if self._unopened:
            await self._try_again()
        for uid, document in list(self._followed.documents.items()):
            if uid not in self._started:
                await self._start(uid, document)
        if self._shown != self.deliveries.ended:
            self._shown = self.deliveries.ended
            await self._show_failures()
        if self._clock() - self._pruned >= PRUNE_EVERY:
            self._pruned = self._clock()
            await self.outbox.prune(before=self._pruned - KEPT_FOR)
            await self.taken.prune(before=self._pruned - KNOWN_FOR)

    async def _show_failures(self) -> None:
        for uid, document in list(self._followed.documents.items()):
            await self._show(uid, document)

    async def close(self) -> None:
        """Stops all channels, and delivers no more."""
        await self.deliveries.close()
        for uid in list(self._open):
            await self._stop(uid)

    async def _try_again(self) -> None:
        """Has channels started again that could not be opened, once a secret or a grant has changed since."""
        if await self._followed.have_changed(LACKED, min(self._unopened.values())):
            self._started -= self._unopened.keys()
        else:
            self._unopened = dict.fromkeys(self._unopened, self._followed.revision)

    async def _start(self, uid: str, document: Document) -> None:
        error, before = "", self._errors.get(uid)
        self._unopened.pop(uid, None)
        try:
            channel = await self._opened(document)
            await channel.start()
            self._started.add(uid)
        except FoliotError as failed:
            error = failed.message
            if error != before:
                log.warning("channel %s cannot be opened: %s", document["metadata"]["name"], error)
            self._started.add(uid)  # again when it changes, when its secret does, or when something is delivered
            self._unopened[uid] = self._followed.revision
        except Exception:  # one that nobody can read must not stop the others
            log.exception("channel %s cannot be dealt with", document["metadata"]["name"])
            error = "it cannot be read"
            self._started.add(uid)
        self._errors[uid] = error
        await self._show(uid, document)

    async def _stop(self, uid: str) -> None:
        self._started.discard(uid)
        self._errors.pop(uid, None)
        self._unopened.pop(uid, None)
        if (channel := self._open.pop(uid, None)) is not None:
            await channel.stop()

    async def _opened(self, document: Document) -> Channel:
        declared = read_channel(document)
        # Deliveries open channels too: of two objects for one bot, one would never be stopped.
        async with self._opening.setdefault(declared.uid, asyncio.Lock()):
            return await self._current(declared)

    async def _current(self, declared: DeclaredChannel) -> Channel:
        known = self._open.get(declared.uid)
        if known is not None and known.declared == declared:
            return known
        if known is not None:
            await self._stop(declared.uid)
        made = self._open[declared.uid] = await self._made(declared)
        return made

    async def _made(self, declared: DeclaredChannel) -> Channel:
        inside = self._inside
        client = inside.web.client
        if declared.type == "plugin":
            return await self._plugged(declared)
        if declared.type == "webhook":
            return WebhookChannel(
                declared, client, partial(self._secret, declared), self.conversations, clock=inside.clock
            )
        token = partial(self._secret, declared)
        try:
            await token()  # the status of the channel says at once that it has none
        except FoliotError as error:
            raise DeliveryFailed(error.message) from None
        return TelegramChannel(
            declared,
            BotApi(client, declared.endpoint, token),
            self.conversations,
            self.readers,
            self.outbox,
            holder=str(inside.runs.worker),
            clock=inside.clock,
            watch=TurnWatch(self._turn_of, inside.watch),
            sleep=self._sleep,
            **self._poll,
        )

    async def _plugged(self, declared: DeclaredChannel) -> Channel:
        """Makes the channel that a plug-in brings. Raises `DeliveryFailed` for one that is not enabled, or breaks."""
        inside = self._inside
        factory = inside.plugins.channels.get(declared.plugin)
        if factory is None:
            raise DeliveryFailed(f"no enabled plug-in has a channel named {declared.plugin!r}", waits=True)
        receive = partial(self.conversations.receive, declared)
        secret = partial(self._secret, declared)
        try:
            made: Any = factory(ChannelContext(declared, receive, inside.web.client, secret, inside.clock))
            made = await made if isawaitable(made) else made
        except Exception as error:  # a stranger's code may raise anything
            what = type(error).__name__  # its text may hold the secret
            raise DeliveryFailed(f"the channel of plug-in {declared.plugin!r} cannot be made: {what}") from error
        if not all(callable(getattr(made, verb, None)) for verb in ("start", "stop", "deliver")):
            raise DeliveryFailed(f"what plug-in {declared.plugin!r} makes is no channel")
        return made

    def _replug(self) -> None:
        """Plug-ins were exchanged: their channels are made anew at the next look."""
        self._replugged = True

    async def _make_plugged_anew(self) -> None:
        self._replugged = False
        for uid, document in list(self._followed.documents.items()):
            if document["spec"]["type"] == "plugin":
                await self._stop(uid)

    async def _secret(self, declared: DeclaredChannel) -> str:
        """The secret of a channel, bound to the host that it goes to. Raises `ToolSecretMissing`, `SecretError`.

        A value that an earlier channel has is refused: what is signed for one would be taken by the other.
        """
        value = await self._inside.web.secrets.value(
            declared.secret_ref, namespace=declared.namespace, hosts=declared.secret_hosts, by=KIND
        )
        revision = await self._inside.resources.revision()
        if self._keys_at != revision:
            self._keys, self._keys_at = await self._first_of_each_key(), revision
        if self._keys.get(self._key_digest(value), declared.uid) != declared.uid:
            raise SecretError(
                f"another channel has the same key as channel {declared.name}",
                hint="give each channel a key of its own",
            )
        return value

    async def _first_of_each_key(self) -> dict[bytes, str]:
        """Returns the uid of the channel that had a key first, by a digest of the key."""
        found: dict[bytes, str] = {}
        documents = [
            each async for page in read_pages(self._inside.resources.list, Filter(KIND)) for each in page.items
        ]
        for document in sorted(documents, key=lambda each: (each["metadata"]["createdAt"], each["metadata"]["uid"])):
            metadata, ref = document["metadata"], document["spec"]["auth"]["secretRef"]
            with suppress(FoliotError):  # it has none, and says so itself
                value = await self._inside.web.secrets.value(
                    ref, namespace=metadata["namespace"], hosts=secret_targets(document), by=KIND
                )
                found.setdefault(self._key_digest(value), metadata["uid"])
        return found

    def _key_digest(self, value: str) -> bytes:
        key = hmac_key(SCHEME, value.strip().encode("utf-8", "surrogatepass"))
        return hmac.digest(self._salt, key, "sha256")

    async def _turn_of(self, session: str) -> str:
        try:
            return (await self._inside.sessions.get(session, identity=None)).turn
        except NotFound:
            return ""

    async def _show(self, uid: str, document: Document) -> None:
        metadata, spec = document["metadata"], document["spec"]
        before: dict[str, Any] = document.get("status") or {}
        path = f"{PATH}{metadata['namespace']}/{metadata['name']}" if spec["type"] == "webhook" else ""
        counts = await self.outbox.counts(metadata["namespace"])
        given_up = counts.get((metadata["name"], "failed"), 0)
        last = await self.outbox.last(metadata["namespace"], metadata["name"]) if given_up else None
        error = self._errors.get(uid, "")
        if not error and last is not None and last.state == "failed":
            count = "a delivery was" if given_up == 1 else f"{given_up} deliveries were"
            error = f"{count} given up: {last.error}"
        wanted = {
            "phase": "Suspended" if spec.get("suspend") else "Error" if error else "Ready",
            "lastError": error,
            "observedGeneration": metadata["generation"],
            "endpointPath": path,
            "failedCount": given_up,
        }
        wanted = {name: value for name, value in wanted.items() if value}
        if wanted == before:
            return
        try:
            (written,) = await self._inside.resources.write([Put({**document, "status": wanted}, only="status")])
        except NotFound:  # deleted meanwhile
            return
        self._followed.documents[uid] = written.document


@asynccontextmanager
async def channels_kept(inside: Inside) -> AsyncGenerator[ChannelKeeper]:
    """Keeps the channels of a runtime meanwhile."""
    keeper = ChannelKeeper(inside)
    keeping = asyncio.create_task(keeper.run())
    try:
        yield keeper
    finally:
        await stop_tasks(keeping)
