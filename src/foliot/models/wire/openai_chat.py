"""Chat completions requests, as OpenAI defines them and many others speak them, each with a small accent.

`ChatOptions` holds the accents. The answers are read in openai_chat_answer.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from foliot.kernel.messages import (
    Media,
    Message,
    ModelRequest,
    ModelResponse,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    joined,
)
from foliot.models.config import GatewayConfig
from foliot.models.profiles import ModelProfile, profile_of
from foliot.models.wire.base import Unsendable
from foliot.models.wire.media import (
    address,
    decoded_text,
    file_name,
    is_image,
    is_text,
    needs_bytes,
    placeholder,
    result_files,
    result_texts,
)
from foliot.models.wire.opaque import unmark
from foliot.models.wire.openai_chat_answer import DETAILS, ChatAssembler, counted_in_chat, parse_chat
from foliot.models.wire.requests import CHOICES, Notes, Profiles, asked_in_words, fitted, merged, tools_to_send
from foliot.models.wire.schemas import is_object, strict_schema
from foliot.models.wire.tool_names import ToolNames, description_of, tool_names
from foliot.models.wire.values import ANY_ID, NINE_ID, CallIds, arguments_text, sendable_id

_AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
ReasoningReplay = Literal["none", "reasoning_content", "reasoning", "reasoning_details"]


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """The differences between compatible servers.

    `from_config` guesses by the host; an option can overrule every guess.
    """

    max_tokens_field: str = "max_completion_tokens"
    own_field: bool = False
    include_usage: bool = True
    send_tool_choice: bool = True
    system_role: str = "system"
    reasoning_replay: str = "none"
    nine_ids: bool = False
    tool_parts: bool = True
    path: str = "/chat/completions"
    cache: str = "off"

    @classmethod
    def from_config(cls, config: GatewayConfig, base_url: str, path: str = "/chat/completions") -> ChatOptions:
        host = urlsplit(base_url).hostname or ""
        official = host.endswith(("openai.com", ".azure.com", ".microsoft.com"))
        replay = "none"
        if host.endswith("openrouter.ai"):
            replay = "reasoning_details"
        elif host.endswith(("deepseek.com", "moonshot.ai", "moonshot.cn")):
            replay = "reasoning_content"
        fields = ("max_completion_tokens", "max_tokens")
        # Most cache by themselves. These go by a key that says which questions have the same beginning; OpenRouter is
        # asked to set Claude's marks.
        cache = "key" if official or host.endswith("mistral.ai") else "off"
        if host.endswith("openrouter.ai"):
            cache = "marks"
        ids = "nine" if host.endswith("mistral.ai") else "any"
        return cls(
            own_field=bool(config.text("max_tokens_field")),
            max_tokens_field=config.choice("max_tokens_field", fields, fields[0] if official else fields[1]),
            include_usage=config.flag("include_usage", True),
            send_tool_choice=config.flag("tool_choice", True),
            system_role=config.choice("system_role", ("system", "developer", "user"), "system"),
            reasoning_replay=config.choice(
                "reasoning_replay", ("none", "reasoning_content", "reasoning", "reasoning_details"), replay
            ),
            nine_ids=config.choice("call_ids", ("any", "nine"), ids) == "nine",
            tool_parts=config.flag("tool_parts", official),
            path=path,
            cache=config.choice("cache", ("key", "marks", "off"), cache),
        )


def conversation_key(request: ModelRequest) -> str:
    """A name for the beginning of a conversation: the same at each of its steps, another one for each conversation.

    Providers send questions of one key to one machine, which has the prefix in its cache; a key that all runs of an
    agent shared would be too many for it.
    """
    digest = blake2b(request.system.encode("utf-8", "replace"), digest_size=16)
    for part in request.messages[0].parts if request.messages else ():
        if isinstance(part, Text):
            digest.update(part.text.encode("utf-8", "replace"))
    return f"foliot-{digest.hexdigest()}"


class OpenAIChatWire:
    """Writes requests and reads answers in OpenAI's Chat Completions format; implements `Wire`."""

    def __init__(self, options: ChatOptions | None = None, profiles: Profiles | None = None) -> None:
        self.options = options or ChatOptions()
        self._profile = profiles or partial(profile_of, "openai")
        self._ids = NINE_ID if self.options.nine_ids else ANY_ID

    def names(self, request: ModelRequest) -> ToolNames:
        return tool_names(request.tools)

    def path(self, model: str, *, stream: bool) -> str:
        return self.options.path

    def build_body(
        self, request: ModelRequest, names: ToolNames, *, stream: bool, notes: Notes | None = None
    ) -> dict[str, Any]:
        notes = [] if notes is None else notes
        profile = self._profile(request.model)
        request = fitted(request, profile, notes)
        request, answer = _answer_format(request, profile)
        settings = request.settings
        body: dict[str, Any] = {"model": request.model, "messages": self._messages(request, names)}
        if request.tools:
            body["tools"] = _tools(request, names, notes)
            if self.options.send_tool_choice:
                body["tool_choice"] = _tool_choice(settings.tool_choice, names)
            elif settings.tool_choice != "auto":
                notes.append("tool_choice is not sent: the endpoint's option tool_choice is off")
            if settings.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = settings.parallel_tool_calls
        if settings.max_output_tokens is not None:
            field = "" if self.options.own_field else profile.output_field
            body[field or self.options.max_tokens_field] = settings.max_output_tokens
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if settings.top_p is not None:
            body["top_p"] = settings.top_p
        if settings.stop:
            body["stop"] = settings.stop
        if settings.seed is not None:
            body["seed"] = settings.seed
        if settings.reasoning_effort is not None:
            body["reasoning_effort"] = settings.reasoning_effort
        if answer is not None:
            body["response_format"] = answer
        if self.options.cache == "key":
            body["prompt_cache_key"] = conversation_key(request)
        elif self.options.cache == "marks" and "claude" in request.model:
            body["cache_control"] = {"type": "ephemeral"}
        if stream:
            body["stream"] = True
            if self.options.include_usage:
                body["stream_options"] = {"include_usage": True}
        return merged(body, settings.extra) if settings.extra else body

    def parse(self, body: bytes, names: ToolNames, ids: CallIds) -> ModelResponse:
        return parse_chat(body, names, ids)

    def counted(self, body: bytes) -> Usage:
        return counted_in_chat(body)

    def assembler(self, names: ToolNames, ids: CallIds) -> ChatAssembler:
        return ChatAssembler(names, ids)

    def _messages(self, request: ModelRequest, names: ToolNames) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        if request.system:
            sent.append({"role": self.options.system_role, "content": request.system})
        # Tool messages hold text only, and none may come between them: what else the tools returned waits here.
        waiting: list[dict[str, Any]] = []
        for message in request.messages:
            role = message.role
            if waiting and role != "tool":
                sent.append({"role": "user", "content": waiting})
                waiting = []
            if role == "tool":
                for part in message.parts:
                    if isinstance(part, ToolResult):
                        sent.append(_tool_message(part, sendable_id(part.call_id, self._ids), self.options.tool_parts))
                        waiting.extend(_result_media(part))
            elif role == "assistant":
                if said := self._assistant(message, names):
                    sent.append(said)
            elif content := _content(message.parts):
                sent.append({"role": self.options.system_role if role == "system" else role, "content": content})
        if waiting:
            sent.append({"role": "user", "content": waiting})
        return sent

    def _assistant(self, message: Message, names: ToolNames) -> dict[str, Any] | None:
        text: list[str] = []
        calls: list[dict[str, Any]] = []
        thought: list[Reasoning] = []
        for part in message.parts:
            if isinstance(part, Text):
                text.append(part.text)
            elif isinstance(part, ToolCall):
                calls.append(
                    {
                        "id": sendable_id(part.id, self._ids),
                        "type": "function",
                        "function": {"name": names.wire(part.name), "arguments": arguments_text(part.arguments)},
                    }
                )
            elif isinstance(part, Reasoning):
                thought.append(part)
            elif isinstance(part, Media):
                text.append(placeholder(part))
        content = "".join(text)
        if not content and not calls:
            return None
        said: dict[str, Any] = {"role": "assistant", "content": content or None}
        if calls:
            said["tool_calls"] = calls
        if thought and self.options.reasoning_replay != "none":
            said.update(_replayed(thought, self.options.reasoning_replay))
        return said


def _replayed(thought: list[Reasoning], how: str) -> dict[str, Any]:
    if how == "reasoning_details":
        details = [
            item
            for part in thought
            if (kept := unmark(DETAILS, part.opaque)) is not None
            for item in msgspec.json.decode(kept)
        ]
        return {"reasoning_details": details} if details else {}
    text = "".join(part.text for part in thought)
    return {how: text} if text else {}


def _answer_format(request: ModelRequest, profile: ModelProfile) -> tuple[ModelRequest, dict[str, Any] | None]:
    """How the model is held to the schema of its answer; the request asks in words where it is not, or not wholly."""
    schema = request.output_schema
    if schema is None:
        return request, None
    how = profile.answers
    if how in ("words", "tool") or not is_object(schema) or not _may_hold(request, profile):
        return asked_in_words(request, schema), None
    if how == "object":
        return asked_in_words(request, schema), {"type": "json_object"}
    strict = strict_schema(schema)
    if how != "strict" and strict != schema:
        strict = None  # a server that is only like OpenAI is sent what was declared
    sent = {"name": "answer", "schema": schema if strict is None else strict, "strict": strict is not None}
    return request, {"type": "json_schema", "json_schema": sent}


def _may_hold(request: ModelRequest, profile: ModelProfile) -> bool:
    """Whether the schema can be sent beside the tools: a grammar that holds from the first token lets nobody call."""
    if not request.tools or profile.answers_beside_tools:
        return True
    return profile.answers == "schema" and request.settings.tool_choice == "none"  # others refuse the tools themselves


def _tool_choice(choice: str, names: ToolNames) -> str | dict[str, Any]:
    if choice in CHOICES:
        return choice
    return {"type": "function", "function": {"name": names.wire(choice)}}


def _tools(request: ModelRequest, names: ToolNames, notes: Notes) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for tool, schema in tools_to_send(request, "parameters", strict_schema, notes):
        function = {"name": names.wire(tool.name), "description": description_of(tool), **schema}
        made.append({"type": "function", "function": function})
    return made


def _tool_message(result: ToolResult, call_id: str, in_parts: bool) -> dict[str, Any]:
    texts = result_texts(result)
    content = [{"type": "text", "text": text} for text in texts] if in_parts and len(texts) > 1 else joined(texts)
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _result_media(result: ToolResult) -> list[dict[str, Any]]:
    media = result_files(result)
    if not media:
        return []
    return [{"type": "text", "text": f"Content returned by {result.name}:"}, *(_media(part) for part in media)]


def _content(parts: Iterable[Any]) -> str | list[dict[str, Any]]:
    """Text as a string when it is only text, which every compatible server takes; else a list of parts."""
    content: list[dict[str, Any]] = []
    text: list[str] = []
    for part in parts:
        if isinstance(part, Text):
            text.append(part.text)
            content.append({"type": "text", "text": part.text})
        elif isinstance(part, Media):
            content.append(_media(part))
    return "".join(text) if len(text) == len(content) else content


def _media(media: Media) -> dict[str, Any]:
    if is_image(media):
        return {"type": "image_url", "image_url": {"url": address(media)}}
    if media.data is not None and is_text(media):
        return {"type": "text", "text": decoded_text(media)}
    if media.media_type.startswith("audio/"):
        if (kind := _AUDIO.get(media.media_type)) is None:
            raise Unsendable(f"chat completions take audio as wav or mp3, not as {media.media_type}")
        return {"type": "input_audio", "input_audio": {"data": needs_bytes(media, "chat completions"), "format": kind}}
    needs_bytes(media, "chat completions")
    return {"type": "file", "file": {"filename": file_name(media), "file_data": address(media)}}
