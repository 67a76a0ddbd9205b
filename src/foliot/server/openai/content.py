"""Messages of both APIs as messages of the kernel."""

from __future__ import annotations

import base64
import binascii
import mimetypes
import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, cast

from msgspec.structs import replace

from foliot.kernel.messages import Media, Message, Part, Role, Text, ToolCall, ToolResult
from foliot.server.openai.errors import BadRequest

AUDIO: Final = {"wav": "audio/wav", "mp3": "audio/mpeg"}
# Items of earlier answers that clients send back. What they say is in the conversation already, or only for show.
_SHOWN: Final = frozenset({"reasoning", "mcp_call", "mcp_list_tools", "mcp_approval_request"})
_PIECE: Final = 4 * 1024 * 1024  # of base64: a multiple of four characters
# The id of a call that a client makes itself names the run that waits for it.
_CALL: Final = re.compile(r"call_([A-Za-z0-9-]{1,128})_(.{1,200})", re.DOTALL)


class CallRef(NamedTuple):
    """The run and the call that an id names which was handed to a client."""

    run_id: str
    call_id: str


def handed_out(run_id: str, call_id: str) -> str:
    """The id under which a client is asked to make a call."""
    return f"call_{run_id}_{call_id}"


def parse_call(id: str) -> CallRef | None:
    """Parses the id of a call; None for an id that was never handed out here."""
    found = _CALL.fullmatch(id)
    return CallRef(found[1], found[2]) if found else None


class Conversation:
    """A conversation without the agent's own prompt: `instructions` stand beside it.

    `approvals` are decisions about calls that an earlier answer asked for. Calls that the client has made itself, and
    their results, are parts of the messages, with the ids that the client knows them by.
    """

    def __init__(self) -> None:
        self._said: list[tuple[Role, list[Part]]] = []
        self.instructions: list[str] = []
        self.approvals: list[dict[str, Any]] = []

    @cached_property
    def messages(self) -> list[Message]:
        """The messages, once nothing is added any more."""
        return [Message(role, tuple(parts)) for role, parts in self._said]

    @property
    def results(self) -> dict[str, ToolResult]:
        """The results of calls that are said now, by the ids that they were handed out under."""
        at = self._now()
        parts = [part for message in self.messages[at:] for part in message.parts]
        return {part.call_id: part for part in parts if isinstance(part, ToolResult)}

    @property
    def besides(self) -> tuple[Message, ...]:
        """The messages of the user behind the history."""
        return tuple(message for message in self.messages[self._now() :] if message.role == "user")

    @property
    def size(self) -> int:
        """How long it takes to go through it: as long as through a text of so many characters."""
        return 100 * sum(len(parts) for _, parts in self._said)

    def split(self, param: str) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        """Return the history, and the user's message: nothing, behind results of tools. Raises `BadRequest`."""
        if self._now() == len(self.messages):
            raise BadRequest("there is nothing to answer: the last message must be of the user", param=param)
        told = _with_own_ids(self.messages, param)
        at = len(told)
        while at > 0 and told[at - 1].role == "user":
            at -= 1
        return tuple(told[:at]), tuple(told[at:])

    def _now(self) -> int:
        at = len(self.messages)
        while at > 0 and self.messages[at - 1].role != "assistant":
            at -= 1
        return at

    def add(self, role: str, content: object, place: str, calls: Sequence[ToolCall] = ()) -> None:
        """One message of either API. Raises `BadRequest`."""
        match role:
            case "system" | "developer":
                self.instructions.append(_only_text(parts_of(content, place), place))
            case "user":
                parts = parts_of(content, place)
                if not parts:
                    raise BadRequest("this message is empty", param=place)
                self._said.append(("user", parts))
            case "assistant":
                # An answer of nothing but calls has no content. One without anything is nothing that was said.
                parts = [] if content is None else parts_of(content, place)
                _only_text(parts, place)
                self._append("assistant", (*parts, *calls))
            case _:
                raise BadRequest(f"there is no role {role!r}", param=f"{place}.role")

    def add_result(self, id: object, content: object, place: str, id_param: str, *, files: bool) -> None:
        """The result of a call that the client has made; in one of the APIs with images and files. Raises `BadRequest`.

        Its texts are one text, in front of the files.
        """
        parts = [] if content is None else parts_of(content, place)
        media = tuple(part for part in parts if isinstance(part, Media)) if files else ()
        text = _only_text([part for part in parts if part not in media], place, of="results of tools")
        said = () if media and not text else (Text(text),)
        self._append("tool", (ToolResult(_text(id, f"{place}.{id_param}"), "", (*said, *media)),))

    def add_call(self, call: ToolCall) -> None:
        self._append("assistant", (call,))

    def _append(self, role: Literal["assistant", "tool"], parts: tuple[Part, ...]) -> None:
        """Make one message each of what one step of an agent said, called and heard, however many items it came in."""
        if not parts:
            return
        before, last = self._said[-1] if self._said else ("", [])
        # Calls stand behind all texts of their message, so its last part says whether it has any.
        called = bool(last) and isinstance(last[-1], ToolCall)
        if before == role and (role == "tool" or not called or _only_calls(parts)):
            last.extend(parts)
        else:
            self._said.append((role, [*parts]))


def _only_calls(parts: Sequence[Part]) -> bool:
    return all(isinstance(part, ToolCall) for part in parts)


def _with_own_ids(messages: Sequence[Message], param: str) -> list[Message]:
    """The messages as a run is told them: every call with its result, and ids as short as the models gave them.

    Raises `BadRequest` for a call without a result, and a result without a call.
    """
    own: dict[str, ToolCall] = {}
    taken: set[str] = set()
    open_calls: dict[str, None] = {}
    used: Counter[str] = Counter()
    told: list[Message] = []

    def renamed(part: Part) -> Part:
        match part:
            case ToolCall(id=id):
                ref = parse_call(id)
                wanted = short = ref.call_id if ref is not None else id
                while short in taken:
                    used[wanted] += 1
                    short = f"{wanted}-{used[wanted] + 1}"
                taken.add(short)
                own[id] = replace(part, id=short)
                open_calls[id] = None
                return own[id]
            case ToolResult(call_id=id):
                call = own.get(id)
                if call is None or id not in open_calls:
                    raise BadRequest(f"no call {id[:200]!r} waits for a result", param=param, hint=_NO_CALL)
                del open_calls[id]
                return replace(part, call_id=call.id, name=call.name)
            case _:
                return part

    for message in messages:
        if message.role != "tool" and open_calls:
            break
        told.append(Message(message.role, tuple(renamed(part) for part in message.parts)))
    if open_calls:
        raise BadRequest(f"the call {next(iter(open_calls))[:200]!r} has no result", param=param, hint=_NO_RESULT)
    return told


_NO_CALL: Final = "a run that waited for it goes on once; otherwise send the message of the assistant that calls, too"
_NO_RESULT: Final = "send the results of all calls behind the message of the assistant that asks for them"


def chat_conversation(messages: Sequence[Any]) -> Conversation:
    """The `messages` of a chat completion. Raises `BadRequest`."""
    found = Conversation()
    for index, given in enumerate(messages):
        place = f"messages[{index}]"
        message = object_at(given, place)
        if message.get("function_call"):
            raise BadRequest("function_call was replaced by tool_calls", param=f"{place}.function_call")
        content = message.get("content")
        if content is None and message.get("refusal"):
            content = message["refusal"]
        role = _text(message.get("role"), f"{place}.role")
        if role == "tool":
            found.add_result(message.get("tool_call_id"), content, place, "tool_call_id", files=False)
            continue
        if role == "function":
            raise BadRequest("the role function was replaced by tool", param=f"{place}.role")
        found.add(role, content, place, _calls(message.get("tool_calls"), f"{place}.tool_calls"))
    return found


def _calls(given: object, place: str) -> list[ToolCall]:
    if not given:
        return []
    if not isinstance(given, list):
        raise BadRequest("a list of calls is expected here", param=place)
    calls: list[ToolCall] = []
    for index, each in enumerate(cast("list[Any]", given)):
        where = f"{place}[{index}]"
        call = object_at(each, where)
        if call.get("type", "function") != "function":
            raise BadRequest("only functions can be called", param=f"{where}.type")
        function = object_at(call.get("function"), f"{where}.function")
        calls.append(_call(call.get("id"), f"{where}.id", function, f"{where}.function"))
    return calls


def _call(id: object, id_place: str, function: dict[str, Any], place: str) -> ToolCall:
    return ToolCall(
        _text(id, id_place),
        _text(function.get("name"), f"{place}.name"),
        _text(function.get("arguments"), f"{place}.arguments"),
    )


def response_conversation(given: object) -> Conversation:
    """The `input` of a response: a text or a list of items. Raises `BadRequest`."""
    found = Conversation()
    if isinstance(given, str):
        found.add("user", given, "input")
        return found
    if not isinstance(given, list):
        raise BadRequest("input must be a text or a list of items", param="input")
    for index, each in enumerate(cast("list[Any]", given)):
        place = f"input[{index}]"
        item = object_at(each, place)
        match kind := _text(item.get("type") or "message", f"{place}.type"):
            case "message":
                found.add(_text(item.get("role"), f"{place}.role"), item.get("content"), place)
            case "mcp_approval_response":
                found.approvals.append(item)
            case "function_call":
                found.add_call(_call(item.get("call_id"), f"{place}.call_id", item, place))
            case "function_call_output":
                content = item.get("output")
                found.add_result(item.get("call_id"), content, place, "call_id", files=True)
            case _ if kind not in _SHOWN:
                raise BadRequest(f"items of type {kind!r} cannot be sent", param=f"{place}.type")
            case _:
                pass
    return found


def parts_of(content: object, place: str) -> list[Part]:
    """Text and media of one message. Raises `BadRequest`."""
    if isinstance(content, str):
        return [Text(content)] if content else []
    if not isinstance(content, list):
        raise BadRequest("content must be a text or a list of parts", param=f"{place}.content")
    return [
        _part(object_at(each, f"{place}.content[{index}]"), f"{place}.content[{index}]")
        for index, each in enumerate(cast("list[Any]", content))
    ]


def _part(part: dict[str, Any], place: str) -> Part:
    match part.get("type"):
        case "text" | "input_text" | "output_text":
            return Text(_text(part.get("text"), f"{place}.text"))
        case "refusal":
            return Text(_text(part.get("refusal"), f"{place}.refusal"))
        case "image_url":
            image = object_at(part.get("image_url"), f"{place}.image_url")
            return _addressed(_text(image.get("url"), f"{place}.image_url.url"), f"{place}.image_url.url")
        case "input_image":
            if part.get("file_id"):
                raise _no_uploads(place)
            return _addressed(_text(part.get("image_url"), f"{place}.image_url"), f"{place}.image_url")
        case "input_audio":
            audio = object_at(part.get("input_audio"), f"{place}.input_audio")
            kind = AUDIO.get(str(audio.get("format")))
            if kind is None:
                raise BadRequest(f"audio can be {' or '.join(AUDIO)}", param=f"{place}.input_audio.format")
            return Media(kind, data=_base64(audio.get("data"), f"{place}.input_audio.data"))
        case "file":
            return _file(object_at(part.get("file"), f"{place}.file"), f"{place}.file")
        case "input_file":
            return _file(part, place)
        case kind:
            raise BadRequest(f"content of type {kind!r} cannot be sent", param=f"{place}.type")


def _file(file: dict[str, Any], place: str) -> Media:
    if file.get("file_id"):
        raise _no_uploads(place)
    name = str(file.get("filename") or "") or None
    guessed = mimetypes.guess_type(name or "")[0] or "application/octet-stream"
    if url := file.get("file_url"):
        found = _addressed(_text(url, f"{place}.file_url"), f"{place}.file_url", guessed)
        return Media(found.media_type, data=found.data, url=found.url, name=name)
    given = _text(file.get("file_data"), f"{place}.file_data")
    if given.startswith("data:"):
        found = _addressed(given, f"{place}.file_data", guessed)
        return Media(found.media_type, data=found.data, name=name)
    return Media(guessed, data=_base64(given, f"{place}.file_data"), name=name)


def _addressed(url: str, place: str, media_type: str = "image/png") -> Media:
    if url.startswith(("http://", "https://")):
        return Media(mimetypes.guess_type(url.split("?", 1)[0])[0] or media_type, url=url)
    head, comma, data = url.partition(",")
    if not head.startswith("data:") or not comma or not head.endswith(";base64"):
        raise BadRequest("an address must begin with http:, https: or data:…;base64,", param=place)
    kind = head.removeprefix("data:").split(";", 1)[0]
    return Media(kind or media_type, data=_base64(data, place))


def _base64(given: object, place: str) -> str:
    text = _text(given, place)
    try:
        for begin in range(0, len(text), _PIECE):  # other threads have their turn in between
            base64.b64decode(text[begin : begin + _PIECE], validate=True)
            if "=" in text[begin : begin + _PIECE] and begin + _PIECE < len(text):
                raise binascii.Error
    except (binascii.Error, ValueError):
        raise BadRequest("this is not base64", param=place) from None
    return text


def _no_uploads(place: str) -> BadRequest:
    return BadRequest("there are no uploaded files here", param=f"{place}.file_id", hint="send the data itself")


def _only_text(parts: Sequence[Part], place: str, *, of: str = "these messages") -> str:
    if any(not isinstance(part, Text) for part in parts):
        hint = f"{of} are text"
        raise BadRequest("only messages of the user can hold images and files", param=f"{place}.content", hint=hint)
    return "".join(part.text for part in parts if isinstance(part, Text))


def object_at(given: object, place: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise BadRequest("an object is expected here", param=place)
    return cast("dict[str, Any]", given)


def _text(given: object, place: str) -> str:
    if not isinstance(given, str):
        raise BadRequest("a text is expected here", param=place)
    return given
