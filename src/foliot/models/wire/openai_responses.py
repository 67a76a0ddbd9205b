"""OpenAI Responses requests, used without state at the provider: every question carries the whole conversation.

`store: false`, so nothing is kept there; reasoning comes back encrypted and is sent along with the next question.
The answers are read in openai_responses_answer.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any
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
)
from foliot.models.config import GatewayConfig
from foliot.models.profiles import ModelProfile, profile_of
from foliot.models.wire.media import address, decoded_text, file_name, is_image, is_text, placeholder, result_texts
from foliot.models.wire.opaque import unmark
from foliot.models.wire.openai_chat import conversation_key
from foliot.models.wire.openai_responses_answer import (
    ITEM,
    PHASE,
    REASONING,
    ResponsesAssembler,
    counted_in_response,
    parse_responses,
)
from foliot.models.wire.requests import CHOICES, Notes, Profiles, asked_in_words, fitted, merged, tools_to_send
from foliot.models.wire.schemas import is_object, strict_schema
from foliot.models.wire.tool_names import ToolNames, description_of, tool_names
from foliot.models.wire.values import CallIds, arguments_text, sendable_id


@dataclass(frozen=True, slots=True)
class ResponsesOptions:
    """`encrypted` is "auto" (by the model's name), "on" or "off"; `summary` asks for readable reasoning.

    `cache` is "key" where the provider goes by a key for its prompt cache.
    """

    encrypted: str = "auto"
    summary: str = "auto"
    cache: str = "off"

    @classmethod
    def from_config(cls, config: GatewayConfig, base_url: str = "") -> ResponsesOptions:
        host = urlsplit(base_url).hostname or ""
        official = host.endswith(("openai.com", ".azure.com", ".microsoft.com"))
        return cls(
            cache=config.choice("cache", ("key", "off"), "key" if official else "off"),
            encrypted=config.choice("encrypted_reasoning", ("auto", "on", "off"), "auto"),
            summary=config.choice("reasoning_summary", ("auto", "concise", "detailed", "off"), "auto"),
        )


class OpenAIResponsesWire:
    """Writes requests and reads answers in OpenAI's Responses format; implements `Wire`."""

    def __init__(self, options: ResponsesOptions | None = None, profiles: Profiles | None = None) -> None:
        self.options = options or ResponsesOptions()
        self._profile = profiles or partial(profile_of, "openai-responses")

    def names(self, request: ModelRequest) -> ToolNames:
        return tool_names(request.tools)

    def path(self, model: str, *, stream: bool) -> str:
        return "/responses"

    def build_body(
        self, request: ModelRequest, names: ToolNames, *, stream: bool, notes: Notes | None = None
    ) -> dict[str, Any]:
        notes = [] if notes is None else notes
        profile = self._profile(request.model)
        request = fitted(request, profile, notes)
        if (schema := request.output_schema) is not None and not is_object(schema):
            request = asked_in_words(request, schema)
        settings = request.settings
        body: dict[str, Any] = {
            "model": request.model,
            "input": _items(request.messages, names, profile.phase),
            "store": False,
        }
        if request.system:
            body["instructions"] = request.system
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "name": names.wire(tool.name),
                    "description": description_of(tool),
                    "strict": False,
                    **schema,
                }
                for tool, schema in tools_to_send(request, "parameters", strict_schema, notes)
            ]
            named = settings.tool_choice not in CHOICES
            choice = settings.tool_choice
            body["tool_choice"] = {"type": "function", "name": names.wire(choice)} if named else choice
            if settings.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = settings.parallel_tool_calls
        if settings.max_output_tokens is not None:
            body["max_output_tokens"] = settings.max_output_tokens
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if settings.top_p is not None:
            body["top_p"] = settings.top_p
        self._put_reasoning(body, request, profile)
        if request.output_schema is not None:
            strict = strict_schema(request.output_schema)
            sent = request.output_schema if strict is None else strict
            body["text"] = {
                "format": {"type": "json_schema", "name": "answer", "schema": sent, "strict": strict is not None}
            }
        if self.options.cache == "key":
            body["prompt_cache_key"] = conversation_key(request)
        if stream:
            body["stream"] = True
        return merged(body, settings.extra) if settings.extra else body

    def parse(self, body: bytes, names: ToolNames, ids: CallIds) -> ModelResponse:
        return parse_responses(body, names, ids)

    def counted(self, body: bytes) -> Usage:
        return counted_in_response(body)

    def assembler(self, names: ToolNames, ids: CallIds) -> ResponsesAssembler:
        return ResponsesAssembler(names, ids)

    def _put_reasoning(self, body: dict[str, Any], request: ModelRequest, profile: ModelProfile) -> None:
        effort, how = request.settings.reasoning_effort, self.options.encrypted
        # Models that do not reason refuse to be asked for encrypted reasoning.
        if how == "on" or (how == "auto" and profile.is_reasoning(effort)):
            body["include"] = ["reasoning.encrypted_content"]
        if effort is not None:
            body["reasoning"] = {"effort": effort}
            if self.options.summary != "off":
                body["reasoning"]["summary"] = self.options.summary


def _items(messages: tuple[Message, ...], names: ToolNames, phased: bool) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "assistant":
            _assistant(message, names, items, phased)
        elif message.role == "tool":
            items.extend(_output(part) for part in message.parts if isinstance(part, ToolResult))
        elif content := [_content(part) for part in message.parts if isinstance(part, (Text, Media))]:
            items.append({"type": "message", "role": message.role, "content": content})
    return items


def _assistant(message: Message, names: ToolNames, items: list[dict[str, Any]], phased: bool) -> None:
    """The parts as items in the order they were made: reasoning must stand before what it led to."""
    phase: dict[str, str] = {}
    for part in message.parts:
        if isinstance(part, Text):
            if part.text:
                items.append({"type": "message", "role": "assistant", "content": part.text, **phase})
        elif isinstance(part, ToolCall):
            items.append(
                {
                    "type": "function_call",
                    "call_id": sendable_id(part.id),
                    "name": names.wire(part.name),
                    "arguments": arguments_text(part.arguments),
                }
            )
        elif isinstance(part, Reasoning):
            if (said := unmark(PHASE, part.opaque)) is not None:
                phase = {"phase": said} if phased else {}
            elif (kept := unmark(ITEM, part.opaque)) is not None:
                items.append(msgspec.json.decode(kept, type=dict[str, Any]))
            elif (kept := unmark(REASONING, part.opaque)) is not None:
                summary = [{"type": "summary_text", "text": part.text}] if part.text else []
                items.append(
                    {"type": "reasoning", "summary": summary, **msgspec.json.decode(kept, type=dict[str, str])}
                )
        elif isinstance(part, Media):
            items.append({"type": "message", "role": "assistant", "content": placeholder(part)})


def _output(result: ToolResult) -> dict[str, Any]:
    blocks = [part for part in result.content if not isinstance(part, Text) or part.text]
    content: str | list[dict[str, Any]] = [_content(part) for part in blocks]
    if len(blocks) < 2 and all(isinstance(part, Text) for part in blocks):
        content = result_texts(result)[0]
    return {"type": "function_call_output", "call_id": sendable_id(result.call_id), "output": content}


def _content(part: Text | Media) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    if is_image(part):
        return {"type": "input_image", "image_url": address(part), "detail": "auto"}
    if part.data is not None and is_text(part):
        return {"type": "input_text", "text": decoded_text(part)}
    if part.url is not None:
        return {"type": "input_file", "file_url": part.url}
    return {"type": "input_file", "filename": file_name(part), "file_data": address(part)}
