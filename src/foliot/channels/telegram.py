"""Telegram as a channel: updates by long polling, answers with drafts that grow while they are written.

One process at a time polls a bot (`ChannelReaders`): Telegram would refuse a second one. Where it has come to is stored
after each update; what was taken and not yet stored comes again, and is the same message by its number. So nothing is
lost and nothing is said twice, whenever the process dies. A message that cannot be taken is answered with the reason.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import mimetypes
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct

from foliot.channels.base import DeclaredChannel, DeliveryFailed, Incoming, Notification
from foliot.channels.bot_api import (
    LARGEST_DOWNLOAD,
    LONGEST_MESSAGE,
    BotApi,
    MessageEntity,
    TelegramFile,
    TelegramMessage,
    TelegramUser,
    split_text,
)
from foliot.channels.conversations import Conversations
from foliot.common.cancellation import stop_tasks
from foliot.engine.base import Clock
from foliot.engine.live.hub import Reader, Recorded, Streamed
from foliot.errors import FoliotError
from foliot.kernel.backoff import backoff
from foliot.kernel.messages import Media, RestartDelta
from foliot.kernel.routing import Address
from foliot.kernel.run.events import Terminal
from foliot.store.channels import ChannelReaders, Outbox
from foliot.store.sessions.base import InboxFull
from foliot.store.taken import OtherWords

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 25
# Longer than a poll, so that whoever polls keeps the bot.
LEASE: Final = 90.0
OTHERS_PAUSE: Final = 5.0
EDIT_EVERY: Final = 1.0
TYPING_EVERY: Final = 4.0
# A turn that waits for a person does not type for ever.
LONGEST_TYPING: Final = 300.0
CURSOR: Final = " ▌"
BUSY: Final = "That is more than I can take at once, and this message was not taken: try again later."
UNREADABLE: Final = "That message was not taken: it cannot be read."
LONGEST_NAME: Final = 100
_SIGNATURES: Final = (
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
)

Sleep = Callable[[float], Awaitable[None]]


class TelegramReceipt(Struct, omit_defaults=True):
    """The part of an answer that people see: the number of its draft, and how many of its parts are sent."""

    draft: int = 0
    sent: int = 0


class _Draft:
    """The draft of a turn that is being written: its number once people see it, and when it grows no more."""

    def __init__(self) -> None:
        self.number = 0
        self.ended = asyncio.Event()


class TurnWatch(Struct, frozen=True):
    """How a channel sees turns as they are written: the turn at work of a session, and a reader of a run."""

    turn_of: Callable[[str], Awaitable[str]]
    read: Callable[[str], AbstractContextManager[Reader]]


class TelegramChannel:
    """One bot. `start` begins to poll; `deliver` works in every process."""

    def __init__(
        self,
        declared: DeclaredChannel,
        api: BotApi,
        conversations: Conversations,
        readers: ChannelReaders,
        outbox: Outbox,
        *,
        holder: str,
        clock: Clock,
        watch: TurnWatch | None = None,
        sleep: Sleep = asyncio.sleep,
        poll_seconds: int = POLL_SECONDS,
    ) -> None:
        self.declared = declared
        self._api = api
        self._conversations = conversations
        self._readers = readers
        self._outbox = outbox
        self._holder = holder
        self._clock = clock
        self._watch = watch
        self._sleep = sleep
        self._poll_seconds = poll_seconds
        self._polling: asyncio.Task[None] | None = None
        self._drafting: dict[str, asyncio.Task[None]] = {}
        self._drafted: dict[str, _Draft] = {}
        self._me: TelegramUser | None = None

    async def start(self) -> None:
        """Begins to poll, as soon as no other process does."""
        if self._polling is None and not self.declared.suspend:
            self._polling = asyncio.create_task(self._poll())

    async def stop(self) -> None:
        """Polls no more, and lets others."""
        polling, self._polling = self._polling, None
        await stop_tasks(polling, *self._drafting.values())
        if polling is not None:
            with suppress(FoliotError):  # a store that is away: the lease ends by itself
                await self._readers.release(self.declared.uid, self._holder)

    # --- taking --------------------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        failures = 0
        while True:
            try:
                if not await self.poll_once():
                    await self._sleep(OTHERS_PAUSE)
                failures = 0
            except FoliotError as error:
                failures += 1
                pause = backoff(failures, 1.0, 60.0)
                if isinstance(error, DeliveryFailed):
                    pause = max(pause, error.after)
                log.warning("channel %s/%s: %s", self.declared.namespace, self.declared.name, error.message)
                with suppress(FoliotError):
                    await self._readers.note(self.declared.uid, self._holder, error.message)
                await self._sleep(pause)

    async def poll_once(self) -> bool:
        """Waits for updates and takes them, in order; False when another process polls. Raises `FoliotError`."""
        uid = self.declared.uid
        place = await self._readers.claim(uid, self._holder, now=self._clock(), lease=LEASE)
        if place is None:
            return False
        if self._me is None:
            self._me = await self._api.me()
        offset = int(place or 0)
        updates = await self._api.updates(offset, timeout=self._poll_seconds)
        await self._readers.note(uid, self._holder, "")
        for number, update in updates:
            if number < offset:
                continue
            if update is not None and update.message is not None:
                await self._take(number, update.message)
            # Only now: what was not taken before a crash comes again.
            if not await self._readers.move(uid, self._holder, str(number + 1)):
                return False
        return True

    async def _take(self, number: int, message: TelegramMessage) -> None:
        """Hands a message on. Raises what may pass; a message that can never be taken is logged and left."""
        sender = message.sender
        if sender is None or sender.is_bot:
            return
        incoming = self._unread(number, message, sender)
        try:
            # Nothing is fetched of somebody who may not speak.
            if await self._conversations.knows(self.declared, incoming.sender):
                incoming = await self._incoming(number, message, sender)
            received = await self._conversations.receive(self.declared, incoming)
        except OtherWords as error:  # taken before: what is different now is a file that was not there
            log.warning("channel %s: update %d is left: %s", self.declared.name, number, error.message)
            return
        except InboxFull:
            await self._left(number, incoming, BUSY)
            return
        except FoliotError as error:
            if error.retryable:
                raise
            await self._left(number, incoming, error.message)
            return
        except Exception:  # one message must not hold up all others for ever
            log.exception("channel %s: update %d is left", self.declared.name, number)
            await self._left(number, incoming, UNREADABLE)
            return
        if received.refused:
            log.info("channel %s: update %d: %s", self.declared.name, number, received.refused)
        if received.private:
            await self._show(incoming, received.reply)
        if received.session and received.address is not None:
            self._draft(received.session)

    async def _show(self, incoming: Incoming, text: str) -> None:
        """Sends something that is stored nowhere. A stranger to whom nothing can be sent holds up no one."""
        try:
            await self._api.send(incoming.chat, text)
        except DeliveryFailed as error:
            log.info("channel %s: sender %s could not be answered: %s", self.declared.name, incoming.sender, error)

    async def _left(self, number: int, incoming: Incoming, why: str) -> None:
        """Tells whoever wrote a message that it is not taken, under the id of the message. Raises what may pass."""
        log.warning("channel %s: update %d is left: %s", self.declared.name, number, why)
        if incoming.addressed:  # a group hears nothing about what was not said to the bot
            with suppress(OtherWords):  # it has ended before
                await self._conversations.tell(self.declared, incoming, why)

    def _unread(self, number: int, message: TelegramMessage, sender: TelegramUser) -> Incoming:
        """The message without its files and its thread: enough to tell its sender that it cannot be taken."""
        chat = str(message.chat.id)
        group = chat if message.chat.type != "private" else ""
        said = message.text or message.caption
        return Incoming(str(number), str(sender.id), said, chat, group, addressed=not group)

    async def _incoming(self, number: int, message: TelegramMessage, sender: TelegramUser) -> Incoming:
        chat = str(message.chat.id)
        group = chat if message.chat.type != "private" else ""
        text = message.text or message.caption
        addressed = not group or self._is_addressed(message, text)
        media: list[Media] = []
        if addressed or self._always(group):
            file = message.photo[-1] if message.photo else message.document
            if file is not None:
                taken = await self._file(file)
                if isinstance(taken, Media):
                    media.append(taken)
                else:
                    text = f"{text}\n{taken}".strip()
        thread = str(message.message_thread_id) if message.is_topic_message and message.message_thread_id else ""
        return Incoming(
            str(number),
            str(sender.id),
            self._without_mention(text) if group else text,
            chat,
            group,
            thread,
            str(message.message_id),
            tuple(media),
            addressed=addressed,
        )

    def _always(self, group: str) -> bool:
        known = self.declared.groups.get(group)
        return known is not None and known.respond == "always"

    def _is_addressed(self, message: TelegramMessage, text: str) -> bool:
        """Whether the bot is mentioned or replied to. Places of entities are counted in units of UTF-16."""
        assert self._me is not None, "asked before the first poll"
        replied = message.reply_to_message
        if replied is not None and replied.sender is not None and replied.sender.id == self._me.id:
            return True
        units = text.encode("utf-16-le")

        def said(entity: MessageEntity) -> str:
            return units[2 * entity.offset : 2 * (entity.offset + entity.length)].decode("utf-16-le", "replace")

        name = f"@{self._me.username}".lower()
        for entity in (*message.entities, *message.caption_entities):
            if entity.type == "mention" and said(entity).lower() == name:
                return True
            if entity.type == "text_mention" and entity.user is not None and entity.user.id == self._me.id:
                return True
            if entity.type == "bot_command" and said(entity).lower().endswith(name):
                return True
        return False

    def _without_mention(self, text: str) -> str:
        assert self._me is not None, "asked before the first poll"
        name = f"@{self._me.username}"
        return text[len(name) :].strip() if text.lower().startswith(name.lower()) else text

    async def _file(self, file: TelegramFile) -> Media | str:
        """The content of a file that somebody sent, or a line that says why it is not there."""
        name = _safe_name(file.file_name)
        if file.file_size > LARGEST_DOWNLOAD:
            return f"[{name or 'a file'} was not taken: it is larger than 20 MB]"
        try:
            content = await self._api.download(file.file_id)
        except DeliveryFailed as error:
            if not error.final:
                raise
            return f"[{name or 'a file'} was not taken: {error.message}]"
        found = next((kind for begin, kind in _SIGNATURES if content.startswith(begin)), None)
        if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
            found = "image/webp"
        kind = found or file.mime_type or "application/octet-stream"
        return Media(kind, data=base64.b64encode(content).decode(), name=name or None)

    # --- delivering ----------------------------------------------------------------------------------------------

    async def deliver(self, notification: Notification) -> None:
        """Sends an answer in as many messages as it takes; its draft becomes the first. Raises `DeliveryFailed`."""
        receipt = _receipt(notification.receipt)
        if (drafted := self._drafted.get(notification.run_id)) is not None:
            await drafted.ended.wait()  # or a late edit would undo the answer; it ends with the run
            if drafted.number and not receipt.draft:  # it was sent while this delivery was being taken
                receipt.draft = drafted.number
                await _noted(notification, receipt)
        chat, thread = notification.address.to, notification.address.thread_id
        texts = split_text(notification.text)
        for number, text in enumerate(texts):
            if number < receipt.sent:
                continue
            if number == 0 and receipt.draft:
                await self._finish_draft(chat, thread, receipt.draft, text)
            else:
                await self._api.send(chat, text, thread=thread)
            receipt.sent = number + 1
            await _noted(notification, receipt)
        for number, media in enumerate(notification.media, len(texts)):
            if number < receipt.sent:
                continue
            if (content := _content(media)) is not None:
                name = _safe_name(media.name or "") or f"file{mimetypes.guess_extension(media.media_type) or ''}"
                await self._api.send_file(chat, name, media.media_type, content, thread=thread)
            elif media.url:
                await self._api.send(chat, media.url, thread=thread)
            receipt.sent = number + 1
            await _noted(notification, receipt)

    async def _finish_draft(self, chat: str, thread: str, draft: int, text: str) -> None:
        try:
            await self._api.edit(chat, draft, text)
        except DeliveryFailed as error:
            if not error.final:
                raise
            await self._api.send(chat, text, thread=thread)  # somebody deleted it

    # --- drafts --------------------------------------------------------------------------------------------------

    def _draft(self, session: str) -> None:
        if self._watch is not None and session not in self._drafting:
            task = asyncio.create_task(self._draft_turns(self._watch, session))
            self._drafting[session] = task
            task.add_done_callback(lambda _: self._drafting.pop(session, None))

    async def _draft_turns(self, watch: TurnWatch, session: str) -> None:
        """Shows the turns of a session as they are written, until none is at work."""
        last = ""
        try:
            while (run_id := await watch.turn_of(session)) and run_id != last:
                last = run_id
                mine = [each for each in await self._outbox.addresses(run_id) if each.channel == self.declared.name]
                if not mine:
                    return
                drafted = self._drafted[run_id] = _Draft()
                try:
                    with watch.read(run_id) as reader:
                        await self._draft_turn(reader, run_id, mine[0], partial(watch.turn_of, session), drafted)
                finally:
                    drafted.ended.set()
                    del self._drafted[run_id]
        except FoliotError as error:
            log.info("channel %s: a draft is left: %s", self.declared.name, error.message)

    async def _draft_turn(
        self, reader: Reader, run_id: str, address: Address, turn: Callable[[], Awaitable[str]], draft: _Draft
    ) -> None:
        """Sends what is written so far, at most once a second, and stores the number of the draft with its delivery."""
        receipt = TelegramReceipt()
        text, shown, step = "", "", -1
        edited, typed, began = 0.0, float("-inf"), self._clock()
        pieces = reader.__aiter__()
        waiting: asyncio.Task[object] = asyncio.ensure_future(anext(pieces))
        try:
            while True:
                now = self._clock()
                if not text and now - typed >= TYPING_EVERY and now - began < LONGEST_TYPING:
                    typed = now
                    await self._api.typing(address.to, thread=address.thread_id)
                if text and text != shown and now - edited >= EDIT_EVERY:
                    piece = split_text(text, LONGEST_MESSAGE - len(CURSOR))[0] + CURSOR if text.strip() else ""
                    if piece and not receipt.draft and await self._outbox.waits(self.declared.namespace, address):
                        pass  # what comes before it is shown before it
                    elif piece and not receipt.draft:
                        receipt.draft = await self._api.send(address.to, piece, thread=address.thread_id)
                        draft.number = receipt.draft
                        stored = msgspec.json.encode(receipt).decode()
                        namespace = self.declared.namespace
                        await self._outbox.draft(run_id, namespace, address, stored, now=now)
                    elif piece:
                        await self._api.edit(address.to, receipt.draft, piece)
                    shown, edited = text, self._clock()
                due = EDIT_EVERY - (self._clock() - edited) if text != shown else TYPING_EVERY
                resting = asyncio.ensure_future(self._sleep(max(0.0, due)))
                await asyncio.wait({waiting, resting}, return_when=asyncio.FIRST_COMPLETED)
                await stop_tasks(resting)
                if not waiting.done():
                    if await turn() != run_id:
                        return  # it ended before it was listened to, or elsewhere
                    continue
                try:
                    item = waiting.result()
                except StopAsyncIteration:
                    return
                if isinstance(item, Recorded) and isinstance(item.event, Terminal):
                    return
                if isinstance(item, Streamed):
                    if item.step != step or isinstance(item.delta, RestartDelta):
                        text, step = "", item.step
                    text += item.text
                waiting = asyncio.ensure_future(anext(pieces))
        finally:
            await stop_tasks(waiting)


def _receipt(stored: str) -> TelegramReceipt:
    try:
        return msgspec.json.decode(stored, type=TelegramReceipt) if stored else TelegramReceipt()
    except msgspec.DecodeError:
        return TelegramReceipt()


async def _noted(notification: Notification, receipt: TelegramReceipt) -> None:
    if not await notification.progress(msgspec.json.encode(receipt).decode()):
        raise DeliveryFailed("somebody else delivers it by now")


def _content(media: Media) -> bytes | None:
    try:
        return base64.b64decode(media.data, validate=True) if media.data is not None else None
    except (binascii.Error, ValueError):
        return None


def _safe_name(name: str) -> str:
    """The last part of a file's name, without what a path, a terminal or a header would understand."""
    last = name.replace("\\", "/").rpartition("/")[2]
    kept = "".join(c for c in last if c.isprintable() and c not in '"<>|:*?').strip(" .")
    return kept[-LONGEST_NAME:]
