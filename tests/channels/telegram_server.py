"""A server that speaks the Bot API on loopback, as strict as the real one: what Telegram refuses, it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

TOKEN = "123456:test-token-of-a-bot"
BOT = {"id": 999, "is_bot": True, "first_name": "Desk", "username": "desk_bot"}
_TAKES = {
    "getMe": set[str](),
    "getUpdates": {"offset", "limit", "timeout", "allowed_updates"},
    "sendMessage": {"chat_id", "text", "message_thread_id"},
    "editMessageText": {"chat_id", "message_id", "text"},
    "sendChatAction": {"chat_id", "action", "message_thread_id"},
    "getFile": {"file_id"},
    "sendPhoto": {"chat_id", "photo", "message_thread_id"},
    "sendDocument": {"chat_id", "document", "message_thread_id"},
}


class Refusal(Exception):
    def __init__(self, code: int, description: str, **parameters: Any) -> None:
        super().__init__(description)
        self.code, self.description, self.parameters = code, description, parameters


class TelegramServer:
    """`async with TelegramServer() as telegram`: people `write` to the bot, and `shown` is what they see."""

    def __init__(self, chats: tuple[int, ...] = (42, 43, -100)) -> None:
        self.token = TOKEN
        self.chats = set(chats)
        self.updates: list[dict[str, Any]] = []
        self.messages: dict[int, dict[str, Any]] = {}
        self.files: dict[str, bytes] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.refusals: list[tuple[str, Refusal]] = []
        self.blocked: set[int] = set()
        self.on_call: Callable[[], None] | None = None
        self.confirmed = 0
        self._next, self._message, self._polls = 1, 1, 0
        self._came = asyncio.Event()
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> TelegramServer:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/bot{token}/{method}", self._method)
        app.router.add_get("/file/bot{token}/{path:.*}", self._file)
        self._server = TestServer(app)
        await self._server.start_server()
        self.url = f"http://127.0.0.1:{self._server.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._came.set()
        await self._server.close()

    # --- people --------------------------------------------------------------------------------------------------

    def write(self, text: str = "", *, sender: int = 42, chat: int | None = None, **more: Any) -> int:
        """Somebody writes; the number of the update."""
        number, self._next = self._next, self._next + 1
        where = sender if chat is None else chat
        message: dict[str, Any] = {
            "message_id": 1000 + number,
            "date": 1700000000,
            "from": {"id": sender, "is_bot": False, "first_name": "Somebody", "language_code": "en"},
            "chat": {"id": where, "type": "private" if where > 0 else "supergroup"},
            **({"text": text} if text else {}),
            **more,
        }
        self.updates.append({"update_id": number, "message": message})
        self._came.set()
        self._came = asyncio.Event()
        return number

    @property
    def shown(self) -> list[str]:
        """What people see, in order, as it is now."""
        return [each["text"] for _, each in sorted(self.messages.items())]

    async def seen(self, count: int) -> list[str]:
        """Waits until people see so many messages that no draft is among."""

        def there() -> bool:
            return sum(1 for each in self.shown if not each.endswith("▌")) >= count

        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(there)
        return self.shown

    def said(self, method: str) -> list[dict[str, Any]]:
        return [arguments for name, arguments in self.calls if name == method]

    # --- the bot -------------------------------------------------------------------------------------------------

    async def _method(self, request: web.Request) -> web.Response:
        method = request.match_info["method"]
        try:
            if request.match_info["token"] != self.token:
                raise Refusal(401, "Unauthorized")
            if method not in _TAKES:
                raise Refusal(404, "Not Found")
            arguments = await _arguments(request)
            unknown = arguments.keys() - _TAKES[method]
            assert not unknown, f"{method} has no parameter {unknown}"
            self.calls.append((method, arguments))
            if self.on_call is not None:
                self.on_call()
            for number, (name, refusal) in enumerate(self.refusals):
                if name == method:
                    del self.refusals[number]
                    raise refusal
            result = await getattr(self, f"_{method}")(**arguments)
        except Refusal as refusal:
            told: dict[str, Any] = {"ok": False, "error_code": refusal.code, "description": refusal.description}
            if refusal.parameters:
                told["parameters"] = refusal.parameters
            return web.json_response(told, status=refusal.code)
        finally:
            async with self._changed:
                self._changed.notify_all()
        return web.json_response({"ok": True, "result": result})

    async def _getMe(self) -> Any:
        return {**BOT, "can_join_groups": True}

    async def _getUpdates(self, offset: int = 0, limit: int = 100, timeout: int = 0, **_: Any) -> Any:
        self._polls += 1
        try:
            if self._polls > 1:
                raise Refusal(409, "Conflict: terminated by other getUpdates request")
            self.updates = [each for each in self.updates if each["update_id"] >= offset]
            self.confirmed = max(self.confirmed, offset)
            if not self.updates and timeout:
                try:
                    async with asyncio.timeout(timeout):
                        await self._came.wait()
                except TimeoutError:
                    return []
            return self.updates[:limit]
        finally:
            self._polls -= 1

    def _chat(self, chat_id: Any) -> int:
        number = int(chat_id)
        if number in self.blocked:
            raise Refusal(403, "Forbidden: bot was blocked by the user")
        if number not in self.chats:
            raise Refusal(400, "Bad Request: chat not found")
        return number

    async def _sendMessage(self, chat_id: Any, text: str, message_thread_id: int | None = None) -> Any:
        return self._put(self._chat(chat_id), _text(text))

    async def _editMessageText(self, chat_id: Any, message_id: int, text: str) -> Any:
        chat = self._chat(chat_id)
        known = self.messages.get(message_id)
        if known is None or known["chat"]["id"] != chat:
            raise Refusal(400, "Bad Request: message to edit not found")
        if known["text"] == _text(text):
            raise Refusal(
                400,
                "Bad Request: message is not modified: specified new message content and reply markup are exactly the "
                "same as a current content and reply markup of the message",
            )
        known["text"] = text
        return known

    async def _sendChatAction(self, chat_id: Any, action: str, message_thread_id: int | None = None) -> Any:
        self._chat(chat_id)
        if action not in ("typing", "upload_photo", "upload_document"):
            raise Refusal(400, "Bad Request: wrong parameter action in request")
        return True

    async def _sendPhoto(self, chat_id: Any, photo: tuple[str, str, bytes], message_thread_id: Any = None) -> Any:
        name, kind, content = photo
        if not kind.startswith("image/") or len(content) > 10 * 1024 * 1024:
            raise Refusal(400, "Bad Request: IMAGE_PROCESS_FAILED")
        return self._put(self._chat(chat_id), f"[photo {name} {len(content)}]")

    async def _sendDocument(self, chat_id: Any, document: tuple[str, str, bytes], message_thread_id: Any = None) -> Any:
        name, _, content = document
        return self._put(self._chat(chat_id), f"[document {name} {len(content)}]")

    async def _getFile(self, file_id: str) -> Any:
        if file_id not in self.files:
            raise Refusal(400, "Bad Request: invalid file_id")
        size = len(self.files[file_id])
        if size > 20 * 1024 * 1024:
            raise Refusal(400, "Bad Request: file is too big")
        return {"file_id": file_id, "file_unique_id": "u", "file_size": size, "file_path": f"photos/{file_id}.jpg"}

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info["path"].removeprefix("photos/").removesuffix(".jpg")
        if request.match_info["token"] != self.token or name not in self.files:
            return web.json_response({"ok": False, "error_code": 404, "description": "Not Found"}, status=404)
        return web.Response(body=self.files[name])

    def _put(self, chat: int, text: str) -> dict[str, Any]:
        number, self._message = self._message, self._message + 1
        made = {"message_id": number, "from": BOT, "chat": {"id": chat, "type": "private"}, "date": 1, "text": text}
        self.messages[number] = made
        return made


def _text(text: str) -> str:
    if not text.strip():
        raise Refusal(400, "Bad Request: message text is empty")
    if len(text.encode("utf-16-le")) // 2 > 4096:
        raise Refusal(400, "Bad Request: message is too long")
    return text


async def _arguments(request: web.Request) -> dict[str, Any]:
    if request.content_type == "application/json":
        return await request.json()
    assert request.content_type == "multipart/form-data", request.content_type
    form = await request.post()
    return {
        name: value if isinstance(value, str) else (value.filename, value.content_type, value.file.read())
        for name, value in form.items()
    }
