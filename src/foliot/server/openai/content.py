"""Messages of both APIs as messages of the kernel."""

from __future__ import annotations

import base64
import binascii
import mimetypes
from collections.abc import Sequence
from typing import Any, Final, Literal, cast

from foliot.kernel.messages import Media, Message, Part, Text
from foliot.server.openai.errors import BadRequest

AUDIO: Final = {"wav": "audio/wav", "mp3": "audio/mpeg"}
# Items of earlier answers that clients send back. What they say is in the conversation already, or only for show.
_SHOWN: Final = frozenset({"reasoning", "mcp_call", "mcp_list_tools", "mcp_approval_request"})
_TOOLS_HINT: Final = "an agent calls its own tools here, and their results stay with its run"
_TOOL_ITEMS: Final = frozenset({"function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"})


class Conversation:
    """What was said, apart from who the agent is: `instructions` stand beside its prompt.

    `approvals` are decisions about calls that an earlier answer asked for.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.instructions: list[str] = []
        self.approvals: list[dict[str, Any]] = []

    def split(self, param: str) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        """What was said before, and what is said now: the messages of the user at the end. Raises `BadRequest`."""
        at = len(self.messages)
        while at > 0 and self.messages[at - 1].role == "user":
            at -= 1
        if at == len(self.messages):
            raise BadRequest("there is nothing to answer: the last message must be of the user", param=param)
        return tuple(self.messages[:at]), tuple(self.messages[at:])

    def add(self, role: str, content: object, place: str) -> None:
        """One message of either API. Raises `BadRequest`."""
        match role:
            case "system" | "developer":
                self.instructions.append(_only_text(parts_of(content, place), place))
            case "user" | "assistant":
                parts = parts_of(content, place)
                if role == "assistant":
                    _only_text(parts, place)
                if not parts:
                    raise BadRequest("this message is empty", param=place)
                said: Literal["user", "assistant"] = "user" if role == "user" else "assistant"
                self.messages.append(Message(said, tuple(parts)))
            case "tool" | "function":
                raise BadRequest("results of tools cannot be sent", param=place, hint=_TOOLS_HINT)
            case _:
                raise BadRequest(f"there is no role {role!r}", param=f"{place}.role")


def chat_conversation(messages: Sequence[Any]) -> Conversation:
    """The `messages` of a chat completion. Raises `BadRequest`."""
    found = Conversation()
    for index, given in enumerate(messages):
        place = f"messages[{index}]"
        message = _object(given, place)
        if message.get("tool_calls") or message.get("function_call"):
            raise BadRequest("calls of tools cannot be sent", param=f"{place}.tool_calls", hint=_TOOLS_HINT)
        content = message.get("content")
        if content is None and message.get("refusal"):
            content = message["refusal"]
        found.add(_text(message.get("role"), f"{place}.role"), content, place)
    return found


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
        item = _object(each, place)
        kind = _text(item.get("type") or "message", f"{place}.type")
        if kind == "message":
            found.add(_text(item.get("role"), f"{place}.role"), item.get("content"), place)
        elif kind == "mcp_approval_response":
            found.approvals.append(item)
        elif kind in _TOOL_ITEMS:
            raise BadRequest("calls of tools and their results cannot be sent", param=place, hint=_TOOLS_HINT)
        elif kind not in _SHOWN:
            raise BadRequest(f"items of type {kind!r} cannot be sent", param=f"{place}.type")
    return found


def parts_of(content: object, place: str) -> list[Part]:
    """Text and media of one message. Raises `BadRequest`."""
    if isinstance(content, str):
        return [Text(content)] if content else []
    if not isinstance(content, list):
        raise BadRequest("content must be a text or a list of parts", param=f"{place}.content")
    return [
        _part(_object(each, f"{place}.content[{index}]"), f"{place}.content[{index}]")
        for index, each in enumerate(cast("list[Any]", content))
    ]


def _part(part: dict[str, Any], place: str) -> Part:
    match part.get("type"):
        case "text" | "input_text" | "output_text":
            return Text(_text(part.get("text"), f"{place}.text"))
        case "refusal":
            return Text(_text(part.get("refusal"), f"{place}.refusal"))
        case "image_url":
            image = _object(part.get("image_url"), f"{place}.image_url")
            return _addressed(_text(image.get("url"), f"{place}.image_url.url"), f"{place}.image_url.url")
        case "input_image":
            if part.get("file_id"):
                raise _no_uploads(place)
            return _addressed(_text(part.get("image_url"), f"{place}.image_url"), f"{place}.image_url")
        case "input_audio":
            audio = _object(part.get("input_audio"), f"{place}.input_audio")
            kind = AUDIO.get(str(audio.get("format")))
            if kind is None:
                raise BadRequest(f"audio can be {' or '.join(AUDIO)}", param=f"{place}.input_audio.format")
            return Media(kind, data=_base64(audio.get("data"), f"{place}.input_audio.data"))
        case "file":
            return _file(_object(part.get("file"), f"{place}.file"), f"{place}.file")
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
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest("this is not base64", param=place) from None
    return text


def _no_uploads(place: str) -> BadRequest:
    return BadRequest("there are no uploaded files here", param=f"{place}.file_id", hint="send the data itself")


def _only_text(parts: Sequence[Part], place: str) -> str:
    if any(not isinstance(part, Text) for part in parts):
        raise BadRequest("only messages of the user can hold images and files", param=f"{place}.content")
    return "".join(part.text for part in parts if isinstance(part, Text))


def _object(given: object, place: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise BadRequest("an object is expected here", param=place)
    return cast("dict[str, Any]", given)


def _text(given: object, place: str) -> str:
    if not isinstance(given, str):
        raise BadRequest("a text is expected here", param=place)
    return given
