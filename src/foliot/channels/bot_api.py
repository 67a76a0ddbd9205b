"""The Bot API of Telegram: its requests, its answers, its errors and its limits. It knows nothing of agents.

A method is a POST of JSON, or of a form where a file is sent along; the token is a part of the address, and therefore
never shown. Errors differ by their code: 429 says for how long to wait, 401 and 404 that the token is wrong,
403 that somebody has blocked the bot, 400 that a request can never succeed.
"""

from __future__ import annotations

import secrets as chance
from typing import Any, Final

import msgspec
from msgspec import Struct

from foliot.channels.base import DeliveryFailed, Token
from foliot.errors import FoliotError
from foliot.kernel.arguments import read_json
from foliot.tools.base import ToolError
from foliot.tools.outbound.client import OutboundClient, Patience

# Telegram counts a text in units of UTF-16.
LONGEST_MESSAGE: Final = 4096
LONGEST_CAPTION: Final = 1024
LARGEST_DOWNLOAD: Final = 20 * 1024 * 1024
LARGEST_PHOTO: Final = 10 * 1024 * 1024
LARGEST_DOCUMENT: Final = 50 * 1024 * 1024
LARGEST_ANSWER: Final = 4 * 1024 * 1024
_UNCHANGED: Final = "message is not modified"


class TelegramUser(Struct):
    id: int
    is_bot: bool = False
    username: str = ""
    first_name: str = ""


class TelegramChat(Struct):
    id: int
    type: str = "private"


class MessageEntity(Struct):
    type: str
    offset: int
    length: int
    user: TelegramUser | None = None


class TelegramFile(Struct):
    """A photo size, a document, or the answer of `getFile`."""

    file_id: str
    file_size: int = 0
    file_path: str = ""
    file_name: str = ""
    mime_type: str = ""


class TelegramMessage(Struct):
    message_id: int
    chat: TelegramChat
    sender: TelegramUser | None = msgspec.field(default=None, name="from")
    text: str = ""
    caption: str = ""
    entities: list[MessageEntity] = []
    caption_entities: list[MessageEntity] = []
    photo: list[TelegramFile] = []
    document: TelegramFile | None = None
    message_thread_id: int | None = None
    is_topic_message: bool = False
    reply_to_message: TelegramMessage | None = None


class Update(Struct):
    """An update. `message` is None for a kind that was not asked for."""

    update_id: int
    message: TelegramMessage | None = None


class _ErrorParameters(Struct, frozen=True):
    retry_after: float = 0.0


class _Envelope(Struct):
    ok: bool
    result: msgspec.Raw = msgspec.Raw(b"null")
    error_code: int = 0
    description: str = ""
    parameters: _ErrorParameters = _ErrorParameters()


class BotApi:
    """The methods that are used here, for one bot. `token` is looked up for each request: it may be changed."""

    def __init__(self, client: OutboundClient, endpoint: str, token: Token) -> None:
        self._client = client
        self._endpoint = endpoint.rstrip("/")
        self._token = token

    async def me(self) -> TelegramUser:
        """Returns the bot itself. Raises `DeliveryFailed`, as all methods do."""
        return msgspec.json.decode(await self._call("getMe", {}), type=TelegramUser)

    async def updates(self, offset: int, *, timeout: int) -> list[tuple[int, Update | None]]:
        """Waits for updates from `offset` on, and confirms those before it. One that cannot be read is None."""
        asked = {"offset": offset, "timeout": timeout, "limit": 100, "allowed_updates": ["message"]}
        result = await self._call("getUpdates", asked, patience=timeout + 30.0)
        found: list[tuple[int, Update | None]] = []
        for raw in msgspec.json.decode(result, type=list[msgspec.Raw]):
            number = msgspec.json.decode(raw, type=_Number).update_id
            try:
                found.append((number, msgspec.convert(read_json(bytes(raw)), Update)))
            except msgspec.ValidationError:
                found.append((number, None))
        return found

    async def send(self, chat: str, text: str, *, thread: str = "") -> int:
        """Sends a message; its number."""
        return self._number(await self._call("sendMessage", {**_where(chat, thread), "text": text}))

    async def edit(self, chat: str, message: int, text: str) -> None:
        """Changes the text of a message. One that has this text already is left as it is."""
        try:
            await self._call("editMessageText", {"chat_id": int(chat), "message_id": message, "text": text})
        except DeliveryFailed as error:
            if _UNCHANGED not in error.message:
                raise

    async def typing(self, chat: str, *, thread: str = "") -> None:
        """Shows for some seconds that an answer is being written."""
        await self._call("sendChatAction", {**_where(chat, thread), "action": "typing"})

    async def send_file(self, chat: str, name: str, media_type: str, content: bytes, *, thread: str = "") -> int:
        """Sends a picture or a file; the number of its message."""
        photo = media_type in ("image/jpeg", "image/png", "image/webp") and len(content) <= LARGEST_PHOTO
        method, field = ("sendPhoto", "photo") if photo else ("sendDocument", "document")
        if len(content) > LARGEST_DOCUMENT:
            raise DeliveryFailed(f"a file of {len(content)} bytes is larger than Telegram takes", final=True)
        return self._number(await self._upload(method, _where(chat, thread), field, name, media_type, content))

    async def download(self, file_id: str) -> bytes:
        """Returns the content of a file that somebody sent."""
        file = msgspec.json.decode(await self._call("getFile", {"file_id": file_id}), type=TelegramFile)
        if file.file_size > LARGEST_DOWNLOAD:
            raise DeliveryFailed("the file is larger than 20 MB", final=True)
        # What is not a plain path of theirs is none that they gave.
        if not file.file_path or ".." in file.file_path or any(c in file.file_path for c in "?#\\\x00"):
            raise DeliveryFailed("the file cannot be fetched", final=True)
        token = await self._current_token()
        url = f"{self._endpoint}/file/bot{token}/{file.file_path}"
        try:
            async with self._client.send("GET", url, redirects=0) as answer:
                if answer.status != 200:
                    raise DeliveryFailed(f"the file cannot be fetched: HTTP {answer.status}", final=answer.status < 500)
                return await answer.read(LARGEST_DOWNLOAD)
        except ToolError as error:
            raise _failed(error, token) from None

    @staticmethod
    def _number(result: msgspec.Raw) -> int:
        return msgspec.json.decode(result, type=TelegramMessage).message_id

    async def _upload(
        self, method: str, fields: dict[str, Any], field: str, name: str, media_type: str, content: bytes
    ) -> msgspec.Raw:
        border = chance.token_hex(16)
        safe = name.replace('"', "'").replace("\r", " ").replace("\n", " ")
        parts = [
            f'--{border}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
            for key, value in fields.items()
        ]
        head = f'--{border}\r\nContent-Disposition: form-data; name="{field}"; filename="{safe}"\r\n'
        parts.append(f"{head}Content-Type: {media_type}\r\n\r\n".encode() + content + b"\r\n")
        body = b"".join((*parts, f"--{border}--\r\n".encode()))
        return await self._post(method, body, f"multipart/form-data; boundary={border}", 300.0)

    async def _call(self, method: str, arguments: dict[str, Any], *, patience: float = 60.0) -> msgspec.Raw:
        return await self._post(method, msgspec.json.encode(arguments), "application/json", patience)

    async def _post(self, method: str, body: bytes, content_type: str, patience: float) -> msgspec.Raw:
        token = await self._current_token()
        url = f"{self._endpoint}/bot{token}/{method}"
        try:
            async with self._client.send(
                "POST", url, headers={"Content-Type": content_type}, body=body, redirects=0, patience=Patience(patience)
            ) as answer:
                content = await answer.read(LARGEST_ANSWER)
                status = answer.status
        except ToolError as error:
            raise _failed(error, token) from None
        try:
            envelope = msgspec.json.decode(content, type=_Envelope)
        except (msgspec.DecodeError, msgspec.ValidationError):
            raise DeliveryFailed(f"{method}: what came back is no answer of the Bot API (HTTP {status})") from None
        if envelope.ok:
            return envelope.result
        code = envelope.error_code or status
        final = code in (400, 401, 403, 404, 413)
        raise DeliveryFailed(
            f"{method}: {envelope.description[:300] or f'HTTP {code}'}",
            final=final,
            after=envelope.parameters.retry_after,
        )

    async def _current_token(self) -> str:
        try:
            return (await self._token()).strip()
        except FoliotError as error:
            raise DeliveryFailed(error.message) from None


def _failed(error: ToolError, token: str) -> DeliveryFailed:
    """Says what went wrong on the way, without the token that stands in the address."""
    return DeliveryFailed(error.message.replace(token, "***"), final=not error.retryable)


class _Number(Struct):
    update_id: int


def _where(chat: str, thread: str) -> dict[str, int]:
    try:
        return {"chat_id": int(chat), **({"message_thread_id": int(thread)} if thread else {})}
    except ValueError:
        raise DeliveryFailed(f"{chat[:80]!r} is not the id of a chat", final=True) from None


def split_text(text: str, limit: int = LONGEST_MESSAGE) -> list[str]:
    """Cuts a text into pieces of at most `limit` units of UTF-16: behind a line, else behind a word, else anywhere.

    No character is cut in two, and the pieces together are the text but for the blanks where it was cut.
    """
    pieces: list[str] = []
    rest = text.strip("\n")
    while _units(rest) > limit:
        fitting = _fitting(rest, limit)
        cut = fitting.rfind("\n")
        if cut <= 0:
            cut = fitting.rfind(" ")
        piece = fitting[:cut] if cut > 0 else fitting
        if piece.strip():
            pieces.append(piece.rstrip())
        rest = rest[len(piece) :].lstrip("\n " if cut > 0 else "")
    return [*pieces, rest] if rest.strip() else pieces


def _units(text: str) -> int:
    return len(text) + sum(1 for character in text if character > "\uffff")


def _fitting(text: str, limit: int) -> str:
    used = 0
    for number, character in enumerate(text):
        used += 2 if character > "\uffff" else 1
        if used > limit:
            return text[:number]
    return text
